// A program that waits in every way there is loses, leaks and leaves behind nothing, at whichever
// step it is destroyed, cancelled, or both.

#include <chrono>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/support/manual_scheduler.h"
#include "tests/transport/coro/started.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/combinators.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/generator.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/coro/sync.h"

namespace verbena::internal {
namespace every_await_test {

using namespace std::chrono_literals;

constexpr size_t kPermits = 3;
constexpr int kItems = 4;

// The objects that the program waits on. They outlive the program.
struct World {
  Event event;
  Semaphore semaphore{kPermits};
  Mutex mutex;
  Queue<std::shared_ptr<int>> queue{1};
  // Every live coroutine and item holds it.
  std::shared_ptr<int> token = std::make_shared<int>(0);
  int pushed = 0;
  int popped = 0;
  bool finished = false;
};

Task<absl::Status> Produce(World& world, std::shared_ptr<int> token) {
  for (int i = 0; i < kItems; ++i) {
    VERBENA_CO_RETURN_IF_ERROR(co_await world.queue.Push(token));
    ++world.pushed;
  }
  co_return absl::OkStatus();
}

Task<absl::Status> Consume(World& world, std::shared_ptr<int> token) {
  for (int i = 0; i < kItems / 2; ++i) {
    VERBENA_CO_ASSIGN_OR_RETURN(std::shared_ptr<int> item, co_await world.queue.Pop());
    ++world.popped;
    VERBENA_CO_RETURN_IF_ERROR(co_await Yield());
  }
  co_return absl::OkStatus();
}

Task<absl::Status> UsePermits(World& world, size_t permits, std::shared_ptr<int> token) {
  VERBENA_CO_RETURN_IF_ERROR(co_await world.semaphore.Acquire(permits));
  SemaphoreHold hold(world.semaphore, permits);
  co_return co_await Sleep(1ms);
}

Task<absl::Status> WaitForEvent(World& world, std::shared_ptr<int> token) {
  co_return co_await world.event.Wait();
}

Task<void> SetAfter(World& world, Duration delay, std::shared_ptr<int> token) {
  if ((co_await Sleep(delay)).ok()) world.event.Set();
}

Task<absl::Status> InScope(World& world, std::shared_ptr<int> token) {
  TaskScope scope(co_await CurrentContext());
  scope.Spawn(SetAfter(world, 3ms, token));
  // NOLINTBEGIN(cppcoreguidelines-avoid-capturing-lambda-coroutines): Spawn keeps the captures
  scope.Spawn(
      [&world, token]() -> Task<void> { (co_await UsePermits(world, 2, token)).IgnoreError(); });
  // NOLINTEND(cppcoreguidelines-avoid-capturing-lambda-coroutines)
  co_await scope.Join();
  co_return co_await Yield();
}

Task<absl::Status> LockAndYield(World& world, std::shared_ptr<int> token) {
  VERBENA_CO_ASSIGN_OR_RETURN(const MutexLock lock, co_await world.mutex.Lock());
  co_return co_await Yield();
}

Generator<absl::StatusOr<int>> Scan(World& world, std::shared_ptr<int> token) {
  for (int i = 0; i < 3; ++i) {
    if (absl::Status slept = co_await Sleep(100us); !slept.ok()) {
      co_yield slept;
      co_return;
    }
    co_yield i;
  }
}

Task<absl::Status> ConsumeScan(World& world, std::shared_ptr<int> token) {
  Generator<absl::StatusOr<int>> items = Scan(world, token);
  while (std::optional<absl::StatusOr<int>> item = co_await items.Next()) {
    VERBENA_CO_RETURN_IF_ERROR(item->status());
    VERBENA_CO_RETURN_IF_ERROR(co_await LockAndYield(world, token));
  }
  co_return absl::OkStatus();
}

Task<absl::Status> LockForEach(World& world, std::shared_ptr<int> token) {
  // NOLINTBEGIN(cppcoreguidelines-avoid-capturing-lambda-coroutines): ForEach keeps the captures
  const auto lock = [&world, token](const absl::StatusOr<int>& item) -> Task<absl::Status> {
    VERBENA_CO_RETURN_IF_ERROR(item.status());
    co_return co_await LockAndYield(world, token);
  };
  // NOLINTEND(cppcoreguidelines-avoid-capturing-lambda-coroutines)
  std::vector<absl::StatusOr<int>> items{1, 2, 3};
  VERBENA_CO_RETURN_IF_ERROR(co_await ForEach(std::move(items), 2, lock));
  co_return co_await ForEach(Scan(world, token), 2, lock);
}

// Awaits without Tasks of their own. They hold what they got until the others have ended.
Task<absl::Status> AwaitAtOnce(World& world, std::shared_ptr<int> token) {
  world.event.Reset();
  auto [acquired, locked, slept] =
      co_await WhenAll(world.semaphore.Acquire(2), world.mutex.Lock(), Sleep(1ms));
  std::optional<SemaphoreHold> hold;
  if (acquired.ok()) hold.emplace(world.semaphore, 2);
  VERBENA_CO_RETURN_IF_ERROR(acquired);
  VERBENA_CO_RETURN_IF_ERROR(locked.status());
  VERBENA_CO_RETURN_IF_ERROR(slept);
  auto first = co_await WhenAny(world.event.Wait(), world.semaphore.Acquire(2), Sleep(300us));
  if (first.index() == 1 && std::get<1>(first).ok()) world.semaphore.Release(2);
  VERBENA_CO_RETURN_IF_ERROR(std::visit([](const absl::Status& status) { return status; }, first));
  const absl::Status late = co_await WithDeadline(world.event.Wait(), 200us);
  co_return absl::IsDeadlineExceeded(late) ? absl::OkStatus() : late;
}

Task<absl::Status> Program(World& world, std::shared_ptr<int> token) {
  auto [produced, one, two, permits, scoped] =
      co_await WhenAll(Produce(world, token), Consume(world, token), Consume(world, token),
                       UsePermits(world, 3, token), InScope(world, token));
  for (const absl::Status& status : {produced, one, two, permits, scoped}) {
    VERBENA_CO_RETURN_IF_ERROR(status);
  }
  world.event.Reset();
  auto first = co_await WhenAny(UsePermits(world, 1, token), WaitForEvent(world, token),
                                WithDeadline(WaitForEvent(world, token), 500us));
  const absl::Status ended = std::visit([](const absl::Status& status) { return status; }, first);
  if (ended.code() != absl::StatusCode::kDeadlineExceeded) co_return ended;
  VERBENA_CO_RETURN_IF_ERROR(co_await UsePermits(world, kPermits, token));
  auto [scanned, locked] = co_await WhenAll(ConsumeScan(world, token), LockForEach(world, token));
  VERBENA_CO_RETURN_IF_ERROR(scanned);
  VERBENA_CO_RETURN_IF_ERROR(locked);
  VERBENA_CO_RETURN_IF_ERROR(co_await AwaitAtOnce(world, token));
  world.finished = true;
  co_return absl::OkStatus();
}

// One step: a coroutine, or else the next timers. False when nothing is left.
bool Step(ManualScheduler& scheduler) { return scheduler.RunOne() || scheduler.FireNextTimers(); }

void ExpectNothingLeft(World& world, ManualScheduler& scheduler) {
  EXPECT_EQ(scheduler.RunUntilIdle(), 0u);
  EXPECT_EQ(scheduler.timer_count(), 0u);
  EXPECT_EQ(world.semaphore.available(), kPermits);
  EXPECT_FALSE(world.mutex.locked());
  int left = 0;
  while (world.queue.TryPop()) ++left;
  EXPECT_GE(world.popped + left, world.pushed);
  EXPECT_LE(world.popped + left, kItems);
  EXPECT_EQ(world.token.use_count(), 1);
}

// Returns how many steps the program takes when nothing disturbs it.
int StepsOfTheProgram() {
  ManualScheduler scheduler;
  World world;
  Started program(scheduler, Program(world, world.token));
  int steps = 0;
  while (Step(scheduler)) ++steps;
  EXPECT_TRUE(program.done());
  EXPECT_TRUE(program.result().ok());
  EXPECT_TRUE(world.finished);
  EXPECT_EQ(world.popped, kItems);
  program.Abandon();
  ExpectNothingLeft(world, scheduler);
  return steps;
}

TEST(EveryAwaitTest, DestroyingAtEveryStepLeavesNothingBehind) {
  const int steps = StepsOfTheProgram();
  ASSERT_GT(steps, 20);
  for (int stop_at = 0; stop_at <= steps; ++stop_at) {
    SCOPED_TRACE(stop_at);
    ManualScheduler scheduler;
    World world;
    CancelScope scope;
    Started program(scheduler, Program(world, world.token), &scope);
    for (int step = 0; step < stop_at; ++step) Step(scheduler);
    program.Abandon();
    scope.Request();
    ExpectNothingLeft(world, scheduler);
  }
}

TEST(EveryAwaitTest, CancellingAtEveryStepEndsTheProgramAtOnce) {
  const int steps = StepsOfTheProgram();
  for (int stop_at = 0; stop_at < steps; ++stop_at) {
    SCOPED_TRACE(stop_at);
    ManualScheduler scheduler;
    World world;
    CancelScope scope;
    Started program(scheduler, Program(world, world.token), &scope);
    for (int step = 0; step < stop_at; ++step) Step(scheduler);
    scope.Request();
    scheduler.RunUntilIdle();  // no time passes
    ASSERT_TRUE(program.done());
    if (absl::Status ended = program.result(); !ended.ok()) {
      EXPECT_EQ(ended.code(), absl::StatusCode::kCancelled);
    }
    program.Abandon();
    ExpectNothingLeft(world, scheduler);
  }
}

TEST(EveryAwaitTest, DestroyingAtEveryStepOfACancellationLeavesNothingBehind) {
  const int steps = StepsOfTheProgram();
  for (int cancel_at = 0; cancel_at < steps; ++cancel_at) {
    for (int more = 0; more < 12; ++more) {
      SCOPED_TRACE(testing::Message() << cancel_at << " + " << more);
      ManualScheduler scheduler;
      World world;
      CancelScope scope;
      Started program(scheduler, Program(world, world.token), &scope);
      for (int step = 0; step < cancel_at; ++step) Step(scheduler);
      scope.Request();
      for (int step = 0; step < more; ++step) scheduler.RunOne();
      program.Abandon();
      ExpectNothingLeft(world, scheduler);
    }
  }
}

}  // namespace every_await_test
}  // namespace verbena::internal
