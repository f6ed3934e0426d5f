#include "verbena/transport/executor/epoll_waiter.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>

#include "fmt/format.h"
#include "verbena/transport/device/verbs_status.h"

namespace verbena::internal {
namespace {

// The most events that one wait reports; level-triggered, so the rest come with the next wait.
constexpr int kEventsPerWait = 16;

timespec ToTimespec(Duration duration) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(duration);
  return {.tv_sec = seconds.count(), .tv_nsec = (duration - seconds).count()};
}

int ToMilliseconds(Duration timeout) {
  if (timeout == Waiter::kForever) return -1;
  const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(timeout).count();
  return static_cast<int>(std::min<int64_t>(milliseconds, INT_MAX));
}

}  // namespace

absl::StatusOr<std::unique_ptr<EpollWaiter>> EpollWaiter::Create() {
  const int fd = epoll_create1(EPOLL_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, "epoll_create1");
  return std::unique_ptr<EpollWaiter>(new EpollWaiter(fd));
}

EpollWaiter::~EpollWaiter() { close(epoll_fd_); }

absl::Status EpollWaiter::Watch(int fd, ReadableListener& listener) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.ptr = &listener;
  if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, fmt::format("epoll_ctl(ADD, fd {})", fd));
}

void EpollWaiter::Unwatch(int fd) { epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, fd, nullptr); }

void EpollWaiter::Wait(Duration timeout) {
  std::array<epoll_event, kEventsPerWait> events;
  int count = -1;
  if (has_pwait2_ && timeout != Duration::zero()) {
    const timespec limit = ToTimespec(timeout);
    count = epoll_pwait2(epoll_fd_, events.data(), kEventsPerWait,
                         timeout == kForever ? nullptr : &limit, nullptr);
    if (count < 0 && errno == EINTR) return;
    // ENOSYS on old kernels, EPERM in some sandboxes.
    if (count < 0) has_pwait2_ = false;
  }
  if (count < 0) {
    count = epoll_wait(epoll_fd_, events.data(), kEventsPerWait, ToMilliseconds(timeout));
  }
  for (int i = 0; i < count; ++i) static_cast<ReadableListener*>(events[i].data.ptr)->OnReadable();
}

}  // namespace verbena::internal
