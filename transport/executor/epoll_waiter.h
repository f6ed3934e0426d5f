// EpollWaiter: a Waiter on epoll, which every kernel allows.
//
// Timeouts are exact to nanoseconds if the kernel has epoll_pwait2 (5.11), otherwise rounded up to
// milliseconds.

#ifndef VERBENA_TRANSPORT_EXECUTOR_EPOLL_WAITER_H_
#define VERBENA_TRANSPORT_EXECUTOR_EPOLL_WAITER_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/executor/waiter.h"

namespace verbena::internal {

class EpollWaiter final : public Waiter {
 public:
  static absl::StatusOr<std::unique_ptr<EpollWaiter>> Create();
  ~EpollWaiter() override;

  const char* name() const override { return "epoll"; }
  absl::Status Watch(int fd, ReadableListener& listener) override;
  void Unwatch(int fd) override;
  void Wait(Duration timeout) override;
  void Dispatch() override { Wait(Duration::zero()); }
  int fd() const override { return epoll_fd_; }
  absl::StatusOr<IoRing*> UseRing() override {
    return absl::FailedPreconditionError("the executor sleeps in epoll, and has no io_uring");
  }

 private:
  explicit EpollWaiter(int epoll_fd) : epoll_fd_(epoll_fd) {}

  const int epoll_fd_;
  bool has_pwait2_ = true;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_EXECUTOR_EPOLL_WAITER_H_
