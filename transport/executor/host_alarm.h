// HostAlarm: makes an executor's descriptor readable when its next timer is due, for a host that
// sleeps on it.
//
// A timerfd that the Waiter watches. Executors that run their own loop sleep with a timeout and
// need none. Owned by its executor, destroyed before the Waiter; one thread.

#ifndef VERBENA_TRANSPORT_EXECUTOR_HOST_ALARM_H_
#define VERBENA_TRANSPORT_EXECUTOR_HOST_ALARM_H_

#include <memory>

#include "absl/status/statusor.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/executor/waiter.h"

namespace verbena::internal {

class HostAlarm final : private ReadableListener {
 public:
  static absl::StatusOr<std::unique_ptr<HostAlarm>> Create(Waiter& waiter);
  HostAlarm(const HostAlarm&) = delete;
  HostAlarm& operator=(const HostAlarm&) = delete;
  ~HostAlarm() override;

  // Rings at `when`, a time of the machine's steady clock; never if `when` is kNever. Replaces the
  // time of an earlier call. A system call, unless the alarm is set to that already.
  void Set(TimePoint when);

 private:
  HostAlarm(Waiter& waiter, int timer_fd) : waiter_(waiter), timer_fd_(timer_fd) {}

  void OnReadable() override;

  Waiter& waiter_;
  const int timer_fd_;
  TimePoint set_to_ = kNever;  // kNever: it does not run
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_EXECUTOR_HOST_ALARM_H_
