// A set event wakes every waiter, each through the scheduler. Waiters that are cancelled or
// destroyed leave the others waiting. A waiter that was woken before its cancellation still passes.

#include "verbena/transport/coro/sync.h"

#include <memory>

#include "gtest/gtest.h"
#include "tests/support/manual_scheduler.h"
#include "tests/transport/coro/started.h"
#include "verbena/transport/coro/cancel.h"

namespace verbena::internal {
namespace event_test {

using absl::StatusCode;

TEST(EventTest, SetWakesEveryWaiterThroughTheScheduler) {
  ManualScheduler scheduler;
  Event event;
  Started one(scheduler, WaitFor(event));
  Started two(scheduler, WaitFor(event));
  event.Set();
  EXPECT_FALSE(one.done());  // not inline
  scheduler.RunUntilIdle();
  EXPECT_TRUE(one.result().ok());
  EXPECT_TRUE(two.result().ok());
}

TEST(EventTest, SetEventLetsLaterWaitersPassUntilReset) {
  ManualScheduler scheduler;
  Event event;
  event.Set();
  EXPECT_TRUE(Started(scheduler, WaitFor(event)).done());
  event.Reset();
  EXPECT_FALSE(event.is_set());
  Started waiting(scheduler, WaitFor(event));
  scheduler.RunUntilIdle();
  EXPECT_FALSE(waiting.done());
}

TEST(EventTest, WaiterWokenBeforeAResetStillPasses) {
  ManualScheduler scheduler;
  Event event;
  Started waiting(scheduler, WaitFor(event));
  event.Set();
  event.Reset();
  scheduler.RunUntilIdle();
  EXPECT_TRUE(waiting.done());
}

TEST(EventTest, CancelledWaiterLeavesAndOthersStay) {
  ManualScheduler scheduler;
  Event event;
  CancelScope scope;
  Started leaving(scheduler, WaitFor(event), &scope);
  Started staying(scheduler, WaitFor(event));
  scope.Request(StatusCode::kDeadlineExceeded);
  scheduler.RunUntilIdle();
  EXPECT_EQ(leaving.result().code(), StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(staying.done());
  event.Set();
  scheduler.RunUntilIdle();
  EXPECT_TRUE(staying.result().ok());
}

TEST(EventTest, CancellationComesBeforeASetEvent) {
  ManualScheduler scheduler;
  Event event;
  event.Set();
  CancelScope scope;
  scope.Request();
  Started waiting(scheduler, WaitFor(event), &scope);
  EXPECT_EQ(waiting.result().code(), StatusCode::kCancelled);
}

TEST(EventTest, SetBeforeCancellationInOneTurnWins) {
  ManualScheduler scheduler;
  Event event;
  CancelScope scope;
  Started waiting(scheduler, WaitFor(event), &scope);
  event.Set();
  scope.Request();
  scheduler.RunUntilIdle();
  EXPECT_TRUE(waiting.result().ok());
}

TEST(EventTest, AbandonedWaiterIsForgottenByEventAndScope) {
  ManualScheduler scheduler;
  Event event;
  CancelScope scope;
  Started waiting(scheduler, WaitFor(event), &scope);
  waiting.Abandon();
  event.Set();
  scope.Request();
  EXPECT_EQ(scheduler.RunUntilIdle(), 0u);
}

TEST(EventTest, DestroyedEventLeavesWaitersThatCanStillBeCancelled) {
  ManualScheduler scheduler;
  CancelScope scope;
  auto event = std::make_unique<Event>();
  Started waiting(scheduler, WaitFor(*event), &scope);
  event.reset();
  scope.Request();
  scheduler.RunUntilIdle();
  EXPECT_TRUE(waiting.done());
}

}  // namespace event_test
}  // namespace verbena::internal
