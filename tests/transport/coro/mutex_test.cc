// A mutex lets one coroutine in at a time, in the order of requests. The lock is never lost,
// whichever waiters are cancelled or destroyed and whenever.

#include "verbena/transport/coro/sync.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/manual_scheduler.h"
#include "tests/transport/coro/counted_new.h"
#include "tests/transport/coro/started.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/sleep.h"

namespace verbena::internal {
namespace mutex_test {

using absl::StatusCode;
using testing::ElementsAre;

class MutexTest : public testing::Test {
 protected:
  // Holds the lock until the event is set.
  Task<absl::Status> HoldUntil(Event& event, int name = 0) {
    VERBENA_CO_ASSIGN_OR_RETURN(const MutexLock lock, co_await mutex_.Lock());
    order_.push_back(name);
    co_return co_await event.Wait();
  }
  Task<absl::Status> LockOnce(int name) {
    VERBENA_CO_ASSIGN_OR_RETURN(const MutexLock lock, co_await mutex_.Lock());
    order_.push_back(name);
    co_return absl::OkStatus();
  }

  ManualScheduler scheduler_;
  Mutex mutex_;
  Event release_;
  std::vector<int> order_;
};

TEST_F(MutexTest, GivesAFreeLockAtOnceAndUnlocksAtTheEndOfTheScope) {
  Started once(scheduler_, LockOnce(1));
  EXPECT_TRUE(once.done());
  EXPECT_FALSE(mutex_.locked());
}

TEST_F(MutexTest, ServesWaitersInOrderAndNeverInline) {
  Started holder(scheduler_, HoldUntil(release_, 1));
  Started second(scheduler_, LockOnce(2));
  Started third(scheduler_, LockOnce(3));
  EXPECT_TRUE(mutex_.locked());
  release_.Set();
  EXPECT_THAT(order_, ElementsAre(1));
  scheduler_.RunUntilIdle();
  EXPECT_THAT(order_, ElementsAre(1, 2, 3));
  EXPECT_FALSE(mutex_.locked());
}

TEST_F(MutexTest, TryLockDoesNotOvertakeAWaiter) {
  std::optional<MutexLock> lock = mutex_.TryLock();
  ASSERT_TRUE(lock.has_value());
  EXPECT_FALSE(mutex_.TryLock().has_value());
  Started waiting(scheduler_, LockOnce(1));
  lock.reset();
  EXPECT_FALSE(mutex_.TryLock().has_value()) << "the lock is on its way to the waiter";
  scheduler_.RunUntilIdle();
  EXPECT_TRUE(waiting.done());
  EXPECT_TRUE(mutex_.TryLock().has_value());
}

TEST_F(MutexTest, ALockMovesAndUnlocksOnce) {
  std::optional<MutexLock> first = mutex_.TryLock();
  MutexLock moved = *std::move(first);
  first.reset();  // NOLINT(bugprone-use-after-move): a moved-from lock unlocks nothing
  EXPECT_TRUE(mutex_.locked());
  moved.Unlock();
  EXPECT_FALSE(mutex_.locked());
  const std::optional<MutexLock> second = mutex_.TryLock();
  moved.Unlock();
  EXPECT_TRUE(mutex_.locked()) << "the lock is another's now";
}

TEST_F(MutexTest, AssigningALockUnlocksTheOneBefore) {
  Mutex other;
  MutexLock lock = *mutex_.TryLock();
  lock = *other.TryLock();
  EXPECT_FALSE(mutex_.locked());
  EXPECT_TRUE(other.locked());
}

TEST_F(MutexTest, ACancelledWaiterHoldsNothingAndLetsThoseBehindIn) {
  CancelScope scope;
  Started holder(scheduler_, HoldUntil(release_, 1));
  Started cancelled(scheduler_, LockOnce(2), &scope);
  Started behind(scheduler_, LockOnce(3));
  scope.Request();
  scheduler_.RunUntilIdle();
  EXPECT_EQ(cancelled.result().code(), StatusCode::kCancelled);
  release_.Set();
  scheduler_.RunUntilIdle();
  EXPECT_TRUE(behind.done());
  EXPECT_THAT(order_, ElementsAre(1, 3));
}

TEST_F(MutexTest, ACancelledCoroutineDoesNotEvenTakeAFreeLock) {
  CancelScope scope;
  scope.Request(StatusCode::kDeadlineExceeded);
  Started refused(scheduler_, LockOnce(1), &scope);
  EXPECT_EQ(refused.result().code(), StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(mutex_.locked());
}

TEST_F(MutexTest, CancellationAfterTheHandOverLeavesTheLockWithTheWaiter) {
  CancelScope scope;
  Started holder(scheduler_, HoldUntil(release_, 1));
  Started waiting(scheduler_, LockOnce(2), &scope);
  holder.Abandon();
  scope.Request();
  scheduler_.RunUntilIdle();
  EXPECT_TRUE(waiting.result().ok());
  EXPECT_FALSE(mutex_.locked());
}

TEST_F(MutexTest, AnAbandonedWaiterLetsThoseBehindIn) {
  Started holder(scheduler_, HoldUntil(release_, 1));
  Started abandoned(scheduler_, LockOnce(2));
  Started behind(scheduler_, LockOnce(3));
  abandoned.Abandon();
  release_.Set();
  scheduler_.RunUntilIdle();
  EXPECT_TRUE(behind.done());
}

TEST_F(MutexTest, ALockOnItsWayToAnAbandonedWaiterGoesToTheNext) {
  Started holder(scheduler_, HoldUntil(release_, 1));
  Started dying(scheduler_, LockOnce(2));
  Started next(scheduler_, LockOnce(3));
  holder.Abandon();  // gives the lock to `dying`
  dying.Abandon();
  scheduler_.RunUntilIdle();
  EXPECT_TRUE(next.done());
  EXPECT_THAT(order_, ElementsAre(1, 3));
  EXPECT_FALSE(mutex_.locked());
}

Task<absl::Status> Increment(Mutex& mutex, int& shared) {
  VERBENA_CO_ASSIGN_OR_RETURN(const MutexLock lock, co_await mutex.Lock());
  const int before = shared;
  VERBENA_CO_RETURN_IF_ERROR(co_await Yield());
  shared = before + 1;
  co_return absl::OkStatus();
}

TEST_F(MutexTest, ExcludesOthersAcrossAnAwaitAndAllocatesNothing) {
  int shared = 0;
  const auto round = [&] {
    Started a(scheduler_, Increment(mutex_, shared));
    Started b(scheduler_, Increment(mutex_, shared));
    Started c(scheduler_, Increment(mutex_, shared));
    scheduler_.RunUntilIdle();
  };
  round();
  const size_t before = CountedNews();
  for (int i = 0; i < 99; ++i) round();
  EXPECT_EQ(CountedNews(), before);
  EXPECT_EQ(shared, 300);
}

TEST(MutexDeathTest, DestroyingALockedMutexAborts) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        std::optional<Mutex> mutex(std::in_place);
        const std::optional<MutexLock> lock = mutex->TryLock();
        mutex.reset();
      },
      "destroyed while somebody holds it");
}

}  // namespace mutex_test
}  // namespace verbena::internal
