#include "verbena/transport/executor/block_on.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/executor_thread.h"

namespace verbena {
namespace {

class BlockOnTest : public testing::Test {
 protected:
  Executor& executor() { return thread_->executor(); }
  std::unique_ptr<ExecutorThread> thread_ = *ExecutorThread::Start({.name = "block_on_test"});
};

Task<Scheduler*> WhereItRuns() { co_return Scheduler::Current(); }

TEST_F(BlockOnTest, RunsTheTaskOnTheExecutorAndReturnsItsResult) {
  EXPECT_EQ(BlockOn(executor(), WhereItRuns()), &executor());
}

Task<std::string> AfterSleep(std::string text) {
  absl::Status slept = co_await Sleep(std::chrono::microseconds(200));
  co_return slept.ok() ? text : slept.ToString();
}

TEST_F(BlockOnTest, WaitsForATaskThatSuspends) {
  EXPECT_EQ(BlockOn(executor(), AfterSleep("woken")), "woken");
}

TEST_F(BlockOnTest, ManyThreadsMayBlockAtOnce) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this] {
      for (int call = 0; call < 200; ++call) {
        ASSERT_EQ(BlockOn(executor(), AfterSleep("woken")), "woken");
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

Task<absl::Status> MarkRun(bool& ran) {
  ran = true;
  co_return absl::OkStatus();
}

Task<absl::Status> BlockInside(Executor& executor, bool& ran) {
  co_return BlockOn(executor, MarkRun(ran));
}

TEST_F(BlockOnTest, IsRefusedOnAnExecutorThreadWhichItWouldBlockForever) {
  bool ran = false;
  absl::Status refused = BlockOn(executor(), BlockInside(executor(), ran));
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(ran);
}

Task<absl::StatusOr<int>> Seven() { co_return 7; }
Task<absl::Status> BlockInsideOnAnother(Executor& other) {
  co_return BlockOn(other, Seven()).status();
}

TEST_F(BlockOnTest, IsRefusedOnAnExecutorThreadForAnotherExecutorToo) {
  auto other = ExecutorThread::Start();
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(BlockOn(executor(), BlockInsideOnAnother((*other)->executor())).code(),
            absl::StatusCode::kFailedPrecondition);
}

Task<int> PlainSeven() { co_return 7; }
Task<void> BlockInsidePlain(Executor& executor) {
  BlockOn(executor, PlainSeven());
  co_return;
}

TEST(BlockOnDeathTest, ARefusalThatTheResultCannotHoldEndsTheProcess) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        auto thread = ExecutorThread::Start();
        BlockOn((*thread)->executor(), BlockInsidePlain((*thread)->executor()));
      },
      "BlockOn was called on an executor's thread");
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

}  // namespace
}  // namespace verbena
