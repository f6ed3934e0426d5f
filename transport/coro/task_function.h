// TaskFunction: a callable that returns a Task, or an awaitable that a Task can be made of. A
// lambda that is a coroutine is one; one that returns a stub's call is another.
//
// A coroutine does not keep the lambda that it was made by: its captures die with the lambda.
// RunFunction() keeps the callable until the Task has ended and its frame is destroyed.
//
//   scope.Spawn(RunFunction([&channel, name]() -> Task<void> { … }));

#ifndef VERBENA_TRANSPORT_CORO_TASK_FUNCTION_H_
#define VERBENA_TRANSPORT_CORO_TASK_FUNCTION_H_

#include <concepts>
#include <type_traits>

#include "verbena/transport/coro/task.h"

namespace verbena::internal {

template <typename Function, typename... Arguments>
concept TaskFunction = std::invocable<Function&, Arguments...> &&
                       TaskOrSource<std::invoke_result_t<Function&, Arguments...>>;

// The type of the result of a TaskFunction's Task.
template <typename Function, typename... Arguments>
using TaskFunctionResult = typename std::invoke_result_t<Function&, Arguments...>::value_type;

// The callable is called when the Task that this returns is run.
template <TaskFunction Function>
Task<TaskFunctionResult<Function>> RunFunction(Function function) {
  co_return co_await function();
}

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_CORO_TASK_FUNCTION_H_
