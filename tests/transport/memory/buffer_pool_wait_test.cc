// A pool serves waiters in order, but lets small requests pass a large one. Buffers come home from
// any thread, also after their pool's end.

#include <chrono>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/transport/memory/buffer_pool_fixture.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/memory/buffer_pool.h"

namespace verbena::internal {
namespace buffer_pool_wait_test {

using absl::StatusCode;

// --- Waiting -------------------------------------------------------------------------------------

class BufferPoolWaitTest : public BufferPoolTest {
 protected:
  void SetUp() override {
    MakeWithBudget(16 * kKiB);
    held_ = Take(16 * kKiB);
  }
  static void Drop(absl::StatusOr<Buffer>& buffer) { buffer = absl::UnknownError(""); }

  Buffer held_;
};

TEST_F(BufferPoolWaitTest, WaitersAreServedInOrderWhateverTheirSize) {
  Waiting large(scheduler_, Allocate(*pool_, 16 * kKiB));
  Waiting small(scheduler_, Allocate(*pool_, 1));
  EXPECT_EQ(pool_->stats().waiting, 2u);
  EXPECT_EQ(pool_->TryAllocate(1).status().code(), StatusCode::kResourceExhausted);
  Free(held_);
  ASSERT_TRUE(large.done());
  EXPECT_FALSE(small.done());
  absl::StatusOr<Buffer> buffer = large.result();
  ASSERT_TRUE(buffer.ok());
  OnHome([&] { Drop(buffer); });
  ASSERT_TRUE(small.done());
  buffer = small.result();
  EXPECT_TRUE(buffer.ok());
  OnHome([&] { Drop(buffer); });
  EXPECT_EQ(pool_->stats().waits, 2u);
  EXPECT_EQ(pool_->stats().waiting, 0u);
  EXPECT_EQ(pool_->stats().bytes_in_use, 0u);
}

TEST_F(BufferPoolWaitTest, SmallRequestsPassALargeOneThatWaits) {
  Free(held_);
  MakeWithBudget(64 * kKiB);
  held_ = Take(1);
  Waiting large(scheduler_, Allocate(*pool_, 64 * kKiB));
  ASSERT_FALSE(large.done());
  Waiting small(scheduler_, Allocate(*pool_, 1));
  ASSERT_TRUE(small.done());
  absl::StatusOr<Buffer> allocated = small.result();
  EXPECT_TRUE(allocated.ok()) << allocated.status();
  // Another large one does not.
  EXPECT_EQ(pool_->TryAllocate(8 * kKiB).status().code(), StatusCode::kResourceExhausted);
  std::vector<Buffer> rest;
  for (int i = 0; i < 14; ++i) rest.push_back(Take(1));
  // Small ones keep their order, and go first.
  Waiting first(scheduler_, Allocate(*pool_, 1));
  EXPECT_FALSE(first.done());
  EXPECT_EQ(pool_->stats().waiting, 2u);
  OnHome([&] { Drop(allocated); });
  ASSERT_TRUE(first.done());
  allocated = first.result();
  Free(held_);
  OnHome([&] {
    Drop(allocated);
    rest.clear();
  });
  ASSERT_TRUE(large.done());
  allocated = large.result();
  EXPECT_TRUE(allocated.ok()) << allocated.status();
  EXPECT_EQ(pool_->stats().waiting, 0u);
  OnHome([&] { Drop(allocated); });
}

TEST_F(BufferPoolWaitTest, ACancelledWaiterGivesUpItsPlace) {
  CancelScope scope;
  Waiting large(scheduler_, Allocate(*pool_, 16 * kKiB), &scope);
  scope.Request();
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(large.done());
  EXPECT_EQ(large.result().status().code(), StatusCode::kCancelled);
  EXPECT_EQ(pool_->stats().waiting, 0u);
  Free(held_);
}

TEST_F(BufferPoolWaitTest, ADeadlineEndsTheWait) {
  const absl::StatusOr<Buffer> late =
      scheduler_.Run(WithDeadline(Allocate(*pool_, 1), Duration(std::chrono::milliseconds(5))));
  EXPECT_EQ(late.status().code(), StatusCode::kDeadlineExceeded);
  Free(held_);
}

TEST_F(BufferPoolWaitTest, AWaiterThatGivesUpLetsThoseBehindPass) {
  // Half of the budget is free, and the first wants all.
  Free(held_);
  held_ = Take(8 * kKiB);
  CancelScope scope;
  Waiting large(scheduler_, Allocate(*pool_, 16 * kKiB), &scope);
  Waiting small(scheduler_, Allocate(*pool_, 8 * kKiB));
  EXPECT_FALSE(small.done());
  scope.Request();
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(small.done());
  absl::StatusOr<Buffer> buffer = small.result();
  EXPECT_TRUE(buffer.ok());
  OnHome([&] { Drop(buffer); });
  Free(held_);
}

TEST_F(BufferPoolWaitTest, AnAbandonedWaiterLetsThoseBehindPassAndGivesBackWhatItWasGranted) {
  Waiting first(scheduler_, Allocate(*pool_, 16 * kKiB));
  Waiting second(scheduler_, Allocate(*pool_, 16 * kKiB));
  Waiting third(scheduler_, Allocate(*pool_, 16 * kKiB));
  OnHome([&] { first.Abandon(); });
  OnHome([&] {
    held_.Reset();     // goes to the second, which is queued as ready
    second.Abandon();  // and does not live to see it
  });
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(third.done());
  absl::StatusOr<Buffer> buffer = third.result();
  EXPECT_TRUE(buffer.ok());
  OnHome([&] { Drop(buffer); });
  EXPECT_EQ(pool_->stats().bytes_in_use, 0u);
}

TEST_F(BufferPoolWaitTest, CancellationAfterTheGrantLeavesTheBufferWithTheWaiter) {
  CancelScope scope;
  Waiting waiting(scheduler_, Allocate(*pool_, 1), &scope);
  OnHome([&] {
    held_.Reset();
    scope.Request();
  });
  scheduler_.RunUntilIdle();
  absl::StatusOr<Buffer> buffer = waiting.result();
  EXPECT_TRUE(buffer.ok()) << buffer.status();
  OnHome([&] { Drop(buffer); });
}

TEST_F(BufferPoolWaitTest, ACancelledScopeGetsNothing) {
  Free(held_);
  CancelScope scope;
  scope.Request();
  Waiting refused(scheduler_, Allocate(*pool_, 1), &scope);
  EXPECT_EQ(refused.result().status().code(), StatusCode::kCancelled);
  EXPECT_EQ(pool_->stats().bytes_in_use, 0u);
}

// --- The way home --------------------------------------------------------------------------------

TEST_F(BufferPoolWaitTest, ABufferFreedOffItsSchedulerComesHomeWithTheInbox) {
  Waiting waiting(scheduler_, Allocate(*pool_, 1));
  held_.Reset();  // this thread is in no scheduler
  EXPECT_FALSE(waiting.done());
  EXPECT_EQ(pool_->stats().bytes_in_use, 16 * kKiB);
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(waiting.done());
  absl::StatusOr<Buffer> buffer = waiting.result();
  EXPECT_TRUE(buffer.ok());
  EXPECT_EQ(pool_->stats().returns_from_afar, 1u);
  OnHome([&] { Drop(buffer); });
}

TEST_F(BufferPoolTest, APoolMayGoWhileItsBuffersAreOnTheirWayHome) {
  Make({.name = "test"});
  Buffer first = Take(1);
  Buffer second = Take(1);
  first.Reset();
  second.Reset();
  pool_.reset();
  EXPECT_EQ(device_.regions(), 0u);
  scheduler_.RunUntilIdle();  // what is left of it goes
}

TEST_F(BufferPoolTest, AQuotaGetsItsHoldBackWhenTheMemoryIsFreeAndMayGoThen) {
  Make({.name = "test"});
  auto quota = std::make_shared<Quota>(2);
  const std::weak_ptr<Quota> lives = quota;
  Buffer buffer = Take(1);
  QuotaHold hold(*quota, 2);
  ASSERT_TRUE(hold.TryTake());
  buffer.HoldUntilFree(std::move(hold), quota);
  // As an operation of a device does.
  OnHome([&] {
    BufferPin pin(buffer.view());
    buffer.Reset();
    EXPECT_EQ(quota->used(), 2u);
    quota.reset();
    EXPECT_FALSE(lives.expired());
    pin.Reset();
  });
  EXPECT_TRUE(lives.expired());
  // The next buffer there counts in nothing.
  Buffer next = Take(1);
  Free(next);
}

TEST_F(BufferPoolTest, AQuotaGetsTheHoldOfABufferThatIsOnItsWayHomeWhenThePoolGoes) {
  Make({.name = "test"});
  auto quota = std::make_shared<Quota>(1);
  Buffer buffer = Take(1);
  QuotaHold hold(*quota, 1);
  ASSERT_TRUE(hold.TryTake());
  buffer.HoldUntilFree(std::move(hold), quota);
  buffer.Reset();
  EXPECT_EQ(quota->used(), 1u);
  pool_.reset();
  EXPECT_EQ(quota->used(), 0u);
  scheduler_.RunUntilIdle();
  EXPECT_EQ(quota.use_count(), 1);
}

TEST_F(BufferPoolTest, ABufferThatOutlivesItsPoolKeepsItsMemory) {
  Make({.name = "test"});
  Buffer kept = Take(1);
  pool_.reset();
  EXPECT_EQ(device_.regions(), 1u);
  std::memset(kept.data(), 1, kept.size());
  Free(kept);
  EXPECT_EQ(device_.regions(), 1u);
}

}  // namespace buffer_pool_wait_test
}  // namespace verbena::internal
