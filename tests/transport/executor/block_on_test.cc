// BlockOn runs a Task on its executor and returns the result to any thread. The Task and the
// executor may be destroyed as soon as BlockOn returns. Blocking an executor's thread aborts.

#include "verbena/transport/executor/spawn.h"

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/transport/executor/slow_to_die.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/executor.h"

namespace verbena {
namespace block_on_test {

class BlockOnTest : public testing::Test {
 protected:
  Executor& executor() { return thread_->executor(); }
  std::unique_ptr<ExecutorThread> thread_ = *ExecutorThread::Start({.name = "block_on_test"});
};

Task<Scheduler*> WhereItRuns() { co_return Scheduler::Current(); }

TEST_F(BlockOnTest, RunsTheTaskOnTheExecutorAndReturnsItsResult) {
  EXPECT_EQ(BlockOn(executor(), WhereItRuns()), &executor());
}

Task<std::string> AfterSuspension(std::string text) {
  absl::Status yielded = co_await Yield();
  co_return yielded.ok() ? text : yielded.ToString();
}

TEST_F(BlockOnTest, WaitsForATaskThatSuspends) {
  EXPECT_EQ(BlockOn(executor(), AfterSuspension("woken")), "woken");
}

TEST_F(BlockOnTest, ManyThreadsMayBlockAtOnce) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this] {
      for (int call = 0; call < 200; ++call) {
        ASSERT_EQ(BlockOn(executor(), AfterSuspension("woken")), "woken");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

Task<void> Throw() {
  throw std::runtime_error("thrown on the executor");
  co_return;
}

TEST_F(BlockOnTest, AnExceptionComesOutOnTheCallingThread) {
  EXPECT_THROW(BlockOn(executor(), Throw()), std::runtime_error);
}

Task<absl::StatusOr<int>> Seven() { co_return 7; }

Task<absl::Status> BlockInside(Executor& executor) {
  co_return BlockOn(executor, Seven()).status();
}

TEST(BlockOnDeathTest, BlockingAnExecutorsOwnLoopAborts) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        auto thread = ExecutorThread::Start();
        (void)BlockOn((*thread)->executor(), BlockInside((*thread)->executor()));
      },
      "BlockOn was called on an executor's thread");
}

TEST(BlockOnDeathTest, BlockingOneExecutorOnAnotherAborts) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        auto thread = ExecutorThread::Start();
        auto other = ExecutorThread::Start();
        (void)BlockOn((*thread)->executor(), BlockInside((*other)->executor()));
      },
      "BlockOn was called on an executor's thread");
}

TEST_F(BlockOnTest, TheTasksFrameIsGoneBeforeTheCallerWakes) {
  std::atomic<bool> dead = false;
  EXPECT_EQ(BlockOn(executor(), Keep(SlowToDie(dead))), 7);
  EXPECT_TRUE(dead);
}

// The thread that learns of the result destroys the executor at once: the thread that ran the Task
// must not touch what is gone by then.
TEST_F(BlockOnTest, TheExecutorMayBeDestroyedAsSoonAsTheResultIsThere) {
  for (int i = 0; i < 100; ++i) {
    auto thread = ExecutorThread::Start({.mode = ExecutorMode::kEvent});
    ASSERT_TRUE(thread.ok());
    EXPECT_TRUE(BlockOn((*thread)->executor(), Seven()).ok());
  }
}

}  // namespace block_on_test
}  // namespace verbena
