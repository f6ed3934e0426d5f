// WhenAny: runs several Tasks at once, until the first of them has ended.
//
// The first to end, in whatever way, wins. The others are asked to stop and are awaited to their
// end; their results and exceptions are dropped. A loser that ignores the request delays its
// caller. If a Task ends while the Tasks are being started, those after it never start. If the
// winner threw, its exception comes out. Destroying the WhenAny destroys all its Tasks.
//
//   auto first = co_await WhenAny(stub.Get(request), Hedge(stub, request));
//   if (first.index() == 0) …
//   auto [index, reply] = co_await WhenAny(std::move(gets));

#ifndef VERBENA_TRANSPORT_CORO_WHEN_ANY_H_
#define VERBENA_TRANSPORT_CORO_WHEN_ANY_H_

#include <cassert>
#include <concepts>
#include <coroutine>
#include <cstddef>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/coro/task_group.h"

namespace verbena {

// Which of a vector's Tasks won, and its result.
template <typename T>
struct WhenAnyResult {
  size_t index = 0;
  T result;
};

namespace internal {

// `for_each(f)` calls f with each Task in order. co_await gives the winner's index.
template <typename ForEach>
class AnyAwaiter final : public TaskGroup {
 public:
  explicit AnyAwaiter(ForEach for_each) : for_each_(for_each) {}

  bool await_ready() const noexcept { return false; }
  template <typename Promise>
    requires std::derived_from<Promise, PromiseBase>
  bool await_suspend(std::coroutine_handle<Promise> coroutine) {
    PromiseBase& parent = coroutine.promise();
    Open(parent);
    race_.emplace(parent.cancel);
    for_each_([this](auto& task) {
      if (!winner_) this->StartTask(task, &*race_);
    });
    return Seal();
  }
  size_t await_resume() const noexcept {
    assert(winner_);
    return *winner_;
  }

 private:
  void OnTaskDone() override {
    if (!winner_) {
      // No other Task has ended yet, so the one that is done is the winner. Tasks after it may not
      // have started; none of these is done.
      size_t index = 0;
      for_each_([&](auto& task) {
        if (!winner_ && task.done()) winner_ = index;
        ++index;
      });
      race_->Request();
    }
    OneEnded();
  }

  ForEach for_each_;
  std::optional<CancelScope> race_;  // the Tasks', below the awaiting coroutine's
  std::optional<size_t> winner_;
};

// The result of the winner among Tasks of several types.
template <size_t kIndex, typename Variant, typename T, typename... Rest>
Variant TakeWinner(size_t winner, Task<T>& task, Task<Rest>&... rest) {
  if constexpr (sizeof...(Rest) > 0) {
    if (winner != kIndex) return TakeWinner<kIndex + 1, Variant>(winner, rest...);
  }
  return Variant(std::in_place_index<kIndex>, TakeTaskResult(task));
}

template <typename T>
auto RunAny(std::vector<Task<T>>& tasks) {
  assert(!tasks.empty());
  return AnyAwaiter([&tasks](auto visit) {
    for (Task<T>& task : tasks) visit(task);
  });
}

}  // namespace internal

// The variant's index() tells the winner. std::monostate stands for the result of a Task<void>.
template <typename... T>
  requires(sizeof...(T) > 0)
Task<std::variant<internal::TaskResult<T>...>> WhenAny(Task<T>... tasks) {
  const size_t winner =
      co_await internal::AnyAwaiter([&tasks...](auto visit) { (visit(tasks), ...); });
  co_return internal::TakeWinner<0, std::variant<internal::TaskResult<T>...>>(winner, tasks...);
}

// The same when some are stubs' calls.
template <internal::TaskOrSource... A>
  requires(internal::TaskSource<A> || ...)
VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS auto WhenAny(A... awaitables) {
  return WhenAny(internal::ToTask(std::move(awaitables))...);
}

// `tasks` must not be empty: nothing could win.
template <typename T>
Task<WhenAnyResult<internal::TaskResult<T>>> WhenAny(std::vector<Task<T>> tasks) {
  const size_t winner = co_await internal::RunAny(tasks);
  co_return WhenAnyResult<internal::TaskResult<T>>{winner, internal::TakeTaskResult(tasks[winner])};
}

template <internal::TaskSource A>
VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS auto WhenAny(std::vector<A> awaitables) {
  return WhenAny(internal::ToTasks(std::move(awaitables)));
}

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_CORO_WHEN_ANY_H_
