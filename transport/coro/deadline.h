// WithDeadline: runs a Task in a cancel scope that is requested with DEADLINE_EXCEEDED at a time.
//
// The Task is always awaited to its end, and its result is the result: after the deadline its
// awaits return DEADLINE_EXCEEDED, and it usually returns that. A Task that ignores them delays its
// caller. A deadline already past does not keep the Task from starting. An earlier deadline of an
// outer scope holds too. kNever is no deadline. Calls that the Task makes have the deadline, too,
// so their servers hear of it.
//
//   absl::StatusOr<GetReply> reply = co_await WithDeadline(stub.Get(request), 5ms);

#ifndef VERBENA_TRANSPORT_CORO_DEADLINE_H_
#define VERBENA_TRANSPORT_CORO_DEADLINE_H_

#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/task.h"

namespace verbena {

namespace internal {

template <typename T>
inline constexpr bool kCarriesStatus = std::is_same_v<T, absl::Status>;
template <typename T>
inline constexpr bool kCarriesStatus<absl::StatusOr<T>> = true;

// A type that can report a passed deadline.
template <typename T>
concept CarriesStatus = kCarriesStatus<T>;

}  // namespace internal

// A cancel scope with an alarm. Lives in the frame of the coroutine that set it; one thread.
class DeadlineScope final : private internal::Timer {
 public:
  DeadlineScope(const TaskContext& context, TimePoint deadline);
  DeadlineScope(const DeadlineScope&) = delete;
  DeadlineScope& operator=(const DeadlineScope&) = delete;
  ~DeadlineScope() override;

  CancelScope& scope() { return scope_; }

 private:
  void OnTimer() override;

  Scheduler& scheduler_;
  CancelScope scope_;
  bool running_ = false;
};

template <internal::CarriesStatus T>
Task<T> WithDeadline(Task<T> task, TimePoint deadline) {
  DeadlineScope limit(co_await CurrentContext(), deadline);
  co_return co_await std::move(task).In(&limit.scope());
}

// The delay counts from the scheduler's time when the result is awaited.
template <internal::CarriesStatus T>
Task<T> WithDeadline(Task<T> task, Duration delay) {
  const TaskContext context = co_await CurrentContext();
  DeadlineScope limit(context, SaturatingAdd(context.scheduler->now(), delay));
  co_return co_await std::move(task).In(&limit.scope());
}

// The same for a stub's call. Its own deadline (CallOptions) costs less.
template <internal::TaskSource A, typename Limit>
  requires internal::CarriesStatus<typename A::value_type>
VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS Task<typename A::value_type> WithDeadline(
    A awaitable, Limit limit) {
  return WithDeadline(internal::ToTask(std::move(awaitable)), limit);
}

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_CORO_DEADLINE_H_
