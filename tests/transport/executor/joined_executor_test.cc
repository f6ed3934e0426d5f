// A task whose executor ends is joined all the same: the handle has its result, or hears that the
// executor is gone. Nobody waits for ever.

#include <atomic>
#include <future>
#include <latch>
#include <stdexcept>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/transport/executor/slow_to_die.h"
#include "tests/transport/executor/two_executors.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/spawn.h"

// Spawn keeps a callable, and with it what it captured, as long as its Task runs.
// NOLINTBEGIN(cppcoreguidelines-avoid-capturing-lambda-coroutines)

namespace verbena::internal {
namespace joined_executor_test {

using absl::StatusCode;

using JoinedExecutorTest = TwoExecutors;

Task<int> Seven() { co_return 7; }
Task<absl::Status> SleepForEver() { co_return co_await SleepUntil(kNever); }
Task<absl::Status> SleepAndTell(std::latch& started) {
  started.count_down();
  co_return co_await SleepUntil(kNever);
}
Task<void> Throw() {
  throw std::runtime_error("thrown there");
  co_return;
}

TEST_F(JoinedExecutorTest, TheHandleOutlivesTheExecutor) {
  JoinHandle<int> handle = Spawn(other(), Seven());
  PassThrough(other());
  other_.reset();
  EXPECT_TRUE(handle.done());
  EXPECT_EQ(handle.Join(), 7);
}

TEST_F(JoinedExecutorTest, ATaskThatItsExecutorDestroysIsJoinedAsCancelled) {
  std::latch started(1);
  JoinHandle<absl::Status> running = Spawn(other(), SleepAndTell(started));
  started.wait();
  other_.reset();
  ASSERT_TRUE(running.done());
  EXPECT_EQ(running.Join().code(), StatusCode::kCancelled);
}

TEST_F(JoinedExecutorTest, ATaskThatNeverBeganIsJoinedAsCancelledWhenItsFrameIsGone) {
  std::atomic<bool> dead = false;
  auto executor = *Executor::Create({.waiter = WaiterKind::kEpoll});
  const auto keep = [](SlowToDie) -> Task<absl::StatusOr<int>> { co_return 7; };
  JoinHandle<absl::StatusOr<int>> handle = Spawn(*executor, keep(SlowToDie(dead)));
  executor.reset();
  EXPECT_TRUE(dead);
  ASSERT_TRUE(handle.done());
  EXPECT_EQ(handle.Join().status().code(), StatusCode::kCancelled);
}

TEST_F(JoinedExecutorTest, AResultThatHoldsNoStatusIsABrokenPromiseThen) {
  auto executor = *Executor::Create({.waiter = WaiterKind::kEpoll});
  JoinHandle<int> number = Spawn(*executor, Seven());
  JoinHandle<> nothing = Spawn(*executor, Throw());
  executor.reset();
  EXPECT_THROW((void)number.Join(), std::future_error);
  EXPECT_THROW(nothing.Join(), std::future_error);
}

TEST_F(JoinedExecutorTest, AJoinerHearsThatTheTasksExecutorIsGone) {
  // Driven by the test, so that the joiner is known to wait.
  const auto driven = *Executor::Create({.waiter = WaiterKind::kEpoll});
  const auto poll_all = [&] {
    while (driven->Poll()) {
    }
  };
  std::latch started(1);
  absl::Status joined;
  JoinHandle<absl::Status> handle = Spawn(other(), SleepAndTell(started));
  started.wait();
  JoinHandle<> joiner = Spawn(*driven, [&, handle = std::move(handle)]() mutable -> Task<void> {
    joined = co_await std::move(handle);
  });
  poll_all();
  other_.reset();
  poll_all();
  ASSERT_TRUE(joiner.done());
  EXPECT_EQ(joined.code(), StatusCode::kCancelled);
}

TEST_F(JoinedExecutorTest, AThreadThatJoinsHearsThatTheExecutorIsGone) {
  std::latch started(1);
  JoinHandle<absl::Status> handle = Spawn(other(), SleepAndTell(started));
  started.wait();
  std::latch joining(1);
  absl::Status joined;
  std::thread thread([&] {
    joining.count_down();
    joined = handle.Join();
  });
  joining.wait();
  other_.reset();
  thread.join();
  EXPECT_EQ(joined.code(), StatusCode::kCancelled);
}

// The thread that joins destroys the executor as soon as it has the result.
TEST_F(JoinedExecutorTest, TheExecutorMayBeDestroyedAsSoonAsTheResultIsThere) {
  for (int i = 0; i < 100; ++i) {
    auto thread = Start();
    EXPECT_EQ(Spawn(thread->executor(), Seven()).Join(), 7);
  }
}

TEST_F(JoinedExecutorTest, RequestsRacingWithTheEndOfTheExecutorLeakNothing) {
  for (int i = 0; i < 100; ++i) {
    auto executor = Start();
    JoinHandle<absl::Status> handle = Spawn(executor->executor(), SleepForEver());
    std::thread canceller([&] { handle.RequestCancel(); });
    executor.reset();
    canceller.join();
    EXPECT_EQ(handle.Join().code(), StatusCode::kCancelled);
  }
}

}  // namespace joined_executor_test
}  // namespace verbena::internal

// NOLINTEND(cppcoreguidelines-avoid-capturing-lambda-coroutines)
