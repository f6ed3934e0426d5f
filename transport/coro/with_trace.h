// WithTrace: runs a Task as a part of a trace.
//
// Calls that the Task makes, and Tasks that it starts below its own scope, belong to the trace
// instead of the one that the awaiting coroutine belongs to. The deadline and the cancellation of
// the awaiting coroutine hold as before. A trace that is not valid (TraceContext::Check()) fails
// each of these calls with INVALID_ARGUMENT.
//
//   co_await WithTrace(CopyVolume(store), TraceContext::Root(/*sampled=*/true));

#ifndef VERBENA_TRANSPORT_CORO_WITH_TRACE_H_
#define VERBENA_TRANSPORT_CORO_WITH_TRACE_H_

#include <utility>

#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/coro/trace_context.h"

namespace verbena {

template <typename T>
Task<T> WithTrace(Task<T> task, TraceContext trace) {
  const TaskContext context = co_await CurrentContext();
  CancelScope scope(context.cancel);
  scope.set_trace(trace);
  co_return co_await std::move(task).In(&scope);
}

template <internal::TaskSource A>
VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS Task<typename A::value_type> WithTrace(
    A awaitable, TraceContext trace) {
  return WithTrace(internal::ToTask(std::move(awaitable)), std::move(trace));
}

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_CORO_WITH_TRACE_H_
