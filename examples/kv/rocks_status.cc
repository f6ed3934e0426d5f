#include "examples/kv/rocks_status.h"

#include <string>

#include "fmt/format.h"

namespace kv {
namespace {

struct Meaning {
  absl::StatusCode code;
  const char* advice;
};

// RocksDB has no code for a lock that somebody else holds.
bool IsLockHeld(const rocksdb::Status& status) {
  const std::string text = status.ToString();
  return status.IsIOError() && text.find("lock") != std::string::npos &&
         text.find("/LOCK") != std::string::npos;
}

Meaning MeaningOf(const rocksdb::Status& status) {
  if (status.IsCorruption()) {
    return {absl::StatusCode::kDataLoss, "its files are damaged; restore them from a backup"};
  }
  if (status.IsNoSpace()) {
    return {absl::StatusCode::kResourceExhausted, "make room on its file system"};
  }
  if (IsLockHeld(status)) {
    return {absl::StatusCode::kFailedPrecondition,
            "a process has it open; stop that or name another directory"};
  }
  // Not NOT_FOUND, which says of a key that it has no value.
  if (status.IsPathNotFound()) {
    return {absl::StatusCode::kDataLoss, "a file of it is missing; restore it from a backup"};
  }
  if (status.IsBusy() || status.IsTimedOut() || status.IsTryAgain() || status.IsAborted() ||
      status.IsShutdownInProgress()) {
    return {absl::StatusCode::kUnavailable, "try again"};
  }
  if (status.IsInvalidArgument() || status.IsNotSupported()) {
    return {absl::StatusCode::kFailedPrecondition, "another program or version wrote it"};
  }
  return {absl::StatusCode::kInternal,
          "see LOG in that directory; if writes keep failing, start the server again"};
}

}  // namespace

absl::Status StatusOfRocks(const rocksdb::Status& status, std::string_view what,
                           std::string_view directory) {
  if (status.ok()) return absl::OkStatus();
  const Meaning meaning = MeaningOf(status);
  return absl::Status(meaning.code, fmt::format("{}: RocksDB in {}: {}; {}", what, directory,
                                                status.ToString(), meaning.advice));
}

}  // namespace kv
