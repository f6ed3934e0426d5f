#include "examples/kv/synced_mark.h"

#include <cstdlib>
#include <utility>

#include "examples/kv/rocks_status.h"
#include "fmt/format.h"
#include "rocksdb/env.h"
#include "verbena/rpc/task.h"

namespace kv {
namespace {

std::string PathIn(const std::string& directory) { return directory + "/SYNCED"; }

// The state twice, each in a line of fixed length, so that damage shows. Both lines lie in one
// sector, which a disk writes whole or not at all.
std::string TextOf(SyncedMark::State state) {
  const std::string line =
      fmt::format("{:020} {}\n", state.last_entry, state.each_batch ? "each" : "some");
  return line + line;
}

SyncedMark::State Parse(const std::string& text) {
  return {.last_entry = std::strtoull(text.c_str(), nullptr, 10),
          .each_batch = text.find("each") != std::string::npos};
}

}  // namespace

absl::StatusOr<bool> SyncedMark::Exists(rocksdb::Env& env, const std::string& directory) {
  const rocksdb::Status found = env.FileExists(PathIn(directory));
  if (found.IsNotFound()) return false;
  VERBENA_RETURN_IF_ERROR(StatusOfRocks(found, "open", directory));
  return true;
}

absl::StatusOr<SyncedMark::State> SyncedMark::Read(rocksdb::Env& env,
                                                   const std::string& directory) {
  std::string text;
  VERBENA_RETURN_IF_ERROR(
      StatusOfRocks(rocksdb::ReadFileToString(&env, PathIn(directory), &text), "open", directory));
  const State state = Parse(text);
  if (text == TextOf(state)) return state;
  return absl::DataLossError(
      fmt::format("open: {} is damaged, so nobody can tell whether the log is whole; restore the "
                  "directory from a backup, or remove that file to open the store as it is",
                  PathIn(directory)));
}

absl::StatusOr<std::unique_ptr<SyncedMark>> SyncedMark::Make(rocksdb::Env& env,
                                                             const std::string& directory,
                                                             State state) {
  const std::string path = PathIn(directory);
  const std::string made = path + ".new";
  std::unique_ptr<rocksdb::Directory> names;
  std::unique_ptr<rocksdb::RandomRWFile> file;
  rocksdb::Status status =
      rocksdb::WriteStringToFile(&env, TextOf(state), made, /*should_sync=*/true);
  if (status.ok()) status = env.RenameFile(made, path);
  if (status.ok()) status = env.NewDirectory(directory, &names);
  if (status.ok()) status = names->Fsync();
  if (status.ok()) status = env.NewRandomRWFile(path, &file, rocksdb::EnvOptions());
  VERBENA_RETURN_IF_ERROR(StatusOfRocks(status, "open: mark of what is synced", directory));
  return std::unique_ptr<SyncedMark>(new SyncedMark(std::move(file), state));
}

SyncedMark::SyncedMark(std::unique_ptr<rocksdb::RandomRWFile> file, State state)
    : file_(std::move(file)), state_(state) {}

SyncedMark::~SyncedMark() {
  file_->Sync().PermitUncheckedError();
  file_->Close().PermitUncheckedError();
}

void SyncedMark::Advance(uint64_t last_entry) {
  state_.last_entry = last_entry;
  file_->Write(0, TextOf(state_)).PermitUncheckedError();
}

}  // namespace kv
