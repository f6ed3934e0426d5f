// ForEach: runs a callable for each item of a range or Generator, a bounded number at a time.
//
// `function(item)` returns a Task<absl::Status>. At most `concurrency` of these Tasks run at once,
// on the awaiting coroutine's scheduler, started in the order of the items. The first failure, a
// Status or an exception, asks the others to stop, and the callable is called no more. ForEach
// waits for all that were started, and then returns that Status or throws that exception; later
// failures are dropped.
// The awaiting coroutine's cancellation reaches them all and starts no more; the result is then
// the first failure of one, or CANCELLED (DEADLINE_EXCEEDED) if items are left over, or if a
// Generator was not asked to its end. Destroying the
// ForEach destroys its Tasks. Bounded by `concurrency`, whatever the number of items. Allocates
// nothing per item in steady state. A check aborts if `concurrency` is 0.
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

#ifndef VERBENA_TRANSPORT_CORO_FOR_EACH_H_
#define VERBENA_TRANSPORT_CORO_FOR_EACH_H_

#include <concepts>
#include <cstddef>
#include <exception>
#include <optional>
#include <ranges>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "verbena/transport/base/status_macros.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/generator.h"
#include "verbena/transport/coro/semaphore.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/coro/task_function.h"
#include "verbena/transport/coro/task_scope.h"

namespace verbena {
namespace internal {

// One ForEach under way: the Tasks that run, and the first failure. Lives in its frame.
class ForEachRun {
 public:
  ForEachRun(const TaskContext& context, size_t concurrency);

  // A place among those that run at once; one is held for each Task.
  Semaphore& places() { return places_; }
  TaskScope& scope() { return scope_; }
  CancelScope& cancel_scope() { return scope_.cancel_scope(); }

  // One of the Tasks, or the one that starts them, has ended.
  void Ended(absl::Status status);
  // The same, by the exception that is being handled.
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

// Holds the place that was acquired for it, and the item if `Item` is no reference.
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

}  // namespace internal

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

#endif  // VERBENA_TRANSPORT_CORO_FOR_EACH_H_
