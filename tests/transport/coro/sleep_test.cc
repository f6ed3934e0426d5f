// A sleep ends at its time and not before, or with its cancellation, whichever comes first. Its
// timer is stopped in each case. Yield() lets others run first.

#include "verbena/transport/coro/sleep.h"

#include <chrono>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/manual_scheduler.h"
#include "tests/transport/coro/started.h"
#include "verbena/transport/coro/cancel.h"

namespace verbena::internal {
namespace sleep_test {

using absl::StatusCode;
using namespace std::chrono_literals;

Task<absl::Status> SleepFor(Duration delay) { co_return co_await Sleep(delay); }
Task<absl::Status> SleepTo(TimePoint when) { co_return co_await SleepUntil(when); }

TEST(SleepTest, WakesAtItsTimeAndNotBefore) {
  ManualScheduler scheduler;
  Started sleeping(scheduler, SleepFor(5ms));
  scheduler.AdvanceBy(5ms - 1ns);
  EXPECT_FALSE(sleeping.done());
  scheduler.AdvanceBy(1ns);
  ASSERT_TRUE(sleeping.done());
  EXPECT_TRUE(sleeping.result().ok());
  EXPECT_EQ(scheduler.timer_count(), 0u);
}

TEST(SleepTest, TimeThatHasComeDoesNotSuspend) {
  ManualScheduler scheduler;
  EXPECT_TRUE(Started(scheduler, SleepFor(0ns)).done());
  EXPECT_TRUE(Started(scheduler, SleepFor(-1s)).done());
  EXPECT_TRUE(Started(scheduler, SleepTo(scheduler.now())).done());
  EXPECT_EQ(scheduler.timer_count(), 0u);
}

TEST(SleepTest, EndlessSleepEndsOnlyByCancellation) {
  ManualScheduler scheduler;
  CancelScope scope;
  Started until_never(scheduler, SleepTo(kNever), &scope);
  Started overflowing(scheduler, SleepFor(Duration::max()), &scope);
  scheduler.AdvanceBy(std::chrono::hours(100'000));
  EXPECT_FALSE(until_never.done());
  EXPECT_FALSE(overflowing.done());
  scope.Request();
  scheduler.RunUntilIdle();
  EXPECT_EQ(until_never.result().code(), StatusCode::kCancelled);
  EXPECT_EQ(overflowing.result().code(), StatusCode::kCancelled);
}

TEST(SleepTest, CancellationEndsItWithTheReasonAndStopsTheTimer) {
  ManualScheduler scheduler;
  CancelScope scope;
  Started sleeping(scheduler, SleepFor(5ms), &scope);
  scope.Request(StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(sleeping.done());  // queued, not resumed inline
  EXPECT_EQ(scheduler.timer_count(), 0u);
  scheduler.RunUntilIdle();
  EXPECT_EQ(sleeping.result().code(), StatusCode::kDeadlineExceeded);
}

TEST(SleepTest, CancelledBeforeItSleepsReturnsAtOnce) {
  ManualScheduler scheduler;
  CancelScope scope;
  scope.Request();
  Started sleeping(scheduler, SleepFor(5ms), &scope);
  ASSERT_TRUE(sleeping.done());
  EXPECT_EQ(sleeping.result().code(), StatusCode::kCancelled);
}

TEST(SleepTest, AbandonedSleepStopsItsTimer) {
  ManualScheduler scheduler;
  CancelScope scope;
  Started sleeping(scheduler, SleepFor(5ms), &scope);
  EXPECT_EQ(scheduler.timer_count(), 1u);
  sleeping.Abandon();
  EXPECT_EQ(scheduler.timer_count(), 0u);
  scope.Request();
  scheduler.AdvanceBy(10ms);
}

// Cancels at a time, from a timer.
class CancelAt final : private Timer {
 public:
  CancelAt(ManualScheduler& scheduler, TimePoint when, CancelScope& scope) : scope_(scope) {
    scheduler.StartTimer(*this, when);
  }

 private:
  void OnTimer() override { scope_.Request(); }
  CancelScope& scope_;
};

TEST(SleepTest, TimerBeforeCancellationInOneTurnWins) {
  ManualScheduler scheduler;
  CancelScope scope;
  Started sleeping(scheduler, SleepFor(5ms), &scope);
  CancelAt cancel(scheduler, scheduler.now() + 5ms, scope);
  scheduler.AdvanceBy(5ms);
  EXPECT_TRUE(sleeping.result().ok());
}

TEST(SleepTest, CancellationBeforeTimerInOneTurnWins) {
  ManualScheduler scheduler;
  CancelScope scope;
  CancelAt cancel(scheduler, scheduler.now() + 5ms, scope);
  Started sleeping(scheduler, SleepFor(5ms), &scope);
  scheduler.AdvanceBy(5ms);
  EXPECT_EQ(sleeping.result().code(), StatusCode::kCancelled);
}

TEST(SleepTest, AbandonedBetweenItsTimerAndItsTurnNeverRuns) {
  ManualScheduler scheduler;
  Started sleeping(scheduler, SleepFor(5ms));
  class Abandon final : public Timer {
   public:
    explicit Abandon(Started<absl::Status>& victim) : victim_(victim) {}
    void OnTimer() override { victim_.Abandon(); }

   private:
    Started<absl::Status>& victim_;
  } abandon(sleeping);
  scheduler.StartTimer(abandon, scheduler.now() + 5ms);
  scheduler.AdvanceBy(5ms);
  EXPECT_FALSE(sleeping.done());
}

Task<void> Record(std::vector<int>& order, int id) {
  for (int i = 0; i < 2; ++i) {
    order.push_back(id);
    if (!(co_await Yield()).ok()) co_return;
  }
}

TEST(YieldTest, LetsOthersRunFirst) {
  ManualScheduler scheduler;
  std::vector<int> order;
  Started one(scheduler, Record(order, 1));
  Started two(scheduler, Record(order, 2));
  scheduler.RunUntilIdle();
  EXPECT_EQ(order, (std::vector{1, 2, 1, 2}));
}

TEST(YieldTest, ReportsCancellationAndYieldsNonetheless) {
  ManualScheduler scheduler;
  CancelScope scope;
  std::vector<int> order;
  Started one(scheduler, Record(order, 1), &scope);
  scope.Request();
  EXPECT_FALSE(one.done());
  scheduler.RunUntilIdle();
  EXPECT_TRUE(one.done());
  EXPECT_EQ(order, (std::vector{1}));
}

TEST(YieldTest, AbandonedYieldNeverRuns) {
  ManualScheduler scheduler;
  std::vector<int> order;
  Started one(scheduler, Record(order, 1));
  one.Abandon();
  EXPECT_EQ(scheduler.RunUntilIdle(), 0u);
}

}  // namespace sleep_test
}  // namespace verbena::internal
