// TaskGroup: the await that WhenAll and WhenAny share, in which several Tasks run at once.
//
// Lives in the frame of the coroutine that owns the Tasks, so destroying that coroutine destroys
// the Tasks. Tasks start inline, in order, each up to its first suspension; the coroutine goes on,
// through the scheduler, when all that were started have ended. One thread; allocates nothing.

#ifndef VERBENA_TRANSPORT_CORO_TASK_GROUP_H_
#define VERBENA_TRANSPORT_CORO_TASK_GROUP_H_

#include <coroutine>
#include <cstddef>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

// A Task's result as a value: std::monostate stands for void.
template <typename T>
using TaskResult = std::conditional_t<std::is_void_v<T>, std::monostate, T>;

// The result of a Task that has ended; throws what it threw.
template <typename T>
TaskResult<T> TakeTaskResult(Task<T>& task) {
  if constexpr (std::is_void_v<T>) {
    task.TakeResult();
    return {};
  } else {
    return task.TakeResult();
  }
}

template <TaskSource A>
std::vector<Task<typename A::value_type>> ToTasks(std::vector<A> awaitables) {
  std::vector<Task<typename A::value_type>> tasks;
  tasks.reserve(awaitables.size());
  for (A& awaitable : awaitables) tasks.push_back(ToTask(std::move(awaitable)));
  return tasks;
}

class TaskGroup : public TaskListener {
 public:
  TaskGroup() = default;
  TaskGroup(const TaskGroup&) = delete;
  TaskGroup& operator=(const TaskGroup&) = delete;

 protected:
  // Counts the await itself as running until Seal(), because Tasks that end at once must not end
  // the await early.
  void Open(PromiseBase& parent) {
    parent_ = &parent;
    running_ = 1;
  }
  template <typename T>
  void StartTask(Task<T>& task, CancelScope* cancel) {
    ++running_;
    task.Start(*parent_->scheduler, cancel, this);
  }
  // All are started. Returns whether the coroutine must suspend.
  bool Seal() { return --running_ != 0; }

  void OneEnded() {
    if (--running_ == 0) parent_->scheduler->Ready(*parent_);
  }

 private:
  PromiseBase* parent_ = nullptr;
  size_t running_ = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_CORO_TASK_GROUP_H_
