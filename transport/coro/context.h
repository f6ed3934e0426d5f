// CurrentContext: what a coroutine runs in, namely its scheduler and its cancel scope, which has
// its deadline and its trace.
//
//   Task<> Serve(Listener& listener) {
//     TaskScope calls(co_await CurrentContext());
//     …
//
// The context lives as long as the coroutine may run. Never suspends, never fails.

#ifndef VERBENA_TRANSPORT_CORO_CONTEXT_H_
#define VERBENA_TRANSPORT_CORO_CONTEXT_H_

#include <concepts>
#include <coroutine>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/export.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/coro/trace.h"

namespace verbena {

struct TaskContext {
  Scheduler* scheduler = nullptr;
  CancelScope* cancel = nullptr;  // null when nobody can cancel

  // kNever if there is none.
  TimePoint deadline() const { return cancel == nullptr ? kNever : cancel->deadline(); }
  // nullptr if there is none.
  const TraceContext* trace() const { return cancel == nullptr ? nullptr : cancel->trace(); }
};

class [[nodiscard]] CurrentContext {
 public:
  bool await_ready() const noexcept { return false; }
  template <typename Promise>
    requires std::derived_from<Promise, internal::PromiseBase>
  bool await_suspend(std::coroutine_handle<Promise> coroutine) noexcept {
    const internal::PromiseBase& promise = coroutine.promise();
    context_ = {promise.scheduler, promise.cancel};
    return false;
  }
  TaskContext await_resume() const noexcept { return context_; }

 private:
  TaskContext context_;
};

}  // namespace verbena

namespace verbena::internal {

// WithDeadline: runs a Task in a cancel scope that is requested with DEADLINE_EXCEEDED at a time.
//
// The Task is always awaited to its end, and its result is the result: after the deadline its
// awaits return DEADLINE_EXCEEDED, and it usually returns that. A Task that ignores them delays its
// caller. A deadline already past does not keep the Task from starting. An earlier deadline of an
// outer scope holds too. kNever is no deadline. Calls that the Task makes have the deadline, too,
// so their servers hear of it.
//
//   absl::StatusOr<GetReply> reply = co_await WithDeadline(stub.Get(request), 5ms);
//   absl::StatusOr<Block> block = co_await WithDeadline(blocks.Pop(), 5ms);

template <typename T>
inline constexpr bool kCarriesStatus = std::is_same_v<T, absl::Status>;
template <typename T>
inline constexpr bool kCarriesStatus<absl::StatusOr<T>> = true;

// A type that can report a passed deadline.
template <typename T>
concept CarriesStatus = kCarriesStatus<T>;

}  // namespace verbena::internal

namespace verbena {

// A cancel scope with an alarm. Lives in the frame of the coroutine that set it; one thread.
class VERBENA_EXPORT DeadlineScope final : private internal::Timer {
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

// WithDeadline() for what becomes a Task: a stub's call, and awaits such as Queue::Pop(). The
// call's own deadline (CallOptions) costs less.
template <typename A, typename Limit>
  requires internal::TaskSource<std::remove_cvref_t<A>> &&
           internal::CarriesStatus<typename std::remove_cvref_t<A>::value_type>
VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS Task<typename std::remove_cvref_t<A>::value_type>
WithDeadline(A&& awaitable, Limit limit) {
  return WithDeadline(internal::ToTask(std::forward<A>(awaitable)), limit);
}

// WithTrace: runs a Task as a part of a trace.
//
// Calls that the Task makes, and Tasks that it starts below its own scope, belong to the trace
// instead of the one that the awaiting coroutine belongs to. The deadline and the cancellation of
// the awaiting coroutine hold as before. A trace that is not valid (TraceContext::Check()) fails
// each of these calls with INVALID_ARGUMENT.
//
//   co_await WithTrace(CopyVolume(store), TraceContext::Root(/*sampled=*/true));
template <typename T>
Task<T> WithTrace(Task<T> task, TraceContext trace) {
  const TaskContext context = co_await CurrentContext();
  CancelScope scope(context.cancel);
  scope.set_trace(trace);
  co_return co_await std::move(task).In(&scope);
}

template <typename A>
  requires internal::TaskSource<std::remove_cvref_t<A>>
VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS Task<typename std::remove_cvref_t<A>::value_type>
WithTrace(A&& awaitable, TraceContext trace) {
  return WithTrace(internal::ToTask(std::forward<A>(awaitable)), std::move(trace));
}

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_CORO_CONTEXT_H_
