// An executor that comes late to its completions tells so before they are handled, and one that had
// nothing to do does not. Polling on takes all that is there, and ends. Driven by Poll().

#include "verbena/transport/executor/lag.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/manual_clock.h"
#include "tests/transport/executor/fake_device.h"
#include "tests/transport/executor/test_support.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/flush_queue.h"

namespace verbena::internal {
namespace lag_test {

using std::chrono::hours;
using std::chrono::milliseconds;
using testing::ElementsAre;

class Told final : public LagListener {
 public:
  void OnLag() override { ++times; }
  int times = 0;
};

class Calls final : public CompletionListener {
 public:
  void OnCompletions(const ibv_wc*, int count) override { then(count); }
  std::function<void(int)> then;
};

class Hook final : public FlushHook {
 public:
  explicit Hook(std::function<void()> then) : then_(std::move(then)) {}
  void Flush() override { then_(); }

 private:
  std::function<void()> then_;
};

class LagTest : public testing::Test {
 protected:
  LagTest() {
    executor_->WatchLag(told_);
    cq_ = *executor_->AddCq(device_, 256, noted_);
  }
  ~LagTest() override {
    EXPECT_TRUE(executor_->RemoveCq(cq_).ok());
    told_.Unlink();
  }

  // A turn that has work, which reads the clock.
  void Work() {
    executor_->PostFunction([this] { (void)executor_->now(); });
    EXPECT_TRUE(executor_->Poll());
  }
  // A turn that polls so many completions.
  void PollFor(int completions) {
    for (int i = 0; i < completions; ++i) device_.Push(cq_, 1);
    EXPECT_TRUE(executor_->Poll());
  }

  ManualClock clock_;
  FakeDevice device_;
  std::unique_ptr<Executor> executor_ =
      *Executor::Create({.waiter = WaiterKind::kEpoll, .clock = &clock_});
  Told told_;
  NotedCompletions noted_;
  ibv_cq* cq_ = nullptr;
};

TEST_F(LagTest, TellsWhenTimePassedBetweenTwoTurnsThatHadWork) {
  Work();
  clock_.Advance(Lag::kMost);
  Work();
  EXPECT_EQ(told_.times, 0);
  clock_.Advance(Lag::kMost + Duration(1));
  Work();
  EXPECT_EQ(told_.times, 1);
  Work();
  EXPECT_EQ(told_.times, 1) << "no time has passed";
}

TEST_F(LagTest, TellsOfAFullPollBeforeItsCompletionsAreHandled) {
  Work();
  clock_.Advance(hours(1));
  Calls calls;
  int told_before = 0;
  calls.then = [&](int) { told_before = told_.times; };
  ibv_cq* cq = *executor_->AddCq(device_, 64, calls);
  for (int i = 0; i < 32; ++i) device_.Push(cq, 1);
  EXPECT_TRUE(executor_->Poll());
  EXPECT_GE(told_before, 1);
  EXPECT_TRUE(executor_->RemoveCq(cq).ok());
}

TEST_F(LagTest, AnIdleTurnProvesThatNothingWaited) {
  Work();
  EXPECT_FALSE(executor_->Poll());
  clock_.Advance(hours(1));
  PollFor(32);
  EXPECT_EQ(told_.times, 0);
}

TEST_F(LagTest, ASleepIsNoLag) {
  Work();
  EXPECT_FALSE(executor_->Poll());
  ASSERT_TRUE(executor_->Arm()) << "reads the clock after the idle turn";
  clock_.Advance(hours(1));
  Work();
  EXPECT_EQ(told_.times, 0);
}

// A host that arms without an idle turn.
TEST_F(LagTest, ASleepBetweenTwoFullPollsIsNoLag) {
  PollFor(32);
  ASSERT_TRUE(executor_->Arm());
  clock_.Advance(hours(1));
  PollFor(32);
  EXPECT_EQ(told_.times, 0);
}

// Its reading of the clock may be the one that tells.
TEST_F(LagTest, AHookThatWasQueuedOnALagKeepsAHostFromSleeping) {
  class Queues final : public LagListener {
   public:
    Queues(Executor& executor, FlushHook& hook) : executor_(executor), hook_(hook) {}
    void OnLag() override { executor_.FlushLater(hook_, FlushPriority::kSends); }

   private:
    Executor& executor_;
    FlushHook& hook_;
  };
  int flushes = 0;
  Hook hook([&flushes] { ++flushes; });
  Queues queues(*executor_, hook);
  executor_->WatchLag(queues);
  Work();
  clock_.Advance(Lag::kMost + Duration(1));
  EXPECT_FALSE(executor_->Arm());
  EXPECT_TRUE(executor_->Poll());
  EXPECT_EQ(flushes, 1);
}

TEST_F(LagTest, TellsWhenPollsFillTheirArraysOnEnd) {
  for (int i = 0; i < 3; ++i) {
    PollFor(32);
    EXPECT_EQ(told_.times, 0) << i;
    clock_.Advance(milliseconds(5));
  }
  clock_.Advance(Duration(1));
  PollFor(32);
  EXPECT_GE(told_.times, 1);
}

TEST_F(LagTest, APollThatDoesNotFillItsArrayBeginsTheTimeAnew) {
  for (int i = 0; i < 10; ++i) {
    PollFor(32);
    clock_.Advance(milliseconds(5));
    PollFor(31);
    clock_.Advance(milliseconds(5));
  }
  EXPECT_EQ(told_.times, 0);
}

TEST_F(LagTest, AFullPollReadsTheClockOnceAndOthersDoNot) {
  PollFor(31);
  uint64_t reads = clock_.reads();
  PollFor(31);
  EXPECT_EQ(clock_.reads() - reads, 0u);
  reads = clock_.reads();
  PollFor(32);
  EXPECT_EQ(clock_.reads() - reads, 1u);
}

TEST_F(LagTest, ALookWithinALongTurnTellsAndReadsTheTimeAnew) {
  executor_->PostFunction([this] {
    const TimePoint begin = executor_->now();
    clock_.Advance(Lag::kMost);
    executor_->CheckLag();
    EXPECT_EQ(told_.times, 0);
    EXPECT_EQ(executor_->now(), begin) << "one time for all of the turn";
    clock_.Advance(Duration(1));
    executor_->CheckLag();
    EXPECT_GE(told_.times, 1);
    EXPECT_EQ(executor_->now(), begin + Lag::kMost + Duration(1));
  });
  EXPECT_TRUE(executor_->Poll());
}

TEST_F(LagTest, AListenerThatHasLeftHearsNothing) {
  Told other;
  executor_->WatchLag(other);
  told_.Unlink();
  Work();
  clock_.Advance(hours(1));
  Work();
  EXPECT_EQ(told_.times, 0);
  EXPECT_EQ(other.times, 1);
}

TEST_F(LagTest, PollingOnTakesAllThatIsThere) {
  bool emptied = false;
  Hook hook([&] { emptied = executor_->PollOn(); });
  executor_->FlushLater(hook, FlushPriority::kSends);
  PollFor(100);
  EXPECT_TRUE(emptied);
  EXPECT_THAT(noted_.batches, ElementsAre(32, 32, 32, 4));
  EXPECT_EQ(executor_->stats().completions, 100u);
}

// As a peer may send once more for each receive that is posted meanwhile.
TEST_F(LagTest, PollingOnEndsThoughEachCompletionBringsAnother) {
  Calls calls;
  ibv_cq* cq = *executor_->AddCq(device_, 64, calls);
  int polled = 0;
  calls.then = [&](int count) {
    polled += count;
    for (int i = 0; i < count; ++i) device_.Push(cq, 1);
  };
  device_.Push(cq, 1);
  bool emptied = true;
  Hook hook([&] { emptied = executor_->PollOn(); });
  executor_->FlushLater(hook, FlushPriority::kSends);
  EXPECT_TRUE(executor_->Poll());
  EXPECT_EQ(polled, 1 + 64) << "in the turn, and as many as the queue has entries";
  EXPECT_FALSE(emptied);
  calls.then = [](int) {};
  executor_->DrainCq(cq);
  EXPECT_TRUE(executor_->RemoveCq(cq).ok());
}

}  // namespace lag_test
}  // namespace verbena::internal
