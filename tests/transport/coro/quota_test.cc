// What is taken of a quota is taken of all above it, or of none, and comes back from each of them,
// whichever waiters are cancelled or destroyed and whenever. Who asks first is served first.

#include "verbena/transport/coro/quota.h"

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/manual_scheduler.h"
#include "tests/transport/coro/started.h"
#include "verbena/transport/coro/cancel.h"

namespace verbena::internal {
namespace quota_test {

using absl::StatusCode;
using ::testing::HasSubstr;
using ::testing::Not;

Task<absl::Status> TakeAll(QuotaHold& hold) {
  while (hold.missing() != nullptr) VERBENA_CO_RETURN_IF_ERROR(co_await hold.TakeNext());
  co_return absl::OkStatus();
}

class QuotaTest : public testing::Test {
 protected:
  // Wants `n` of `quota`, and waits for it.
  struct Waiter {
    Waiter(Scheduler& scheduler, Quota& quota, size_t n, CancelScope* scope = nullptr)
        : hold(quota, n), taking(scheduler, TakeAll(hold), scope) {}

    QuotaHold hold;
    Started<absl::Status> taking;
  };

  std::unique_ptr<Waiter> Wait(Quota& quota, size_t n, CancelScope* scope = nullptr) {
    return std::make_unique<Waiter>(scheduler_, quota, n, scope);
  }
  void ExpectUsed(size_t of_top, size_t of_first, size_t of_second) {
    EXPECT_EQ(top_.used(), of_top);
    EXPECT_EQ(first_.used(), of_first);
    EXPECT_EQ(second_.used(), of_second);
  }

  ManualScheduler scheduler_;
  Quota top_{6, nullptr, {"all", "Raise top"}};
  Quota first_{4, &top_, {"the first's", "Raise first"}};
  Quota second_{4, &top_, {"the second's", "Raise second"}};
};

TEST_F(QuotaTest, TakesOfThisAndOfAllAboveOrNothing) {
  EXPECT_FALSE(first_.TryTake(5));
  ExpectUsed(0, 0, 0);
  EXPECT_TRUE(first_.TryTake(4));
  EXPECT_FALSE(first_.TryTake(1));
  EXPECT_FALSE(second_.TryTake(3));
  ExpectUsed(4, 4, 0);
  EXPECT_TRUE(second_.TryTake(2));
  ExpectUsed(6, 4, 2);
  first_.Give(3);
  ExpectUsed(3, 1, 2);
  first_.Give(1);
  second_.Give(2);
}

TEST_F(QuotaTest, AHoldGivesBackOnceWhereverItMoved) {
  QuotaHold hold(first_, 3);
  EXPECT_FALSE(hold);
  EXPECT_EQ(hold.missing(), &first_);
  ASSERT_TRUE(hold.TryTake());
  EXPECT_TRUE(hold);
  EXPECT_EQ(hold.missing(), nullptr);
  EXPECT_EQ(first_.kept(), 0u) << "no memory has come for it";
  hold.Keep();
  EXPECT_EQ(first_.kept(), 1u);
  {
    QuotaHold moved(std::move(hold));
    EXPECT_TRUE(moved);
    EXPECT_EQ(first_.kept(), 1u);
    ExpectUsed(3, 3, 0);
    QuotaHold other(second_, 2);
    ASSERT_TRUE(other.TryTake());
    other = std::move(moved);
    ExpectUsed(3, 3, 0);
    EXPECT_EQ(second_.kept(), 0u);
  }
  ExpectUsed(0, 0, 0);
  EXPECT_EQ(first_.kept(), 0u);
  ASSERT_TRUE(second_.TryTake(2));
  QuotaHold taken = QuotaHold::Taken(second_, 2);
  taken.Give();
  taken.Give();
  ExpectUsed(0, 0, 0);
}

TEST_F(QuotaTest, AHoldThatLacksOneQuotaTakesNothing) {
  ASSERT_TRUE(second_.TryTake(4));
  QuotaHold hold(first_, 3);
  EXPECT_FALSE(hold.TryTake());
  ExpectUsed(4, 0, 4);
  EXPECT_EQ(hold.missing(), &first_);
  second_.Give(4);
  EXPECT_TRUE(hold.TryTake());
}

TEST_F(QuotaTest, AHoldLargerThanTheLimitTakesAllOfIt) {
  QuotaHold five(first_, 5);
  ASSERT_TRUE(five.TryTake());
  ExpectUsed(5, 4, 0);
  five.Give();
  auto seven = Wait(first_, 7);
  EXPECT_TRUE(seven->hold);
  ExpectUsed(6, 4, 0);
  seven.reset();
  ExpectUsed(0, 0, 0);
}

TEST_F(QuotaTest, WaitsHereFirstAndThenAbove) {
  ASSERT_TRUE(first_.TryTake(4));
  ASSERT_TRUE(second_.TryTake(2));
  auto waiter = Wait(first_, 2);
  EXPECT_EQ(waiter->hold.missing(), &first_);
  // Its own room comes, and another takes that of the top.
  ASSERT_FALSE(second_.TryTake(1));
  first_.Give(2);
  EXPECT_TRUE(second_.TryTake(2));
  scheduler_.RunUntilIdle();
  EXPECT_EQ(waiter->hold.missing(), &top_);
  ExpectUsed(6, 4, 4);
  second_.Give(4);
  EXPECT_FALSE(waiter->taking.done());  // not inline
  scheduler_.RunUntilIdle();
  EXPECT_TRUE(waiter->hold);
  ExpectUsed(4, 4, 0);
  first_.Give(2);
}

TEST_F(QuotaTest, ServesInOrderHereAndAbove) {
  ASSERT_TRUE(first_.TryTake(3));
  auto large = Wait(first_, 3);
  auto small = Wait(first_, 1);
  EXPECT_FALSE(first_.TryTake(1));
  EXPECT_FALSE(QuotaHold(first_, 1).TryTake());
  EXPECT_TRUE(second_.TryTake(1));
  first_.Give(3);
  scheduler_.RunUntilIdle();
  EXPECT_TRUE(large->hold);
  EXPECT_TRUE(small->hold);
  // The top has one left.
  second_.Give(1);
  large.reset();
  auto of_second = Wait(second_, 4);
  auto of_first = Wait(first_, 2);
  EXPECT_TRUE(of_second->hold);
  EXPECT_EQ(of_first->hold.missing(), &top_);
  EXPECT_FALSE(first_.TryTake(1)) << "one of its part waits above";
  of_second.reset();
  scheduler_.RunUntilIdle();
  EXPECT_TRUE(of_first->hold);
}

TEST_F(QuotaTest, AWaiterThatIsCancelledHereHoldsNothing) {
  ASSERT_TRUE(first_.TryTake(3));
  CancelScope scope;
  auto waiter = Wait(first_, 3, &scope);
  auto behind = Wait(first_, 1);
  scope.Request();
  scheduler_.RunUntilIdle();
  EXPECT_EQ(waiter->taking.result().code(), StatusCode::kCancelled);
  EXPECT_TRUE(behind->hold);
  behind.reset();
  ExpectUsed(3, 3, 0);
  first_.Give(3);
}

TEST_F(QuotaTest, AWaiterThatIsCancelledAboveGivesItsPartBack) {
  ASSERT_TRUE(second_.TryTake(4));
  CancelScope scope;
  auto waiter = Wait(first_, 4, &scope);
  EXPECT_EQ(waiter->hold.missing(), &top_);
  auto behind = Wait(first_, 2);
  EXPECT_EQ(behind->hold.missing(), &first_);
  ExpectUsed(4, 4, 4);
  scope.Request();
  scheduler_.RunUntilIdle();
  EXPECT_EQ(waiter->taking.result().code(), StatusCode::kCancelled);
  EXPECT_FALSE(waiter->hold);
  waiter.reset();
  scheduler_.RunUntilIdle();
  EXPECT_TRUE(behind->hold);
  behind.reset();
  ExpectUsed(4, 0, 4);
  second_.Give(4);
}

TEST_F(QuotaTest, ACancellationBehindTheGrantComesTooLate) {
  ASSERT_TRUE(first_.TryTake(4));
  CancelScope scope;
  auto waiter = Wait(first_, 2, &scope);
  first_.Give(4);
  scope.Request();
  scheduler_.RunUntilIdle();
  // It has its part of the first, and finds the cancellation at the next.
  EXPECT_EQ(waiter->taking.result().code(), StatusCode::kCancelled);
  ExpectUsed(0, 2, 0);
  waiter.reset();
  ExpectUsed(0, 0, 0);
}

TEST_F(QuotaTest, AWaiterThatIsDestroyedInAnyStateLeavesNothing) {
  ASSERT_TRUE(first_.TryTake(4));
  // In the queue.
  auto waiter = Wait(first_, 4);
  auto behind = Wait(first_, 1);
  waiter.reset();
  first_.Give(4);
  scheduler_.RunUntilIdle();
  EXPECT_TRUE(behind->hold);
  // Served here, and not run since.
  auto served = Wait(first_, 4);
  behind.reset();
  served.reset();
  ExpectUsed(0, 0, 0);
  // In the queue above.
  ASSERT_TRUE(second_.TryTake(4));
  auto above = Wait(first_, 4);
  EXPECT_EQ(above->hold.missing(), &top_);
  above.reset();
  ExpectUsed(4, 0, 4);
  // Served above, and not run since.
  above = Wait(first_, 4);
  second_.Give(4);
  above.reset();
  ExpectUsed(0, 0, 0);
  EXPECT_EQ(scheduler_.RunUntilIdle(), 0u);
}

TEST_F(QuotaTest, ManyWaitersDestroyedInAnyOrderLoseNothing) {
  ASSERT_TRUE(first_.TryTake(4));
  ASSERT_TRUE(second_.TryTake(2));
  std::vector<std::unique_ptr<Waiter>> waiters;
  waiters.reserve(10);
  for (size_t i = 0; i < 10; ++i) waiters.push_back(Wait(i % 2 == 0 ? first_ : second_, i % 5 + 1));
  first_.Give(4);
  scheduler_.RunUntilIdle();
  second_.Give(2);
  for (size_t i : {3, 0, 9, 1, 5, 2, 8, 4, 7, 6}) waiters[i].reset();
  scheduler_.RunUntilIdle();
  ExpectUsed(0, 0, 0);
}

TEST_F(QuotaTest, SaysWhoseQuotaLacksHowMuch) {
  const Duration second = std::chrono::seconds(1);
  ASSERT_TRUE(first_.TryTake(4));
  EXPECT_EQ(&first_.Lacking(1), &first_);
  EXPECT_EQ(first_.Exhausted(1, 1, second).message(),
            "1 bytes did not come free within 1000 ms: the first's take 4 of the 4 bytes that they "
            "may have. Raise first");
  EXPECT_EQ(&second_.Lacking(3), &top_);
  EXPECT_EQ(&second_.Lacking(5), &second_);
  EXPECT_EQ(&second_.Lacking(1), &top_) << "none lacks it";
  // One that waits above is not taken for one that holds memory.
  auto above = Wait(second_, 4);
  EXPECT_THAT(
      second_.Exhausted(1, 1, second).message(),
      HasSubstr("the second's take 0 of the 4 bytes that they may have, and 4 more are kept "
                "for other calls, which wait for memory"));
  EXPECT_THAT(top_.Exhausted(2, 2, second).message(),
              HasSubstr("and the 2 left may be too few for a call that asked before"));
  first_.Give(4);
  scheduler_.RunUntilIdle();
  EXPECT_TRUE(above->hold);
  EXPECT_THAT(second_.Exhausted(1, 1, second).message(), Not(HasSubstr("kept for")));
}

TEST(QuotaDeathTest, NobodyGivesBackWhatIsNotTakenOrKeepsWhatIs) {
  Quota top(4, nullptr, {"all", ""});
  Quota quota(2, &top, {"mine", ""});
  EXPECT_DEATH(quota.Give(1), "mine hold 0, and give back 1");
  EXPECT_DEATH(
      {
        Quota leaks(2, nullptr, {"some", ""});
        (void)leaks.TryTake(1);
      },
      "some never gave back 1 of 2");
}

}  // namespace quota_test
}  // namespace verbena::internal
