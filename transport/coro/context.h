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

#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/task.h"

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

#endif  // VERBENA_TRANSPORT_CORO_CONTEXT_H_
