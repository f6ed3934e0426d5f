// FileAwaiter: the await of one file operation. Internal to transport/file.
//
// Lives in the waiting coroutine's frame. If it is cancelled or destroyed, it leaves the operation,
// which ends by itself.

#ifndef VERBENA_TRANSPORT_FILE_FILE_AWAITER_H_
#define VERBENA_TRANSPORT_FILE_FILE_AWAITER_H_

#include <sys/stat.h>

#include <concepts>
#include <coroutine>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/coro/suspension.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/file/file_operation.h"
#include "verbena/transport/file/file_service.h"

namespace verbena::internal {

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
    operation_ = &service_.Start(std::move(request_), this);
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

#endif  // VERBENA_TRANSPORT_FILE_FILE_AWAITER_H_
