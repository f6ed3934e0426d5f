#include "verbena/transport/executor/waiter.h"

#include <utility>

#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status_macros.h"
#include "verbena/transport/executor/epoll_waiter.h"
#include "verbena/transport/executor/io_uring_waiter.h"

namespace verbena::internal {
namespace {

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define VERBENA_THREAD_SANITIZER 1
#endif
#endif
#if defined(VERBENA_THREAD_SANITIZER) || defined(__SANITIZE_THREAD__)
constexpr bool kUnderThreadSanitizer = true;
#else
constexpr bool kUnderThreadSanitizer = false;
#endif

absl::StatusOr<std::unique_ptr<Waiter>> CreateEpollWaiter() {
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<EpollWaiter> waiter, EpollWaiter::Create());
  Log(LogLevel::kInfo, "an idle executor sleeps in epoll");
  return std::unique_ptr<Waiter>(std::move(waiter));
}

absl::StatusOr<std::unique_ptr<Waiter>> CreateIoUringWaiter() {
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<IoUringWaiter> waiter, IoUringWaiter::Create());
  Log(LogLevel::kInfo, "an idle executor sleeps in io_uring");
  return std::unique_ptr<Waiter>(std::move(waiter));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Waiter>> CreateWaiter(WaiterKind kind) {
  if (kind == WaiterKind::kIoUring) return CreateIoUringWaiter();
  if (kind == WaiterKind::kEpoll || kUnderThreadSanitizer) return CreateEpollWaiter();
  absl::StatusOr<std::unique_ptr<Waiter>> io_uring = CreateIoUringWaiter();
  if (io_uring.ok()) return io_uring;
  Log(LogLevel::kInfo, "io_uring cannot be used: " + io_uring.status().ToString());
  return CreateEpollWaiter();
}

}  // namespace verbena::internal
