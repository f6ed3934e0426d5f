// A Watched value wakes the coroutines that wait for it, on their own schedulers, and whoever no
// longer waits is left alone.

#include "tests/support/watched.h"

#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tests/support/manual_scheduler.h"
#include "tests/transport/coro/started.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/spawn.h"

namespace verbena::internal {
namespace watched_test {

TEST(WatchedTest, LetsAWaiterPassWhenItsConditionHolds) {
  ManualScheduler scheduler;
  Watched<int> number;
  Started waiting(scheduler, number.Until([](int n) { return n >= 2; }));
  for (int n = 0; n < 2; ++n) {
    scheduler.RunUntilIdle();
    EXPECT_FALSE(waiting.done()) << n;
    ++number;
  }
  EXPECT_FALSE(waiting.done()) << "it goes on by its scheduler alone";
  scheduler.RunUntilIdle();
  ASSERT_TRUE(waiting.done());
  EXPECT_EQ(waiting.result(), absl::OkStatus());
}

TEST(WatchedTest, DoesNotLetAConditionWaitThatHoldsAlready) {
  ManualScheduler scheduler;
  Watched<bool> open(true);
  EXPECT_TRUE(Started(scheduler, open.Until(true)).done());
}

TEST(WatchedTest, ACancelledWaitSaysWhy) {
  ManualScheduler scheduler;
  Watched<bool> open;
  CancelScope scope;
  Started waiting(scheduler, open.Until(true), &scope);
  scope.Request();
  scheduler.RunUntilIdle();
  ASSERT_TRUE(waiting.done());
  EXPECT_TRUE(absl::IsCancelled(waiting.result()));
  open = true;
}

TEST(WatchedTest, AWaiterMayBeDestroyedBeforeAndAfterTheChange) {
  ManualScheduler scheduler;
  Watched<bool> open;
  Started before(scheduler, open.Until(true));
  Started after(scheduler, open.Until(true));
  before.Abandon();
  open = true;
  after.Abandon();
  scheduler.RunUntilIdle();
}

TEST(WatchedTest, AWaiterMayBeDestroyedWithItsScheduler) {
  Watched<bool> open;
  std::optional<ManualScheduler> scheduler(std::in_place);
  std::optional<Started<absl::Status>> waiting(std::in_place, *scheduler, open.Until(true));
  waiting.reset();
  scheduler.reset();
  open = true;
}

TEST(WatchedTest, ThreadsCountTogetherAndEachChangeIsSeen) {
  constexpr int kThreads = 4;
  constexpr int kChanges = 500;
  const std::unique_ptr<ExecutorThread> executor = *ExecutorThread::Start();
  Watched<int> number;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < kChanges; ++n) ++number;
    });
  }
  EXPECT_EQ(BlockOn(executor->executor(), number.Until(kThreads * kChanges)), absl::OkStatus());
  for (std::thread& each : threads) each.join();
  EXPECT_EQ(number, kThreads * kChanges);
}

TEST(WatchedTest, TwoExecutorsWaitForEachOther) {
  const std::unique_ptr<ExecutorThread> one = *ExecutorThread::Start();
  const std::unique_ptr<ExecutorThread> other = *ExecutorThread::Start();
  constexpr int kTurns = 1000;
  Watched<int> turn;
  const auto play = [&turn](int mine) -> Task<absl::Status> {
    for (int n = mine; n < kTurns; n += 2) {
      if (absl::Status waited = co_await turn.Until(n); !waited.ok()) co_return waited;
      ++turn;
    }
    co_return absl::OkStatus();
  };
  std::thread second([&] { EXPECT_EQ(BlockOn(other->executor(), play(1)), absl::OkStatus()); });
  EXPECT_EQ(BlockOn(one->executor(), play(0)), absl::OkStatus());
  second.join();
  EXPECT_EQ(turn, kTurns);
}

}  // namespace watched_test
}  // namespace verbena::internal
