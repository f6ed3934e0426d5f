// Spawned Tasks and posted functions run in order in the executor's turns. Those that are left are
// destroyed with the executor, each exactly once.

#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport/base/captured_log.h"
#include "tests/transport/executor/test_support.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/spawn.h"

namespace verbena::internal {
namespace root_task_test {

using testing::ElementsAre;
using testing::HasSubstr;

class RootTaskTest : public testing::Test {
 protected:
  std::unique_ptr<Executor> executor_ = *Executor::Create({.waiter = WaiterKind::kEpoll});
};

// Notes on which scheduler it is destroyed.
class Guard {
 public:
  explicit Guard(std::vector<Scheduler*>& destroyed) : destroyed_(&destroyed) {}
  Guard(Guard&& other) noexcept : destroyed_(std::exchange(other.destroyed_, nullptr)) {}
  Guard& operator=(Guard&&) = delete;
  ~Guard() {
    if (destroyed_ != nullptr) destroyed_->push_back(Scheduler::Current());
  }

 private:
  std::vector<Scheduler*>* destroyed_;
};

Task<void> Hold(Guard guard, bool& started) {
  started = true;
  static_cast<void>(co_await SleepUntil(kNever));
}

Task<void> Finish(Guard guard, bool& started) {
  started = true;
  co_return;
}

TEST_F(RootTaskTest, ASpawnedTaskStartsInATurnAndIsDestroyedAtItsEnd) {
  std::vector<Scheduler*> destroyed;
  bool started = false;
  Spawn(*executor_, Finish(Guard(destroyed), started));
  EXPECT_FALSE(started);
  executor_->Poll();
  EXPECT_TRUE(started);
  EXPECT_THAT(destroyed, ElementsAre(executor_.get()));
}

TEST_F(RootTaskTest, TasksThatHaveNotEndedAreDestroyedWithTheExecutorCurrent) {
  std::vector<Scheduler*> destroyed;
  bool started = false;
  Spawn(*executor_, Hold(Guard(destroyed), started));
  executor_->Poll();
  EXPECT_TRUE(started);
  Scheduler* const executor = executor_.get();
  executor_.reset();
  EXPECT_THAT(destroyed, ElementsAre(executor));
}

TEST_F(RootTaskTest, TasksThatHaveNotBegunAreDestroyedUnstarted) {
  std::vector<Scheduler*> destroyed;
  bool started = false;
  Spawn(*executor_, Hold(Guard(destroyed), started));
  executor_.reset();
  EXPECT_FALSE(started);
  EXPECT_EQ(destroyed.size(), 1u);
}

TEST_F(RootTaskTest, TasksThatAnAbandonedTaskSpawnsAreDestroyedToo) {
  struct SpawnsWhenDestroyed {
    Executor& executor;
    std::vector<Scheduler*>& destroyed;
    bool& started;
    ~SpawnsWhenDestroyed() { Spawn(executor, Hold(Guard(destroyed), started)); }
  };
  static const auto run = [](Executor& executor, std::vector<Scheduler*>& destroyed,
                             bool& started) -> Task<void> {
    SpawnsWhenDestroyed spawner{executor, destroyed, started};
    static_cast<void>(co_await SleepUntil(kNever));
  };
  std::vector<Scheduler*> destroyed;
  bool started = false;
  Spawn(*executor_, run(*executor_, destroyed, started));
  executor_->Poll();
  executor_.reset();
  EXPECT_FALSE(started);
  EXPECT_EQ(destroyed.size(), 1u);
}

Task<void> Throw() {
  throw std::runtime_error("nobody catches this");
  co_return;
}

TEST_F(RootTaskTest, AnExceptionOfASpawnedTaskIsLoggedAndEndsItAlone) {
  CapturedLog log;
  Spawn(*executor_, Throw());
  executor_->Poll();
  EXPECT_THAT(log.Take(), ElementsAre(HasSubstr("nobody catches this")));
}

TEST_F(RootTaskTest, PostedFunctionsRunInOrderInBoundedTurns) {
  std::vector<int> ran;
  for (int i = 0; i < 1000; ++i) executor_->PostFunction([&ran, i] { ran.push_back(i); });
  EXPECT_TRUE(executor_->Poll());
  EXPECT_LT(ran.size(), 1000u);
  EXPECT_FALSE(executor_->Arm()) << "it would sleep with items left";
  while (executor_->Poll()) {
  }
  ASSERT_EQ(ran.size(), 1000u);
  EXPECT_TRUE(std::is_sorted(ran.begin(), ran.end()));
  EXPECT_EQ(executor_->stats().inbox_items, 1000u);
}

TEST_F(RootTaskTest, AFunctionThatNeverRanIsDestroyedUnrun) {
  auto held = std::make_shared<int>(1);
  executor_->PostFunction([held] { *held = 2; });
  EXPECT_EQ(held.use_count(), 2);
  executor_.reset();
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_EQ(*held, 1);
}

class SelfDeletingItem final : public InboxItem {
 public:
  explicit SelfDeletingItem(bool& ran) : ran_(ran) {}
  void Run() override {
    ran_ = true;
    delete this;
  }

 private:
  bool& ran_;
};

TEST_F(RootTaskTest, AnItemLeftInTheInboxStillGetsToDeleteItself) {
  bool ran = false;
  executor_->Post(*new SelfDeletingItem(ran));
  executor_.reset();
  EXPECT_TRUE(ran);
}

}  // namespace root_task_test
}  // namespace verbena::internal
