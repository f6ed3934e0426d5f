// Tasks use bounded stack, however many are awaited or nested. A Task may be destroyed at any
// point, with all that it awaits, and does not run afterwards. Misuse aborts.

#include "verbena/transport/coro/task.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "gtest/gtest.h"
#include "tests/support/manual_scheduler.h"
#include "tests/transport/coro/started.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/combinators.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/coro/sync.h"

namespace verbena::internal {
namespace task_test {

constexpr int kMillion = 1'000'000;

// How far the stack reached below where it started.
class StackWatch {
 public:
  [[gnu::noinline]] void Look() {
    const auto here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
    if (here < lowest_) lowest_ = here;
    if (here > highest_) highest_ = here;
  }
  size_t depth() const { return highest_ - lowest_; }

 private:
  uintptr_t lowest_ = UINTPTR_MAX;
  uintptr_t highest_ = 0;
};

// The stack that one nested resumption may use, at -O0 under a sanitizer.
constexpr size_t kFewFrames = 8 * 1024;

Task<int> Immediate(int value) { co_return value; }

Task<int> SumOfImmediates(StackWatch& stack) {
  int sum = 0;
  for (int i = 0; i < kMillion; ++i) {
    stack.Look();
    sum += co_await Immediate(1);
  }
  co_return sum;
}

TEST(TaskStackTest, MillionImmediatelyReadyTasksDoNotGrowTheStack) {
  ManualScheduler scheduler;
  StackWatch stack;
  EXPECT_EQ(scheduler.Run(SumOfImmediates(stack)), kMillion);
  EXPECT_LT(stack.depth(), kFewFrames);
}

Task<void> MillionReadyAwaits(StackWatch& stack, Event& event, Semaphore& semaphore) {
  for (int i = 0; i < kMillion / 4; ++i) {
    stack.Look();
    if (!(co_await event.Wait()).ok()) co_return;
    stack.Look();
    if (!(co_await semaphore.Acquire()).ok()) co_return;
    semaphore.Release();
    co_await WhenAll(Immediate(1), Immediate(2));
    stack.Look();
    co_await WhenAny(Immediate(1), Immediate(2));
  }
}

TEST(TaskStackTest, MillionReadyPrimitivesDoNotGrowTheStack) {
  ManualScheduler scheduler;
  StackWatch stack;
  Event event;
  event.Set();
  Semaphore semaphore(1);
  scheduler.Run(MillionReadyAwaits(stack, event, semaphore));
  EXPECT_LT(stack.depth(), kFewFrames);
}

Task<int> Nested(int levels, StackWatch& stack) {
  stack.Look();
  if (levels == 0) co_return 0;
  const int below = co_await Nested(levels - 1, stack);
  stack.Look();
  co_return below + 1;
}

TEST(TaskStackTest, DeeplyNestedTasksUseNoStackOnTheWayDownOrUp) {
  ManualScheduler scheduler;
  StackWatch stack;
  EXPECT_EQ(scheduler.Run(Nested(100'000, stack)), 100'000);
  EXPECT_LT(stack.depth(), kFewFrames);
}

Task<void> NestedWait(int levels, Event& event) {
  if (levels == 0) {
    (co_await event.Wait()).IgnoreError();
  } else {
    co_await NestedWait(levels - 1, event);
  }
}

TEST(TaskStackTest, AbandoningTenThousandNestedTasksFitsTheStack) {
  ManualScheduler scheduler;
  Event event;
  Started waiting(scheduler, NestedWait(10'000, event));
  waiting.Abandon();
  event.Set();
  EXPECT_EQ(scheduler.RunUntilIdle(), 0u);
}

Task<int> YieldingSum(StackWatch& stack) {
  int sum = 0;
  for (int i = 0; i < kMillion / 10; ++i) {
    stack.Look();
    if ((co_await Yield()).ok()) ++sum;
  }
  co_return sum;
}

TEST(TaskStackTest, YieldDoesNotGrowTheStack) {
  ManualScheduler scheduler;
  StackWatch stack;
  EXPECT_EQ(scheduler.Run(YieldingSum(stack)), kMillion / 10);
  EXPECT_LT(stack.depth(), kFewFrames);
}

Task<int> MarkStarted(bool& started) {
  started = true;
  co_return 1;
}

TEST(TaskTest, RunsOnlyWhenStarted) {
  ManualScheduler scheduler;
  bool started = false;
  {
    Task<int> never = MarkStarted(started);
    EXPECT_FALSE(never.done());
  }
  EXPECT_FALSE(started);
  EXPECT_EQ(scheduler.Run(MarkStarted(started)), 1);
  EXPECT_TRUE(started);
}

TEST(TaskTest, StartLaterNeverRunsInline) {
  ManualScheduler scheduler;
  bool started = false;
  Task<int> task = MarkStarted(started);
  task.StartLater(scheduler, nullptr, nullptr);
  EXPECT_FALSE(started);
  scheduler.RunUntilIdle();
  EXPECT_TRUE(started);
  EXPECT_TRUE(task.done());
}

TEST(TaskTest, MovedFromTaskIsEmptyAndAssignmentDestroysTheOldOne) {
  auto kept = std::make_shared<int>(7);
  auto hold = [](std::shared_ptr<int> value) -> Task<int> { co_return *value; };
  Task<int> first = hold(kept);
  Task<int> second = std::move(first);
  EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move)
  EXPECT_TRUE(second);
  EXPECT_EQ(kept.use_count(), 2);
  second = Task<int>();
  EXPECT_EQ(kept.use_count(), 1);
}

Task<std::unique_ptr<std::string>> MoveOnly() { co_return std::make_unique<std::string>("moved"); }
Task<std::pair<int, int>> Braced() { co_return {1, 2}; }

TEST(TaskTest, ResultsMayBeMoveOnlyOrBraced) {
  ManualScheduler scheduler;
  EXPECT_EQ(*scheduler.Run(MoveOnly()), "moved");
  EXPECT_EQ(scheduler.Run(Braced()), (std::pair{1, 2}));
}

Task<int> Throwing() {
  if ((co_await Yield()).ok()) throw std::runtime_error("inner");
  co_return 0;
}
Task<std::string> Catching() {
  try {
    co_await Throwing();
  } catch (const std::runtime_error& error) {
    co_return std::string("caught ") + error.what();
  }
  co_return "not thrown";
}
Task<int> Passing() { co_return co_await Throwing(); }

TEST(TaskTest, ExceptionComesOutOfTheAwait) {
  ManualScheduler scheduler;
  EXPECT_EQ(scheduler.Run(Catching()), "caught inner");
  EXPECT_THROW((void)scheduler.Run(Passing()), std::runtime_error);
}

class DestroyOnDone final : public TaskListener {
 public:
  Task<void> task;
  bool done = false;

 private:
  void OnTaskDone() override {
    done = true;
    task = Task<void>();
  }
};

Task<void> WaitFor(Event& event, std::shared_ptr<int> held) {
  absl::Status waited = co_await event.Wait();
  *held += waited.ok() ? 1 : 100;
}

TEST(TaskTest, MayBeDestroyedInsideItsCompletion) {
  ManualScheduler scheduler;
  Event event;
  auto held = std::make_shared<int>(0);
  DestroyOnDone owner;
  owner.task = WaitFor(event, held);
  owner.task.Start(scheduler, nullptr, &owner);
  event.Set();
  scheduler.RunUntilIdle();
  EXPECT_TRUE(owner.done);
  EXPECT_EQ(*held, 1);
  EXPECT_EQ(held.use_count(), 1);
}

TEST(TaskTest, EndingInsideStartCompletesBeforeItReturns) {
  ManualScheduler scheduler;
  Event event;
  event.Set();
  Started ended(scheduler, WaitFor(event, std::make_shared<int>(0)));
  EXPECT_TRUE(ended.done());
}

TEST(TaskTest, DestroyedWhileInTheReadyQueueNeverRuns) {
  ManualScheduler scheduler;
  Event event;
  auto held = std::make_shared<int>(0);
  Started first(scheduler, WaitFor(event, held));
  Started second(scheduler, WaitFor(event, held));
  event.Set();  // both are ready, neither has run
  first.Abandon();
  EXPECT_EQ(scheduler.RunUntilIdle(), 1u);
  EXPECT_EQ(*held, 1);
  EXPECT_TRUE(second.done());
}

TEST(TaskTest, DestroyedBeforeAQueuedStartNeverRuns) {
  ManualScheduler scheduler;
  bool started = false;
  {
    Task<int> task = MarkStarted(started);
    task.StartLater(scheduler, nullptr, nullptr);
  }
  EXPECT_EQ(scheduler.RunUntilIdle(), 0u);
  EXPECT_FALSE(started);
}

Task<void> DestroyOther(std::optional<Started<void>>& other) {
  if ((co_await Yield()).ok()) other.reset();
}

TEST(TaskTest, OneReadyTaskMayDestroyTheNextReadyOne) {
  ManualScheduler scheduler;
  Event event;
  auto held = std::make_shared<int>(0);
  std::optional<Started<void>> victim;
  Started killer(scheduler, DestroyOther(victim));  // first in the queue
  victim.emplace(scheduler, WaitFor(event, held));
  event.Set();
  scheduler.RunUntilIdle();
  EXPECT_TRUE(killer.done());
  EXPECT_EQ(*held, 0);
  EXPECT_EQ(held.use_count(), 1);
}

Task<void> Outer(Event& event, std::shared_ptr<int> held) {
  co_await WaitFor(event, held);
  *held += 10;
}

TEST(TaskTest, AbandoningDestroysTheWholeChainOfAwaits) {
  ManualScheduler scheduler;
  Event event;
  auto held = std::make_shared<int>(0);
  Started waiting(scheduler, Outer(event, held));
  EXPECT_EQ(held.use_count(), 3);
  waiting.Abandon();
  EXPECT_EQ(held.use_count(), 1);
  event.Set();
  scheduler.RunUntilIdle();
  EXPECT_EQ(*held, 0);
}

TEST(TaskTest, UnstartedTaskIsFreedOnAnotherThread) {
  for (int round = 0; round < 100; ++round) {
    Task<int> task = Immediate(round);
    std::thread([moved = std::move(task)]() mutable { moved = Task<int>(); }).join();
  }
}

TEST(TaskTest, EndedTaskIsFreedOnAnotherThread) {
  ManualScheduler scheduler;
  for (int round = 0; round < 100; ++round) {
    Task<int> task = Immediate(round);
    task.Start(scheduler, nullptr, nullptr);
    int result = -1;
    std::thread([&result, moved = std::move(task)]() mutable {
      result = moved.TakeResult();
      moved = Task<int>();
    }).join();
    EXPECT_EQ(result, round);
  }
}

Task<absl::StatusCode> ScopeOfThis() {
  const TaskContext context = co_await CurrentContext();
  co_return context.cancel == nullptr ? absl::StatusCode::kOk : context.cancel->reason();
}
Task<absl::StatusCode> ScopeBelow(CancelScope* scope) {
  co_return co_await ScopeOfThis().In(scope);
}

TEST(TaskTest, InheritsTheScopeOfItsAwaiterUnlessGivenAnother) {
  ManualScheduler scheduler;
  CancelScope cancelled;
  cancelled.Request();
  CancelScope other;
  other.Request(absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(scheduler.Run(ScopeOfThis(), &cancelled), absl::StatusCode::kCancelled);
  EXPECT_EQ(scheduler.Run(ScopeBelow(&other), &cancelled), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(scheduler.Run(ScopeBelow(nullptr), &cancelled), absl::StatusCode::kOk);
}

#if defined(__clang__)
struct alignas(128) TwoLines {
  bool Aligned() const {
    uintptr_t address = 0;
    // Not to be derived from the type.
    const TwoLines* self = this;
    asm volatile("" : "=r"(address) : "0"(self));
    return address % alignof(TwoLines) == 0;
  }
  char bytes[128];
};

Task<bool> KeepsAligned(TwoLines parameter, int depth) {
  alignas(64) char local[64];
  TwoLines more;
  const auto aligned = [&] {
    uintptr_t address = 0;
    asm volatile("" : "=r"(address) : "0"(local));
    return address % 64 == 0 && more.Aligned() && parameter.Aligned();
  };
  const bool before = aligned();
  (void)co_await Yield();
  const bool below = depth == 0 || co_await KeepsAligned(parameter, depth - 1);
  co_return before&& aligned() && below;
}

TEST(TaskTest, OverAlignedVariablesAreAligned) {
  ManualScheduler scheduler;
  EXPECT_TRUE(scheduler.Run(KeepsAligned(TwoLines(), 20)));
}

Task<TwoLines> MakeAligned() { co_return TwoLines(); }

TEST(TaskTest, OverAlignedResultsAreAligned) {
  ManualScheduler scheduler;
  const auto take = []() -> Task<bool> {
    const TwoLines result = co_await MakeAligned();
    co_return result.Aligned();
  };
  EXPECT_TRUE(scheduler.Run(take()));
}
#else
TEST(TaskTest, OverAlignedVariablesAreAligned) {
  GTEST_SKIP()
      << "gcc aligns coroutines to 16 bytes. It refuses over-aligned parameters and "
         "results (tests/repository/compiler_test.py), and does not see over-aligned locals";
}
#endif

TEST(TaskDeathTest, AwaitingAnEmptyTaskAborts) {
  ManualScheduler scheduler;
  const auto await_empty = []() -> Task<void> { co_await Task<void>(); };
  EXPECT_DEATH(scheduler.Run(await_empty()), "a Task was awaited that is empty");
}

TEST(TaskDeathTest, StartingATaskTwiceAborts) {
  ManualScheduler scheduler;
  const auto wait = []() -> Task<void> { (void)co_await Yield(); };
  Task<void> task = wait();
  task.Start(scheduler, nullptr, nullptr);
  EXPECT_DEATH(task.Start(scheduler, nullptr, nullptr), "started twice");
}

TEST(TaskDeathTest, AwaitingATaskTwiceAborts) {
  ManualScheduler scheduler;
  const auto retry = []() -> Task<absl::Status> { co_return absl::UnavailableError("again"); };
  const auto loop = [&]() -> Task<void> {
    Task<absl::Status> attempt = retry();
    while (!(co_await std::move(attempt)).ok()) {
    }
  };
  EXPECT_DEATH(scheduler.Run(loop()), "a Task was awaited or started twice");
}

TEST(TaskDeathTest, AskingAnEmptyTaskAborts) {
  Task<int> empty;
  EXPECT_DEATH((void)empty.done(), "an empty Task neither runs nor ends");
  EXPECT_DEATH((void)empty.TakeResult(), "an empty Task neither runs nor ends");
}

TEST(TaskDeathTest, TakingTheResultOfATaskThatStillRunsAborts) {
  ManualScheduler scheduler;
  const auto wait = []() -> Task<void> { (void)co_await Yield(); };
  Started<void> waiting(scheduler, wait());
  EXPECT_DEATH(waiting.result(), "taken before it ended");
}

TEST(TaskTest, ContextNamesTheScheduler) {
  ManualScheduler scheduler;
  auto get = []() -> Task<Scheduler*> { co_return (co_await CurrentContext()).scheduler; };
  EXPECT_EQ(scheduler.Run(get()), &scheduler);
}

}  // namespace task_test
}  // namespace verbena::internal
