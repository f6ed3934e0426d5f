#include "verbena/transport/executor/waiter.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/device/verbs_status.h"

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
  VERBENA_LOG_LINE(kExecutor, kInfo, "an idle executor sleeps in epoll");
  return std::unique_ptr<Waiter>(std::move(waiter));
}

absl::StatusOr<std::unique_ptr<Waiter>> CreateIoUringWaiter() {
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<IoUringWaiter> waiter, IoUringWaiter::Create());
  VERBENA_LOG_LINE(kExecutor, kInfo, "an idle executor sleeps in io_uring");
  return std::unique_ptr<Waiter>(std::move(waiter));
}

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

// 30 bits of generation, since a tag has 62.
constexpr uint32_t kGenerationMask = (uint32_t{1} << 30) - 1;

uint64_t TagOf(size_t place, uint32_t generation) {
  return uint64_t{generation & kGenerationMask} << 32 | static_cast<uint32_t>(place);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Waiter>> CreateWaiter(WaiterKind kind) {
  if (kind == WaiterKind::kIoUring) return CreateIoUringWaiter();
  if (kind == WaiterKind::kEpoll || kUnderThreadSanitizer) return CreateEpollWaiter();
  absl::StatusOr<std::unique_ptr<Waiter>> io_uring = CreateIoUringWaiter();
  if (io_uring.ok()) return io_uring;
  VERBENA_LOG_LINE(kExecutor, kInfo, "io_uring cannot be used: " + io_uring.status().ToString());
  return CreateEpollWaiter();
}

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
  VERBENA_CHECK(count >= 0 || errno == EINTR) << "epoll_wait: errno " << errno;
  for (int i = 0; i < count; ++i) static_cast<ReadableListener*>(events[i].data.ptr)->OnReadable();
}

IoUringWaiter::IoUringWaiter(std::unique_ptr<EpollWaiter> nested) : nested_(std::move(nested)) {}

absl::StatusOr<std::unique_ptr<IoUringWaiter>> IoUringWaiter::Create() {
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<EpollWaiter> nested, EpollWaiter::Create());
  auto waiter = std::unique_ptr<IoUringWaiter>(new IoUringWaiter(std::move(nested)));
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<IoRing> ring, IoRing::Create(*waiter));
  waiter->ring_ = std::move(ring);
  return waiter;
}

absl::Status IoUringWaiter::Watch(int fd, ReadableListener& listener) {
  VERBENA_RETURN_IF_ERROR(nested_->Watch(fd, listener));
  auto place = std::ranges::find(places_, -1, &Place::fd);
  if (place == places_.end()) place = places_.emplace(place);
  place->fd = fd;
  place->polled = false;
  place->listener = &listener;
  return absl::OkStatus();
}

void IoUringWaiter::Unwatch(int fd) {
  nested_->Unwatch(fd);
  const auto place = std::ranges::find(places_, fd, &Place::fd);
  if (place == places_.end()) return;
  if (place->polled) {
    // Submitted now: a pending poll would keep the descriptor's file open.
    io_uring_sqe* sqe = ring_->NextSqe();
    io_uring_prep_poll_remove(
        sqe, IoRing::UserDataOfTag(TagOf(place - places_.begin(), place->generation)));
    IoRing::BindToNobody(*sqe);
    ring_->Submit();
  }
  ++place->generation;
  place->fd = -1;
  place->listener = nullptr;
}

absl::StatusOr<IoRing*> IoUringWaiter::UseRing() {
  if (!ring_watched_) {
    VERBENA_RETURN_IF_ERROR(nested_->Watch(ring_->fd(), ring_listener_));
    ring_watched_ = true;
  }
  return ring_.get();
}

void IoUringWaiter::RequestPolls() {
  for (size_t i = 0; i < places_.size(); ++i) {
    Place& place = places_[i];
    if (place.fd < 0 || place.polled) continue;
    io_uring_sqe* sqe = ring_->NextSqe();
    io_uring_prep_poll_add(sqe, place.fd, POLLIN);
    IoRing::BindToTag(*sqe, TagOf(i, place.generation));
    place.polled = true;
  }
}

void IoUringWaiter::Wait(Duration timeout) {
  RequestPolls();
  ring_->SubmitAndWait(timeout == kForever ? Duration(-1) : timeout);
  ring_->Reap();
}

void IoUringWaiter::OnTagged(uint64_t tag, int32_t result) {
  const size_t index = tag & UINT32_MAX;
  VERBENA_CHECK(index < places_.size()) << index << " of " << places_.size() << " places";
  Place& place = places_[index];
  if (TagOf(index, place.generation) != tag) return;
  VERBENA_CHECK(place.polled) << "a poll of fd " << place.fd << " ended twice";
  place.polled = false;
  // A cancelled poll (its thread has ended) is only renewed.
  if (result > 0 && place.listener != nullptr) place.listener->OnReadable();
}

absl::StatusOr<std::unique_ptr<HostAlarm>> HostAlarm::Create(Waiter& waiter) {
  const int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  if (fd < 0) return ErrnoStatus(errno, "timerfd_create");
  auto alarm = std::unique_ptr<HostAlarm>(new HostAlarm(waiter, fd));
  VERBENA_RETURN_IF_ERROR(waiter.Watch(fd, *alarm));
  return alarm;
}

HostAlarm::~HostAlarm() {
  waiter_.Unwatch(timer_fd_);
  close(timer_fd_);
}

void HostAlarm::Set(TimePoint when) {
  if (when == set_to_) return;
  set_to_ = when;
  itimerspec at = {};
  if (when != kNever) {
    // Zero would stop it.
    const Duration since_epoch = std::max(when.time_since_epoch(), Duration(1));
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since_epoch);
    at.it_value = {.tv_sec = seconds.count(), .tv_nsec = (since_epoch - seconds).count()};
  }
  const int failed = timerfd_settime(timer_fd_, TFD_TIMER_ABSTIME, &at, nullptr);
  VERBENA_CHECK(failed == 0) << "timerfd_settime: errno " << errno;
}

void HostAlarm::OnReadable() {
  uint64_t expirations = 0;
  (void)!read(timer_fd_, &expirations, sizeof(expirations));
  set_to_ = kNever;
}

}  // namespace verbena::internal
