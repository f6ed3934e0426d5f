// One turn of the loop hands over bounded work in a fixed order, so that no kind of work starves
// another, and reads the clock at most once. Driven by Poll().

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/manual_clock.h"
#include "tests/transport/base/captured_log.h"
#include "tests/transport/executor/fake_device.h"
#include "tests/transport/executor/test_support.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/spawn.h"

namespace verbena::internal {
namespace turn_test {

using std::chrono::hours;
using std::chrono::milliseconds;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

class TurnTest : public testing::Test {
 protected:
  ManualClock clock_;
  FakeDevice device_;
  std::unique_ptr<Executor> executor_ =
      *Executor::Create({.waiter = WaiterKind::kEpoll, .clock = &clock_});
};

// --- Completions ---------------------------------------------------------------------------------

TEST_F(TurnTest, ATurnHandsOverOneBatchOfEachQueueInOrder) {
  NotedCompletions many;
  NotedCompletions few;
  ibv_cq* first = *executor_->AddCq(device_, 64, many);
  ibv_cq* second = *executor_->AddCq(device_, 64, few);
  for (uint64_t i = 0; i < 40; ++i) device_.Push(first, i);
  device_.Push(second, 100);
  EXPECT_TRUE(executor_->Poll());
  EXPECT_THAT(many.batches, ElementsAre(32));
  EXPECT_THAT(few.wr_ids, ElementsAre(100));
  EXPECT_TRUE(executor_->Poll());
  EXPECT_THAT(many.batches, ElementsAre(32, 8));
  EXPECT_EQ(many.wr_ids.back(), 39u);
  EXPECT_FALSE(executor_->Poll());
  EXPECT_EQ(executor_->stats().completions, 41u);
  EXPECT_TRUE(executor_->RemoveCq(first).ok());
  EXPECT_TRUE(executor_->RemoveCq(second).ok());
}

TEST_F(TurnTest, DrainCqLeavesTheQueueEmptyAndOthersAlone) {
  NotedCompletions drained;
  NotedCompletions other;
  ibv_cq* first = *executor_->AddCq(device_, 128, drained);
  ibv_cq* second = *executor_->AddCq(device_, 128, other);
  for (uint64_t i = 0; i < 100; ++i) device_.Push(first, i);
  device_.Push(second, 7);
  executor_->DrainCq(first);
  EXPECT_EQ(drained.wr_ids.size(), 100u);
  EXPECT_TRUE(other.wr_ids.empty());
  EXPECT_TRUE(executor_->RemoveCq(first).ok());
  EXPECT_TRUE(executor_->RemoveCq(second).ok());
}

class AddingSink final : public CompletionListener {
 public:
  void OnCompletions(const ibv_wc*, int) override { then(); }
  std::function<void()> then;
};

TEST_F(TurnTest, ASinkMayAddAndRemoveOtherQueues) {
  AddingSink adding;
  NotedCompletions removed;
  NotedCompletions added;
  ibv_cq* first = *executor_->AddCq(device_, 4, adding);
  ibv_cq* second = *executor_->AddCq(device_, 4, removed);
  std::vector<ibv_cq*> new_cqs;
  adding.then = [&] {
    EXPECT_TRUE(executor_->RemoveCq(second).ok());
    // Enough to move what holds the queues.
    for (int i = 0; i < 32; ++i) new_cqs.push_back(*executor_->AddCq(device_, 4, added));
  };
  device_.Push(first, 1);
  device_.Push(second, 2);
  executor_->Poll();
  EXPECT_TRUE(removed.wr_ids.empty());
  device_.Push(new_cqs.back(), 3);
  executor_->Poll();
  EXPECT_THAT(added.wr_ids, ElementsAre(3));
  EXPECT_TRUE(executor_->RemoveCq(first).ok());
  for (ibv_cq* cq : new_cqs) EXPECT_TRUE(executor_->RemoveCq(cq).ok());
}

TEST_F(TurnTest, AQueueThatTheDeviceDoesNotDestroyIsNotTouchedAgain) {
  NotedCompletions listener;
  ibv_cq* cq = *executor_->AddCq(device_, 4, listener);
  ibv_comp_channel* channel = cq->channel;
  device_.SetDestroyCqStatus(absl::InternalError("EIO"));
  EXPECT_EQ(executor_->RemoveCq(cq).code(), absl::StatusCode::kInternal);
  device_.Push(cq, 5);
  EXPECT_FALSE(executor_->Poll());
  ASSERT_TRUE(listener.wr_ids.empty()) << "it may be destroyed by now";
  EXPECT_EQ(executor_->RemoveCq(cq).code(), absl::StatusCode::kInvalidArgument);
  // As when the device is closed.
  device_.SetDestroyCqStatus(absl::OkStatus());
  EXPECT_TRUE(device_.DestroyCq(cq).ok());
  EXPECT_TRUE(device_.DestroyCompChannel(channel).ok());
  EXPECT_FALSE(executor_->Poll());
}

TEST_F(TurnTest, AQueueThatTheDeviceRefusesLeavesNothingBehind) {
  NotedCompletions listener;
  device_.SetCreateCqStatus(absl::ResourceExhaustedError("max_cq"));
  EXPECT_EQ(executor_->AddCq(device_, 4, listener).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(executor_->Poll());
}

TEST_F(TurnTest, AFailingPollIsLoggedOnceAndHandsOverNothing) {
  NotedCompletions listener;
  ibv_cq* cq = *executor_->AddCq(device_, 4, listener);
  CapturedLog log;
  device_.SetPollError(-5);
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(executor_->Poll());
  EXPECT_THAT(log.Take(), ElementsAre(HasSubstr("ibv_poll_cq on fake0 returned -5")));
  EXPECT_TRUE(executor_->RemoveCq(cq).ok());
}

TEST_F(TurnTest, AQueueThatWasNotRemovedIsDestroyedWithTheExecutorAndLogged) {
  NotedCompletions listener;
  ASSERT_TRUE(executor_->AddCq(device_, 4, listener).ok());
  CapturedLog log;
  executor_.reset();
  EXPECT_THAT(log.Take(), Contains(HasSubstr("a CQ on fake0 was not removed")));
  EXPECT_EQ(device_.live_cqs(), 0);
}

// --- Time ----------------------------------------------------------------------------------------

Task<void> NoteSleep(Duration delay, std::string name, std::vector<std::string>& order) {
  absl::Status slept = co_await Sleep(delay);
  order.push_back(slept.ok() ? name : slept.ToString());
}

TEST_F(TurnTest, TimersFollowTheGivenClockAndFireInOrder) {
  std::vector<std::string> order;
  Spawn(*executor_, NoteSleep(milliseconds(5), "5 ms", order));
  Spawn(*executor_, NoteSleep(hours(24 * 365), "a year", order));
  Spawn(*executor_, NoteSleep(milliseconds(1), "1 ms", order));
  while (executor_->Poll()) {
  }
  EXPECT_EQ(executor_->NextTimer(), clock_.Now() + milliseconds(1));
  clock_.Advance(milliseconds(1) - Duration(1));
  EXPECT_FALSE(executor_->Poll());
  clock_.Advance(Duration(1));
  EXPECT_TRUE(executor_->Poll());
  EXPECT_THAT(order, ElementsAre("1 ms"));
  clock_.Advance(hours(24 * 366));
  executor_->Poll();
  EXPECT_THAT(order, ElementsAre("1 ms", "5 ms", "a year"));
  EXPECT_EQ(executor_->NextTimer(), kNever);
}

TEST_F(TurnTest, AnEmptyTurnWithoutTimersReadsNoClock) {
  executor_->Poll();
  const uint64_t before = clock_.reads();
  for (int i = 0; i < 100; ++i) executor_->Poll();
  EXPECT_EQ(clock_.reads(), before);
}

TEST_F(TurnTest, NowIsReadOncePerTurnAndStandsStillWithinIt) {
  std::vector<TimePoint> seen;
  for (int turn = 0; turn < 2; ++turn) {
    executor_->PostFunction([&] {
      seen.push_back(executor_->now());
      clock_.Advance(milliseconds(1));
      seen.push_back(executor_->now());
    });
  }
  const TimePoint begin = clock_.Now();
  const uint64_t before = clock_.reads();
  executor_->Poll();
  EXPECT_EQ(clock_.reads() - before, 1u);
  EXPECT_THAT(seen, ElementsAre(begin, begin, begin, begin));
  clock_.Advance(hours(1));
  // Between turns too, so that a deadline set there is not in the past.
  EXPECT_EQ(executor_->now(), clock_.Now());
}

// --- Ready coroutines ----------------------------------------------------------------------------

Task<void> YieldForEver(int& turns) {
  while ((co_await Yield()).ok()) ++turns;
}

TEST_F(TurnTest, CoroutinesThatKeepThemselvesReadyDoNotStarveCompletions) {
  NotedCompletions listener;
  ibv_cq* cq = *executor_->AddCq(device_, 4, listener);
  int turns = 0;
  Spawn(*executor_, YieldForEver(turns));
  executor_->Poll();
  const int before = turns;
  device_.Push(cq, 9);
  EXPECT_TRUE(executor_->Poll());
  EXPECT_THAT(listener.wr_ids, ElementsAre(9));
  EXPECT_GT(turns, before);
  EXPECT_LT(turns, 2000);
  EXPECT_FALSE(executor_->Arm()) << "it would sleep while coroutines are ready";
  EXPECT_TRUE(executor_->RemoveCq(cq).ok());
}

// --- Flush hooks ---------------------------------------------------------------------------------

class NotedHook final : public FlushHook {
 public:
  NotedHook(std::vector<std::string>& order, std::string name)
      : order_(order), name_(std::move(name)) {}
  void Flush() override {
    order_.push_back(name_);
    if (then) then();
  }
  std::function<void()> then;

 private:
  std::vector<std::string>& order_;
  const std::string name_;
};

class FlushTest : public TurnTest {
 protected:
  void Later(FlushHook& hook, FlushPriority priority) { executor_->FlushLater(hook, priority); }

  std::vector<std::string> order_;
  NotedHook send_{order_, "send"};
  NotedHook repost_{order_, "repost"};
};

TEST_F(FlushTest, ReceivesGoBeforeSendsAndAfterCoroutines) {
  executor_->PostFunction([this] {
    Later(send_, FlushPriority::kSends);
    Later(repost_, FlushPriority::kReceives);
    Later(send_, FlushPriority::kSends);
    order_.push_back("work");
  });
  EXPECT_TRUE(executor_->Poll());
  EXPECT_THAT(order_, ElementsAre("work", "repost", "send"));
  EXPECT_FALSE(executor_->Poll()) << "a hook is queued for one turn";
  EXPECT_EQ(order_.size(), 3u);
}

TEST_F(FlushTest, WorkThatAFlushQueuesGoesOutInTheSameTurn) {
  send_.then = [this] { Later(repost_, FlushPriority::kReceives); };
  Later(send_, FlushPriority::kSends);
  executor_->Poll();
  EXPECT_THAT(order_, ElementsAre("send", "repost"));
}

TEST_F(FlushTest, AHookThatAlwaysQueuesItselfNeitherHoldsTheTurnNorLetsItSleep) {
  send_.then = [this] { Later(send_, FlushPriority::kSends); };
  Later(send_, FlushPriority::kSends);
  executor_->Poll();
  const size_t once = order_.size();
  EXPECT_LT(once, 20u);
  EXPECT_FALSE(executor_->Arm());
  executor_->Poll();
  EXPECT_GT(order_.size(), once);
  send_.then = nullptr;
  executor_->Poll();
  EXPECT_FALSE(executor_->Poll());
}

TEST_F(FlushTest, ADestroyedHookIsNotCalled) {
  {
    NotedHook gone(order_, "gone");
    Later(gone, FlushPriority::kSends);
  }
  EXPECT_FALSE(executor_->Poll());
  EXPECT_TRUE(order_.empty());
}

}  // namespace turn_test
}  // namespace verbena::internal
