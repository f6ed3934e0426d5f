#include "verbena/transport/executor/host_alarm.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "verbena/transport/base/check.h"
#include "verbena/transport/base/status_macros.h"
#include "verbena/transport/device/verbs_status.h"

namespace verbena::internal {

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
