// Spawn: starts a Task on an executor and returns a handle on it.
//
// From any thread; the Task starts in a later turn of the executor's loop, never inline. The
// executor owns it: it is destroyed when it ends, or unfinished when the executor is. JoinHandle
// waits for its end, takes its result or asks it to stop; dropping the handle lets the Task run on
// alone, and an exception is then logged. A callable that returns a Task, such as a lambda, lives
// as long as that Task, so its captures stay valid. It is called on the executor.
//
// The number of such Tasks is not bounded here: Spawn is for the few roots of a program (an accept
// loop, a background job), and allocates for each. A Task per request belongs in a TaskScope or a
// ForEach, which bound them.
//
//   Spawn(executor, AcceptLoop(server));
//   JoinHandle<int> sum = Spawn(executor, [numbers]() -> Task<int> { co_return Sum(numbers); });

#ifndef VERBENA_TRANSPORT_EXECUTOR_SPAWN_H_
#define VERBENA_TRANSPORT_EXECUTOR_SPAWN_H_

#include <utility>

#include "verbena/transport/coro/task.h"
#include "verbena/transport/coro/task_function.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/join_handle.h"
#include "verbena/transport/executor/join_state.h"

namespace verbena {

namespace internal {

// `root` is owned by the executor from here on. It throws nothing.
void LaunchSpawned(Executor& executor, Task<void> root);

}  // namespace internal

template <typename T>
JoinHandle<T> Spawn(Executor& executor, Task<T> task) {
  internal::JoinableTask<T> joinable({.scheduler = executor}, std::move(task));
  JoinHandle<T> handle = joinable.handle();
  internal::LaunchSpawned(executor, internal::RunJoinable(std::move(joinable)));
  return handle;
}

// The same for a stub's call, which owns its request or borrows it until it ends.
template <internal::TaskSource A>
JoinHandle<typename A::value_type> Spawn(Executor& executor, A awaitable) {
  return Spawn(executor, internal::ToTask(std::move(awaitable)));
}

template <internal::TaskFunction Function>
JoinHandle<internal::TaskFunctionResult<Function>> Spawn(Executor& executor, Function function) {
  return Spawn(executor, internal::RunFunction(std::move(function)));
}

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_EXECUTOR_SPAWN_H_
