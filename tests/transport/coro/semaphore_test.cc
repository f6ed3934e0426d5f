// A semaphore gives permits in the order of requests. Permits are never lost, whichever waiters
// are cancelled or destroyed and whenever.

#include "verbena/transport/coro/sync.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/manual_scheduler.h"
#include "tests/transport/coro/started.h"
#include "verbena/transport/coro/cancel.h"

namespace verbena::internal {
namespace semaphore_test {

using absl::StatusCode;

Task<absl::Status> Take(Semaphore& semaphore, size_t permits) {
  co_return co_await semaphore.Acquire(permits);
}

class SemaphoreTest : public testing::Test {
 protected:
  Started<absl::Status> Acquire(size_t permits, CancelScope* scope = nullptr) {
    return Started<absl::Status>(scheduler_, Take(semaphore_, permits), scope);
  }

  ManualScheduler scheduler_;
  Semaphore semaphore_{4};
};

TEST_F(SemaphoreTest, GrantsWhatIsThereAtOnce) {
  auto all = Acquire(4);
  EXPECT_TRUE(all.done());
  EXPECT_EQ(semaphore_.available(), 0u);
  EXPECT_FALSE(semaphore_.TryAcquire());
  EXPECT_TRUE(semaphore_.TryAcquire(0));
}

TEST_F(SemaphoreTest, ReleaseWakesThroughTheSchedulerInOrder) {
  ASSERT_TRUE(semaphore_.TryAcquire(4));
  auto first = Acquire(1);
  auto second = Acquire(1);
  semaphore_.Release(1);
  EXPECT_FALSE(first.done());  // not inline
  scheduler_.RunUntilIdle();
  EXPECT_TRUE(first.done());
  EXPECT_FALSE(second.done());
  semaphore_.Release(1);
  scheduler_.RunUntilIdle();
  EXPECT_TRUE(second.done());
}

TEST_F(SemaphoreTest, SmallRequestDoesNotOvertakeALargeOne) {
  ASSERT_TRUE(semaphore_.TryAcquire(2));
  auto large = Acquire(4);
  auto small = Acquire(1);
  EXPECT_FALSE(small.done());
  EXPECT_FALSE(semaphore_.TryAcquire(1));
  semaphore_.Release(2);
  scheduler_.RunUntilIdle();
  EXPECT_TRUE(large.done());
  EXPECT_FALSE(small.done());
  semaphore_.Release(4);
  scheduler_.RunUntilIdle();
  EXPECT_TRUE(small.done());
  EXPECT_EQ(semaphore_.available(), 3u);
}

TEST_F(SemaphoreTest, CancelledWaiterTakesNothingAndUnblocksThoseBehind) {
  ASSERT_TRUE(semaphore_.TryAcquire(2));
  CancelScope scope;
  auto large = Acquire(4, &scope);
  auto small = Acquire(2);
  scope.Request();
  scheduler_.RunUntilIdle();
  EXPECT_EQ(large.result().code(), StatusCode::kCancelled);
  EXPECT_TRUE(small.done());
  semaphore_.Release(4);
  EXPECT_EQ(semaphore_.available(), 4u);
}

TEST_F(SemaphoreTest, AbandonedWaiterUnblocksThoseBehind) {
  ASSERT_TRUE(semaphore_.TryAcquire(2));
  auto large = Acquire(4);
  auto small = Acquire(2);
  large.Abandon();
  scheduler_.RunUntilIdle();
  EXPECT_TRUE(small.done());
}

TEST_F(SemaphoreTest, PermitsGrantedToAnAbandonedWaiterComeBack) {
  ASSERT_TRUE(semaphore_.TryAcquire(4));
  auto dying = Acquire(3);
  auto next = Acquire(2);
  semaphore_.Release(4);  // grants 3; `next` needs 2
  dying.Abandon();
  scheduler_.RunUntilIdle();
  EXPECT_TRUE(next.done());
  EXPECT_EQ(semaphore_.available(), 2u);
}

TEST_F(SemaphoreTest, CancellationAfterTheGrantLeavesThePermitsWithTheWaiter) {
  ASSERT_TRUE(semaphore_.TryAcquire(4));
  CancelScope scope;
  auto waiting = Acquire(1, &scope);
  semaphore_.Release(1);
  scope.Request();
  scheduler_.RunUntilIdle();
  EXPECT_TRUE(waiting.result().ok());
  EXPECT_EQ(semaphore_.available(), 0u);
}

TEST_F(SemaphoreTest, GrantAfterTheCancellationStaysWithTheSemaphore) {
  ASSERT_TRUE(semaphore_.TryAcquire(4));
  CancelScope scope;
  auto waiting = Acquire(1, &scope);
  scope.Request();
  semaphore_.Release(1);
  scheduler_.RunUntilIdle();
  EXPECT_EQ(waiting.result().code(), StatusCode::kCancelled);
  EXPECT_EQ(semaphore_.available(), 1u);
}

TEST_F(SemaphoreTest, CancelledScopeAcquiresNothing) {
  CancelScope scope;
  scope.Request();
  auto refused = Acquire(1, &scope);
  EXPECT_EQ(refused.result().code(), StatusCode::kCancelled);
  EXPECT_EQ(semaphore_.available(), 4u);
}

TEST_F(SemaphoreTest, ManyWaitersDestroyedInAnyOrderLoseNothing) {
  ASSERT_TRUE(semaphore_.TryAcquire(4));
  std::vector<std::unique_ptr<Started<absl::Status>>> waiters;
  waiters.reserve(10);
  for (size_t i = 0; i < 10; ++i) {
    waiters.push_back(
        std::make_unique<Started<absl::Status>>(scheduler_, Take(semaphore_, i % 4 + 1)));
  }
  semaphore_.Release(4);
  for (size_t i : {3, 0, 9, 1, 5, 2, 8, 4, 7, 6}) waiters[i].reset();
  EXPECT_EQ(semaphore_.available(), 4u);
  EXPECT_EQ(scheduler_.RunUntilIdle(), 0u);
}

Task<void> HoldWhileWaiting(Semaphore& semaphore, Event& event) {
  if (!(co_await semaphore.Acquire(2)).ok()) co_return;
  SemaphoreHold hold(semaphore, 2);
  (co_await event.Wait()).IgnoreError();
}

TEST_F(SemaphoreTest, HoldReleasesWhenItsTaskIsAbandoned) {
  Event event;
  Started holding(scheduler_, HoldWhileWaiting(semaphore_, event));
  EXPECT_EQ(semaphore_.available(), 2u);
  holding.Abandon();
  EXPECT_EQ(semaphore_.available(), 4u);
}

TEST(SemaphoreDeathTest, DestroyingASemaphoreForWhichSomebodyWaitsAborts) {
  EXPECT_DEATH(
      {
        ManualScheduler scheduler;
        std::optional<Semaphore> semaphore(std::in_place, 0);
        Started waiting(scheduler, Take(*semaphore, 1));
        semaphore.reset();
      },
      "a Semaphore was destroyed while somebody waits");
}

}  // namespace semaphore_test
}  // namespace verbena::internal
