// HeldWrites: the files of an executor, on a disk on which writes hang until a test lets them go.
// Everything else is done at once, by threads.
//
//   HeldWrites& disk = *runtime->BlockOn(HeldWrites::Install(runtime->executor(0)));
//   ...                                           // somebody writes a file
//   (void)runtime->BlockOn(disk.begun.Until(1));
//   (void)runtime->BlockOn(disk.EndWrites());

#ifndef VERBENA_TESTS_TRANSPORT_FILE_HELD_WRITES_H_
#define VERBENA_TESTS_TRANSPORT_FILE_HELD_WRITES_H_

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tests/support/watched.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/file/file_service.h"
#include "verbena/transport/file/operation.h"
#include "verbena/transport/file/thread_backend.h"

namespace verbena::internal {

// The executor owns it.
class HeldWrites final : public FileBackend {
 public:
  // Run on `executor`, which must have used no file yet.
  static Task<HeldWrites*> Install(Executor& executor) {
    auto owned = std::unique_ptr<HeldWrites>(new HeldWrites(
        ThreadBackend::Create(executor, absl::UnavailableError("a test holds writes")).value()));
    HeldWrites* const held = owned.get();
    FileService::Install(executor, std::move(owned));
    co_return held;
  }
  // Carries out the writes that hang, and holds no more. Run on the executor.
  Task<absl::Status> EndWrites() {
    Release();
    co_return absl::OkStatus();
  }

  Watched<int> begun;  // writes, whether or not they hang
  Watched<int> left;   // writes that hang, and for which nobody waits any more

 private:
  explicit HeldWrites(std::unique_ptr<FileBackend> disk) : disk_(std::move(disk)) {}

  const char* name() const override { return "holds writes"; }
  size_t bound() const override { return disk_->bound(); }
  void Start(FileOperation& operation) override {
    const bool writes = operation.request.kind == FileRequest::Kind::kWrite;
    if (writes && holds_) {
      held_.push_back(&operation);
    } else {
      disk_->Start(operation);
    }
    if (writes) ++begun;
  }
  // A write that hangs does so until EndWrites(), and is carried out then.
  void Cancel(FileOperation& operation) override {
    if (std::find(held_.begin(), held_.end(), &operation) == held_.end()) {
      disk_->Cancel(operation);
    } else {
      ++left;
    }
  }
  void Stop(const size_t& in_flight) override {
    Release();
    disk_->Stop(in_flight);
  }
  void Release() {
    holds_ = false;
    for (FileOperation* operation : std::exchange(held_, {})) disk_->Start(*operation);
  }

  const std::unique_ptr<FileBackend> disk_;
  bool holds_ = true;
  std::vector<FileOperation*> held_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_TRANSPORT_FILE_HELD_WRITES_H_
