// Combinators of Tasks: WhenAll, WhenAny and ForEach, which run several Tasks at once.
//
// Each lives in the frame of the coroutine that awaits it, on that coroutine's thread and in its
// cancel scope, and ends when its Tasks have ended. What the caller passes bounds them.
//
//   precondition                         how it is checked   test
//   WhenAny() of at least one Task       a check aborts      when_test
//   ForEach() with concurrency above 0   a check aborts      for_each_test

#ifndef VERBENA_TRANSPORT_CORO_COMBINATORS_H_
#define VERBENA_TRANSPORT_CORO_COMBINATORS_H_

#include <concepts>
#include <coroutine>
#include <cstddef>
#include <exception>
#include <optional>
#include <ranges>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/export.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/generator.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/coro/sync.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

// ForEach: runs a callable for each item of a range or Generator, a bounded number at a time.
//
// `function(item)` returns a Task<absl::Status>. At most `concurrency` of these Tasks run at once,
// on the awaiting coroutine's scheduler, started in the order of the items. The first failure, a
// Status or an exception, asks the others to stop, and the callable is called no more. ForEach
// waits for all that were started, and then returns that Status or throws that exception; later
// failures are dropped.
// If the awaiting coroutine is cancelled, so are all its Tasks, and no more are started. The result
// is then the first failure of a Task, or CANCELLED (DEADLINE_EXCEEDED) if items are left over, or
// if a Generator was not asked to its end. Destroying the ForEach destroys its Tasks. Bounded by
// `concurrency`, whatever the number of items. Allocates nothing per item in steady state. A check
// aborts if `concurrency` is 0.
//
// The range and the callable live in the ForEach: pass a container to move or copy it in, or a
// std::span or another view to refer to one that lives longer. The callable gets a reference to the
// item in a container, and the item itself of a Generator or of a view that makes its items. Either
// lives until the callable's Task has ended, so the callable may take it by reference.
//
//   co_return co_await ForEach(
//       std::move(names), 16, [&](const std::string& name) -> Task<absl::Status> {
//         co_return co_await store.Remove(name);
//       });

// One ForEach under way: the Tasks that run, and the first failure. Lives in the frame of ForEach.
class VERBENA_EXPORT ForEachRun {
 public:
  ForEachRun(const TaskContext& context, size_t concurrency);

  // One permit for each Task that may run at once. Each Task holds one.
  Semaphore& places() { return places_; }
  TaskScope& scope() { return scope_; }
  CancelScope& cancel_scope() { return scope_.cancel_scope(); }

  // One of the Tasks, or the one that starts them, has ended.
  void Ended(absl::Status status);
  // One of them has ended by the exception that is being handled.
  void Threw();

  // The result, when all have ended. Throws the exception that came first.
  absl::Status TakeResult();

 private:
  bool failed() const { return !failure_.ok() || exception_ != nullptr; }
  void StopOthers();

  Semaphore places_;  // outlives the Tasks, which hold it
  TaskScope scope_;
  absl::Status failure_;
  std::exception_ptr exception_;
};

// The callable's argument for an item of a range: a reference to the item if it stays where it is.
template <typename Range>
using ForEachItem =
    std::conditional_t<std::ranges::forward_range<Range> &&
                           std::is_lvalue_reference_v<std::ranges::range_reference_t<Range>>,
                       std::ranges::range_reference_t<Range>, std::ranges::range_value_t<Range>>;

template <typename Function, typename Item>
concept ForEachFunction =
    TaskFunction<Function, Item> && std::same_as<TaskFunctionResult<Function, Item>, absl::Status>;

// Runs the callable for one item. Holds the permit that was acquired for it, and the item if `Item`
// is no reference.
template <typename Item, typename Function>
Task<void> RunForItem(ForEachRun& run, Function& function, Item item) {
  const SemaphoreHold place(run.places());
  // The first failure may have come since this was queued.
  if (run.cancel_scope().requested()) {
    run.Ended(run.cancel_scope().status());
    co_return;
  }
  try {
    run.Ended(co_await function(std::forward<Item>(item)));
  } catch (...) {
    run.Threw();
  }
}

template <typename Range, typename Function>
Task<absl::Status> StartForEach(ForEachRun& run, Range& range, Function& function) {
  const auto end = std::ranges::end(range);
  for (auto at = std::ranges::begin(range); at != end; ++at) {
    VERBENA_CO_RETURN_IF_ERROR(co_await run.places().Acquire());
    run.scope().Spawn(RunForItem<ForEachItem<Range>>(run, function, *at));
  }
  co_return absl::OkStatus();
}

template <typename T, typename Function>
Task<absl::Status> StartForEach(ForEachRun& run, Generator<T>& items, Function& function) {
  for (;;) {
    VERBENA_CO_RETURN_IF_ERROR(co_await run.places().Acquire());
    std::optional<T> item = co_await items.Next();
    // First: a Generator may end because it was cancelled, and that is no success.
    VERBENA_CO_RETURN_IF_ERROR(run.cancel_scope().status());
    if (!item) co_return absl::OkStatus();
    run.scope().Spawn(RunForItem<T>(run, function, *std::move(item)));
  }
}

template <typename Items, typename Function>
Task<absl::Status> RunForEach(Items items, size_t concurrency, Function function) {
  ForEachRun run(co_await CurrentContext(), concurrency);
  try {
    run.Ended(co_await StartForEach(run, items, function).In(&run.cancel_scope()));
  } catch (...) {
    run.Threw();
  }
  co_await run.scope().Join();
  co_return run.TakeResult();
}

}  // namespace verbena::internal

namespace verbena {

template <std::ranges::input_range Range, typename Function>
  requires std::movable<Range> && internal::ForEachFunction<Function, internal::ForEachItem<Range>>
VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS Task<absl::Status> ForEach(Range range,
                                                                            size_t concurrency,
                                                                            Function function) {
  return internal::RunForEach(std::move(range), concurrency, std::move(function));
}

template <typename T, internal::ForEachFunction<T> Function>
VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS Task<absl::Status> ForEach(Generator<T> items,
                                                                            size_t concurrency,
                                                                            Function function) {
  return internal::RunForEach(std::move(items), concurrency, std::move(function));
}

}  // namespace verbena

namespace verbena::internal {

// The result of the Task of one of our own awaits: the await, which has ended, and whose result
// nobody has taken.
template <typename A>
struct KeptAwait {
  A* await = nullptr;
};

// Where such a Task has its await. A parameter of the coroutine, so it lasts as long as the frame.
template <typename Parts>
class AwaitPlace {
 public:
  using Await = typename Parts::Await;

  explicit AwaitPlace(Parts parts) : parts_(std::move(parts)) {}
  // Before the await is made.
  AwaitPlace(AwaitPlace&& other) noexcept : parts_(std::move(other.parts_)) {}
  AwaitPlace& operator=(AwaitPlace&&) = delete;

  // Makes the await, and waits as it does, but leaves its result in it.
  class Awaiter final {
   public:
    explicit Awaiter(AwaitPlace& place)
        : place_(place), await_(std::move(place.parts_).MakeIn(place.await_)) {}
    Awaiter(const Awaiter&) = delete;
    Awaiter& operator=(const Awaiter&) = delete;
    // Destroyed while it waits, the await must go before the coroutine's promise, which it uses.
    ~Awaiter() {
      if (!ended_) place_.await_.reset();
    }

    bool await_ready() const { return await_.await_ready(); }
    template <typename Promise>
      requires std::derived_from<Promise, PromiseBase>
    auto await_suspend(std::coroutine_handle<Promise> coroutine) {
      return await_.await_suspend(coroutine);
    }
    KeptAwait<Await> await_resume() {
      ended_ = true;
      return {&await_};
    }

   private:
    AwaitPlace& place_;
    Await& await_;
    bool ended_ = false;
  };

 private:
  Parts parts_;
  std::optional<Await> await_;
};

template <typename Parts>
Task<KeptAwait<typename Parts::Await>> KeepAwait(AwaitPlace<Parts> place) {
  co_return co_await typename AwaitPlace<Parts>::Awaiter(place);
}

// ToTask() for WhenAll and WhenAny, which take results only when all have ended. Until then one of
// our own awaits keeps what it got (an item of a Queue, permits of a Semaphore), and gives it back
// if it is destroyed: it has lost, or WhenAll was destroyed.
template <typename A>
  requires TaskOrSource<std::remove_cvref_t<A>>
VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS auto ToKeptTask(A&& awaitable) {
  if constexpr (OwnAwait<std::remove_cvref_t<A>> && !std::is_lvalue_reference_v<A>) {
    return KeepAwait(AwaitPlace(PartsAccess::Of(std::forward<A>(awaitable))));
  } else {
    return ToTask(std::forward<A>(awaitable));
  }
}

template <typename T>
struct ResultOfTask {
  using type = T;
};
template <>
struct ResultOfTask<void> {
  using type = std::monostate;
};
template <typename A>
struct ResultOfTask<KeptAwait<A>> : ResultOfTask<typename A::value_type> {};

// A Task's result as a value: std::monostate stands for void.
template <typename T>
using TaskResult = typename ResultOfTask<T>::type;

// The result of a Task that has ended; throws the Task's exception if there is one.
template <typename T>
TaskResult<T> TakeTaskResult(Task<T>& task) {
  if constexpr (std::is_void_v<T>) {
    task.TakeResult();
    return {};
  } else {
    return task.TakeResult();
  }
}

template <typename A>
TaskResult<KeptAwait<A>> TakeTaskResult(Task<KeptAwait<A>>& task) {
  A& await = *task.TakeResult().await;
  if constexpr (std::is_void_v<typename A::value_type>) {
    await.await_resume();
    return {};
  } else {
    return await.await_resume();
  }
}

template <TaskSource A>
std::vector<Task<typename A::value_type>> ToTasks(std::vector<A> awaitables) {
  std::vector<Task<typename A::value_type>> tasks;
  tasks.reserve(awaitables.size());
  for (A& awaitable : awaitables) tasks.push_back(ToTask(std::move(awaitable)));
  return tasks;
}

// TaskGroup: the await that WhenAll and WhenAny share, in which several Tasks run at once.
//
// Lives in the frame of the coroutine that owns the Tasks, so destroying that coroutine destroys
// the Tasks. Tasks start inline, in order, each up to its first suspension; the coroutine goes on,
// through the scheduler, when all that were started have ended. One thread; allocates nothing.
class TaskGroup : public TaskListener {
 public:
  TaskGroup() = default;
  TaskGroup(const TaskGroup&) = delete;
  TaskGroup& operator=(const TaskGroup&) = delete;

 protected:
  // Counts the await itself as running until Seal(), because Tasks that end at once must not end
  // the await early.
  void Open(PromiseBase& parent) {
    VERBENA_DCHECK(running_ == 0) << running_ << " Tasks of an earlier await still run";
    parent_ = &parent;
    running_ = 1;
  }
  template <typename T>
  void StartTask(Task<T>& task, CancelScope* cancel) {
    ++running_;
    task.Start(*parent_->scheduler, cancel, this);
  }
  // All Tasks are started. Returns whether the coroutine must suspend.
  bool Seal() { return --running_ != 0; }

  void OneEnded() {
    VERBENA_DCHECK(running_ > 0) << "more Tasks ended than were started";
    if (--running_ == 0) parent_->scheduler->Ready(*parent_);
  }

 private:
  PromiseBase* parent_ = nullptr;
  size_t running_ = 0;
};

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

}  // namespace verbena::internal

namespace verbena {

// WhenAll: runs several Tasks at once and gives all their results, in order.
//
// The Tasks run in the awaiting coroutine's cancel scope and are always awaited to their end, also
// when one fails: a failed Status is a result like any other. If Tasks throw, the exception of the
// first in order comes out. Destroying the WhenAll destroys them.
//
// What a Pop(), Acquire() or Lock() got while others still run goes back if the WhenAll is
// destroyed.
//
//   auto [a, b] = co_await WhenAll(stub.Get(first), stub.Get(second));
//   auto [lock, slept] = co_await WhenAll(mutex.Lock(), Sleep(5ms));
//   std::vector<absl::Status> sent = co_await WhenAll(std::move(sends));
//
// std::monostate stands for the result of a Task<void>.
template <typename... T>
Task<std::tuple<internal::TaskResult<T>...>> WhenAll(Task<T>... tasks) {
  co_await internal::AllAwaiter([&tasks...](auto start) { (start(tasks), ...); });
  // In braces, so that they are taken in order.
  co_return std::tuple<internal::TaskResult<T>...>{internal::TakeTaskResult(tasks)...};
}

// For arguments of which some are stubs' calls or awaits such as Queue::Pop().
template <typename... A>
  requires(internal::TaskOrSource<std::remove_cvref_t<A>> && ...) &&
          (internal::TaskSource<std::remove_cvref_t<A>> || ...)
VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS auto WhenAll(A&&... awaitables) {
  return WhenAll(internal::ToKeptTask(std::forward<A>(awaitables))...);
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

// WhenAny: runs several Tasks at once, until the first of them has ended.
//
// The first to end, in whatever way, wins. The others are asked to stop and are awaited to their
// end; then they are destroyed, and their results and exceptions are dropped. A loser that ignores
// the request delays its caller. If a Task ends while the Tasks are being started, those after it
// never start. If the winner threw, its exception comes out. Destroying the WhenAny destroys all
// its Tasks.
//
// A Pop(), Acquire() or Lock() that loses takes nothing, even if it could have gone on in the same
// turn: the item stays in the Queue, and permits go to the next waiter. A Task that has taken an
// item, and loses then, drops it with its result.
//
//   auto first = co_await WhenAny(stub.Get(request), Hedge(stub, request));
//   if (first.index() == 0) …
//   auto next = co_await WhenAny(changes.Pop(), stopped.Wait());
//   auto [index, reply] = co_await WhenAny(std::move(gets));

// Which of a vector's Tasks won, and its result.
template <typename T>
struct WhenAnyResult {
  size_t index = 0;
  T result;
};

}  // namespace verbena

namespace verbena::internal {

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
  size_t await_resume() noexcept {
    VERBENA_DCHECK(winner_.has_value()) << "all Tasks have ended, and none came first";
    // Others may wait for what a loser has got.
    size_t index = 0;
    for_each_([&](auto& task) {
      if (index++ != *winner_) task = std::remove_reference_t<decltype(task)>();
    });
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
      VERBENA_DCHECK(winner_.has_value()) << "none of " << index << " Tasks is done";
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
  VERBENA_CHECK(!tasks.empty()) << "WhenAny of no Tasks would never end";
  return AnyAwaiter([&tasks](auto visit) {
    for (Task<T>& task : tasks) visit(task);
  });
}

}  // namespace verbena::internal

namespace verbena {

// The variant's index() tells the winner. std::monostate stands for the result of a Task<void>.
template <typename... T>
  requires(sizeof...(T) > 0)
Task<std::variant<internal::TaskResult<T>...>> WhenAny(Task<T>... tasks) {
  const size_t winner =
      co_await internal::AnyAwaiter([&tasks...](auto visit) { (visit(tasks), ...); });
  co_return internal::TakeWinner<0, std::variant<internal::TaskResult<T>...>>(winner, tasks...);
}

// For arguments of which some are stubs' calls or awaits such as Queue::Pop().
template <typename... A>
  requires(internal::TaskOrSource<std::remove_cvref_t<A>> && ...) &&
          (internal::TaskSource<std::remove_cvref_t<A>> || ...)
VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS auto WhenAny(A&&... awaitables) {
  return WhenAny(internal::ToKeptTask(std::forward<A>(awaitables))...);
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

#endif  // VERBENA_TRANSPORT_CORO_COMBINATORS_H_
