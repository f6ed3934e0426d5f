// FileService: an executor's file operations, their bound and their backend. Internal to
// transport/file.
//
// Made for the first operation on a file or its name. The executor owns it. More operations than
// the backend's bound wait here, first in, first out; the list is bounded by the Tasks that wait
// and the files that are closed. Operations are reused, and poisoned while free. One thread.

#ifndef VERBENA_TRANSPORT_FILE_FILE_SERVICE_H_
#define VERBENA_TRANSPORT_FILE_FILE_SERVICE_H_

#include <sys/stat.h>

#include <concepts>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/file/operation.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

class FileService final : public ExecutorService {
 public:
  // The executor's FileService, made now if there is none. FAILED_PRECONDITION for another
  // scheduler.
  static absl::StatusOr<FileService*> Of(Scheduler& scheduler);
  // Makes it with `backend`. Precondition: the executor has none yet.
  static FileService& Install(Executor& executor, std::unique_ptr<FileBackend> backend);
  ~FileService() override;

  FileService(const FileService&) = delete;
  FileService& operator=(const FileService&) = delete;

  // Starts an operation, which completes in a later turn and then tells the awaiter, unless the
  // awaiter has left. Whatever the request refers to need only outlive this call: the operation
  // keeps it. `owner`, which may be null, hears of an operation that changes files and is left.
  FileOperation& Start(FileRequest request, FileAwaiter* awaiter, WorkOwner* owner = nullptr);
  // Nobody waits for `operation` any more: asks it to end, unless it is a close. Tells its owner if
  // the kernel may still carry it out.
  void Leave(FileOperation& operation);
  // Whether a read or write that nobody waits for any more may still use memory of `part`, and one
  // of the two writes there: a new operation must not begin.
  bool IsStillUsed(BufferView part, FileRequest::Kind kind) const {
    return !left_.empty() && Collides(part, kind);
  }

  Executor& executor() const { return executor_; }
  FileBackend& backend() const { return *backend_; }
  size_t in_flight() const { return in_flight_; }
  size_t waiting() const { return waiting_; }

  // For FileOperation.
  void OnComplete(FileOperation& operation, int32_t result);
  // For FileReference: the last one is gone.
  void Close(OpenFile* file);
  void CloseDescriptor(int fd);

 private:
  FileService(Executor& executor, std::unique_ptr<FileBackend> backend);
  void Stop() override;

  FileOperation& Take();
  void Recycle(FileOperation& operation);
  bool StartAgain(FileOperation& operation, int32_t result);
  void StartWaiting();
  bool Collides(BufferView part, FileRequest::Kind kind) const;

  Executor& executor_;
  std::unique_ptr<FileBackend> backend_;
  std::vector<std::unique_ptr<FileOperation>> operations_;
  std::vector<FileOperation*> free_;
  IntrusiveList<FileOperation> queue_;
  std::vector<const FileOperation*> left_;  // reads and writes under way that nobody waits for
  size_t in_flight_ = 0;
  size_t waiting_ = 0;
  bool stopped_ = false;
};

// FileAwaiter: the await of one file operation. Internal to transport/file.
//
// Lives in the waiting coroutine's frame. If it is cancelled or destroyed, it leaves the operation,
// which ends by itself.
class [[nodiscard]] FileAwaiter final : public Suspension {
 public:
  FileAwaiter(FileService& service, FileRequest request)
      : service_(service), request_(std::move(request)) {}
  ~FileAwaiter() override;

  bool await_ready() const noexcept { return false; }
  template <typename Promise>
    requires std::derived_from<Promise, PromiseBase>
  bool await_suspend(std::coroutine_handle<Promise> coroutine) {
    if (Cancelled(coroutine)) return false;
    Suspend(coroutine);
    VERBENA_CHECK(&scheduler() == &service_.executor())
        << "a file is used on another executor than the one that opened it";
    const CancelScope* const scope = coroutine.promise().cancel;
    operation_ = &service_.Start(std::move(request_), this, scope ? scope->owner() : nullptr);
    return true;
  }
  // The system call's result, or -errno. Meaningful only if cancelled() is OK.
  int32_t await_resume() {
    opened_ = false;  // the caller's now
    return result_;
  }

  // OK unless the await ended by cancellation. Its operation may still be under way.
  absl::Status cancelled() const { return cancel_status(); }
  const struct statx& stat() const { return stat_; }

 private:
  friend class FileService;
  void Finish(const FileOperation& operation, int32_t result);
  void Detach() override { Leave(); }
  void Leave() {
    if (operation_ != nullptr) service_.Leave(*std::exchange(operation_, nullptr));
  }

  FileService& service_;
  FileRequest request_;
  FileOperation* operation_ = nullptr;
  int32_t result_ = 0;
  // result_ is a descriptor that the coroutine has not seen.
  bool opened_ = false;
  struct statx stat_ = {};
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_FILE_FILE_SERVICE_H_
