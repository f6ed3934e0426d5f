// A deadline ends the await in flight with DEADLINE_EXCEEDED and nothing beyond its Task. The timer
// is stopped however the Task ends.

#include "verbena/transport/coro/context.h"

#include <chrono>
#include <stdexcept>

#include "gtest/gtest.h"
#include "tests/support/manual_scheduler.h"
#include "tests/transport/coro/started.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/sync.h"

namespace verbena::internal {
namespace deadline_test {

using absl::StatusCode;
using namespace std::chrono_literals;

Task<absl::StatusOr<int>> Get(Event& event) {
  absl::Status waited = co_await event.Wait();
  if (!waited.ok()) co_return waited;
  co_return 7;
}
Task<absl::Status> IgnoreFirst(Event& event, Event& cleaned) {
  (co_await event.Wait()).IgnoreError();
  co_return co_await WaitFor(cleaned).In(nullptr);
}

class DeadlineTest : public testing::Test {
 protected:
  ManualScheduler scheduler_;
  Event event_;
};

TEST_F(DeadlineTest, ResultInTimePassesThroughAndTheTimerStops) {
  Started limited(scheduler_, WithDeadline(Get(event_), 5ms));
  EXPECT_EQ(scheduler_.timer_count(), 1u);
  event_.Set();
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(limited.done());
  EXPECT_EQ(*limited.result(), 7);
  EXPECT_EQ(scheduler_.timer_count(), 0u);
}

TEST_F(DeadlineTest, ExpiryEndsTheAwaitInFlightWithItsReason) {
  Started after(scheduler_, WithDeadline(Get(event_), 5ms));
  Started at(scheduler_, WithDeadline(WaitFor(event_), scheduler_.now() + 5ms));
  scheduler_.AdvanceBy(5ms - 1ns);
  EXPECT_FALSE(after.done());
  EXPECT_FALSE(at.done());
  scheduler_.AdvanceBy(1ns);
  EXPECT_EQ(after.result().status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(at.result().code(), StatusCode::kDeadlineExceeded);
}

TEST_F(DeadlineTest, TaskThatIgnoresTheDeadlineIsAwaitedAndItsResultCounts) {
  Event cleaned;
  Started limited(scheduler_, WithDeadline(IgnoreFirst(event_, cleaned), 5ms));
  scheduler_.AdvanceBy(1s);
  EXPECT_FALSE(limited.done());
  cleaned.Set();
  scheduler_.RunUntilIdle();
  EXPECT_TRUE(limited.result().ok());
}

TEST_F(DeadlineTest, PastDeadlineStillRunsTheTask) {
  Started waiting(scheduler_, WithDeadline(WaitFor(event_), scheduler_.now() - 1ms));
  ASSERT_TRUE(waiting.done());
  EXPECT_EQ(waiting.result().code(), StatusCode::kDeadlineExceeded);
  auto no_await = []() -> Task<absl::Status> { co_return absl::OkStatus(); };
  EXPECT_TRUE(scheduler_.Run(WithDeadline(no_await(), -1s)).ok());
}

TEST_F(DeadlineTest, NeverSetsNoTimer) {
  Started forever(scheduler_, WithDeadline(WaitFor(event_), kNever));
  Started overflowing(scheduler_, WithDeadline(WaitFor(event_), Duration::max()));
  EXPECT_EQ(scheduler_.timer_count(), 0u);
}

TEST_F(DeadlineTest, EarliestOfNestedDeadlinesHolds) {
  Started outer_first(scheduler_, WithDeadline(WithDeadline(WaitFor(event_), 9ms), 3ms));
  Started inner_first(scheduler_, WithDeadline(WithDeadline(WaitFor(event_), 3ms), 9ms));
  scheduler_.AdvanceBy(3ms);
  EXPECT_EQ(outer_first.result().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(inner_first.result().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(scheduler_.timer_count(), 0u);
}

TEST_F(DeadlineTest, CancellationFromOutsideKeepsItsOwnReason) {
  CancelScope scope;
  Started limited(scheduler_, WithDeadline(WaitFor(event_), 5ms), &scope);
  scope.Request();
  scheduler_.RunUntilIdle();
  EXPECT_EQ(limited.result().code(), StatusCode::kCancelled);
  EXPECT_EQ(scheduler_.timer_count(), 0u);
}

TEST_F(DeadlineTest, ExpiryDoesNotReachTheAwaitingCoroutine) {
  auto caller = [](Event& event) -> Task<absl::Status> {
    absl::Status limited = co_await WithDeadline(WaitFor(event), 5ms);
    if (limited.code() != StatusCode::kDeadlineExceeded) co_return limited;
    event.Set();
    co_return co_await event.Wait();
  };
  EXPECT_TRUE(scheduler_.Run(caller(event_)).ok());
}

TEST_F(DeadlineTest, AbandonedDeadlineStopsItsTimer) {
  CancelScope scope;
  Started limited(scheduler_, WithDeadline(WaitFor(event_), 5ms), &scope);
  limited.Abandon();
  EXPECT_EQ(scheduler_.timer_count(), 0u);
  event_.Set();
  scope.Request();
  scheduler_.AdvanceBy(10ms);
}

TEST_F(DeadlineTest, ExceptionPassesThrough) {
  auto fail = []() -> Task<absl::Status> {
    throw std::runtime_error("inner");
    co_return absl::OkStatus();
  };
  EXPECT_THROW((void)scheduler_.Run(WithDeadline(fail(), 5ms)), std::runtime_error);
  EXPECT_EQ(scheduler_.timer_count(), 0u);
}

}  // namespace deadline_test
}  // namespace verbena::internal
