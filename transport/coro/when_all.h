// WhenAll: runs several Tasks at once and gives all their results, in order.
//
// The Tasks run in the awaiting coroutine's cancel scope and are always awaited to their end, also
// when one fails: a failed Status is a result like any other. If Tasks throw, the exception of the
// first in order comes out. Destroying the WhenAll destroys them.
//
//   auto [a, b] = co_await WhenAll(stub.Get(first), stub.Get(second));
//   std::vector<absl::Status> sent = co_await WhenAll(std::move(sends));

#ifndef VERBENA_TRANSPORT_CORO_WHEN_ALL_H_
#define VERBENA_TRANSPORT_CORO_WHEN_ALL_H_

#include <concepts>
#include <coroutine>
#include <tuple>
#include <utility>
#include <vector>

#include "verbena/transport/coro/task.h"
#include "verbena/transport/coro/task_group.h"

namespace verbena {

namespace internal {

// `for_each(f)` calls f with each Task in order.
template <typename ForEach>
class AllAwaiter final : public TaskGroup {
 public:
  explicit AllAwaiter(ForEach for_each) : for_each_(for_each) {}

  bool await_ready() const noexcept { return false; }
  template <typename Promise>
    requires std::derived_from<Promise, PromiseBase>
  bool await_suspend(std::coroutine_handle<Promise> coroutine) {
    PromiseBase& parent = coroutine.promise();
    Open(parent);
    for_each_([this, &parent](auto& task) { this->StartTask(task, parent.cancel); });
    return Seal();
  }
  void await_resume() const noexcept {}

 private:
  void OnTaskDone() override { OneEnded(); }

  ForEach for_each_;
};

template <typename T>
auto RunAll(std::vector<Task<T>>& tasks) {
  return AllAwaiter([&tasks](auto start) {
    for (Task<T>& task : tasks) start(task);
  });
}

}  // namespace internal

// std::monostate stands for the result of a Task<void>.
template <typename... T>
Task<std::tuple<internal::TaskResult<T>...>> WhenAll(Task<T>... tasks) {
  co_await internal::AllAwaiter([&tasks...](auto start) { (start(tasks), ...); });
  // In braces, so that they are taken in order.
  co_return std::tuple<internal::TaskResult<T>...>{internal::TakeTaskResult(tasks)...};
}

// The same when some are stubs' calls.
template <internal::TaskOrSource... A>
  requires(internal::TaskSource<A> || ...)
VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS auto WhenAll(A... awaitables) {
  return WhenAll(internal::ToTask(std::move(awaitables))...);
}

template <typename T>
Task<std::vector<T>> WhenAll(std::vector<Task<T>> tasks) {
  co_await internal::RunAll(tasks);
  std::vector<T> results;
  results.reserve(tasks.size());
  for (Task<T>& task : tasks) results.push_back(task.TakeResult());
  co_return results;
}

inline Task<void> WhenAll(std::vector<Task<void>> tasks) {
  co_await internal::RunAll(tasks);
  for (Task<void>& task : tasks) task.TakeResult();
}

template <internal::TaskSource A>
VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS auto WhenAll(std::vector<A> awaitables) {
  return WhenAll(internal::ToTasks(std::move(awaitables)));
}

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_CORO_WHEN_ALL_H_
