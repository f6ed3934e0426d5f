// A pool whose arenas control threads register makes only those wait that need the new memory. A
// growth that is refused, or that nobody wants any more, costs nobody else.

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "tests/support/manual_scheduler.h"
#include "tests/transport/coro/started.h"
#include "tests/transport/device/held_device.h"
#include "tests/transport/memory/buffer_pool_fixture.h"
#include "tests/transport/memory/pinning_device.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/device/control_pool.h"
#include "verbena/transport/memory/buffer_pool.h"
#include "verbena/transport/memory/carved_arena.h"

namespace verbena::internal {
namespace pool_growth_test {

using absl::StatusCode;
using std::chrono::milliseconds;
using testing::HasSubstr;
using Verb = HeldDevice::Verb;

class PoolGrowthTest : public testing::Test {
 protected:
  using Waiting = Started<absl::StatusOr<Buffer>>;
  // More than any test makes the pool ask a device for memory.
  static constexpr int kManyCalls = 100;

  void SetUp() override { held_.WatchThisThread(); }
  void TearDown() override {
    OnHome([this] { buffers_.clear(); });
    pool_.reset();
    control_.reset();
    scheduler_.RunUntilIdle();
    EXPECT_EQ(device_.regions(), 0u);
  }

  // Arenas begin with 64 KiB.
  void Make(size_t budget) {
    pool_ = BufferPool::Create(scheduler_, held_, nullptr,
                               {.name = "test",
                                .budget_bytes = budget,
                                .first_arena_bytes = 64 * kKiB,
                                .control = control_.get()})
                .value();
  }
  void OnHome(const std::function<void()>& body) {
    scheduler_
        .Run([](const std::function<void()>& function) -> Task<absl::Status> {
          function();
          co_return absl::OkStatus();
        }(body))
        .IgnoreError();
  }
  void RunUntil(const std::function<bool()>& done) {
    while (!done()) {
      scheduler_.RunUntilIdle();
      std::this_thread::yield();
    }
  }
  void AwaitHeld(Verb verb) {
    RunUntil([&] { return held_.waiting(verb) > 0; });
  }
  // Allocates on the scheduler, waits, and keeps it.
  absl::Status Take(size_t bytes) {
    Waiting waiting(scheduler_, Allocate(*pool_, bytes));
    return Keep(waiting);
  }
  absl::Status Keep(Waiting& waiting) {
    RunUntil([&] { return waiting.done() || held_.calls(Verb::kRegister) > kManyCalls; });
    if (!waiting.done()) return absl::UnknownError("the device is asked again and again");
    absl::StatusOr<Buffer> buffer = waiting.result();
    if (!buffer.ok()) return buffer.status();
    buffers_.push_back(*std::move(buffer));
    return absl::OkStatus();
  }
  absl::Status TryTake(size_t bytes) {
    absl::Status status;
    OnHome([&] {
      absl::StatusOr<Buffer> buffer = pool_->TryAllocate(bytes);
      status = buffer.status();
      if (buffer.ok()) buffers_.push_back(*std::move(buffer));
    });
    return status;
  }
  void AwaitGrown() {
    RunUntil([&] { return pool_->stats().growing_bytes == 0; });
  }

  ManualScheduler scheduler_;
  PinningDevice device_;
  HeldDevice held_{device_};
  std::unique_ptr<ControlPool> control_ = std::make_unique<ControlPool>();
  std::unique_ptr<BufferPool> pool_;
  std::vector<Buffer> buffers_;
};

TEST_F(PoolGrowthTest, NoArenaIsRegisteredOrFreedOnTheSchedulersThread) {
  Make(256 * kKiB);
  for (int i = 0; i < 4; ++i) ASSERT_EQ(Take(48 * kKiB), absl::OkStatus());
  EXPECT_GT(pool_->stats().arenas, 1u);
  OnHome([this] { buffers_.clear(); });
  // Takes the place of all of them.
  ASSERT_EQ(Take(256 * kKiB), absl::OkStatus());
  EXPECT_EQ(pool_->stats().arenas, 1u);
  EXPECT_EQ(device_.pinned(), 256 * kKiB);
  EXPECT_GT(held_.calls(Verb::kDeregister), 1);
  EXPECT_EQ(held_.calls_of_this_thread(), 0);
}

TEST_F(PoolGrowthTest, AWaiterIsServedWhenTheGrowthEnds) {
  Make(kMiB);
  held_.Hold(Verb::kRegister);
  Waiting first(scheduler_, Allocate(*pool_, 4 * kKiB));
  Waiting second(scheduler_, Allocate(*pool_, 32 * kKiB));
  AwaitHeld(Verb::kRegister);
  EXPECT_FALSE(first.done() || second.done());
  EXPECT_EQ(pool_->stats().growing_bytes, 64 * kKiB);
  const absl::Status none = TryTake(1);
  EXPECT_EQ(none.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(none.ToString(), HasSubstr("0 are in use, 65536 more are being registered, and 2"));
  held_.Release(Verb::kRegister);
  EXPECT_EQ(Keep(first), absl::OkStatus());
  EXPECT_EQ(Keep(second), absl::OkStatus());
  EXPECT_EQ(held_.calls(Verb::kRegister), 1);
}

// Its owner may give the memory away then, and nobody would serve the waiter.
TEST_F(PoolGrowthTest, APoolIsInUseWhileALargeRequestWaitsForItsFirstArena) {
  Make(kMiB);
  held_.Hold(Verb::kRegister);
  Waiting large(scheduler_, Allocate(*pool_, 128 * kKiB));
  AwaitHeld(Verb::kRegister);
  EXPECT_FALSE(pool_->unused());
  held_.Release(Verb::kRegister);
  EXPECT_EQ(Keep(large), absl::OkStatus());
}

TEST_F(PoolGrowthTest, ThePoolGrowsBeforeAnybodyHasToWait) {
  Make(256 * kKiB);
  ASSERT_EQ(Take(48 * kKiB), absl::OkStatus());
  EXPECT_EQ(held_.calls(Verb::kRegister), 1) << "a quarter is free";
  ASSERT_EQ(TryTake(4 * kKiB), absl::OkStatus());
  AwaitGrown();
  EXPECT_EQ(held_.calls(Verb::kRegister), 2);
  EXPECT_EQ(pool_->stats().arena_bytes, 128 * kKiB);
  EXPECT_EQ(TryTake(64 * kKiB), absl::OkStatus());
  AwaitGrown();
  EXPECT_EQ(pool_->stats().arena_bytes, 256 * kKiB);
  EXPECT_EQ(pool_->stats().waits, 1u) << "the very first allocation";
  // At the budget it grows no further.
  EXPECT_EQ(TryTake(128 * kKiB), absl::OkStatus());
  AwaitGrown();
  EXPECT_EQ(held_.calls(Verb::kRegister), 3);
}

TEST_F(PoolGrowthTest, FreeMemoryServesOthersWhileALargeRequestWaitsForTheGrowth) {
  Make(kMiB);
  ASSERT_EQ(Take(4 * kKiB), absl::OkStatus());
  held_.Hold(Verb::kRegister);
  Waiting large(scheduler_, Allocate(*pool_, 128 * kKiB));
  AwaitHeld(Verb::kRegister);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(TryTake(4 * kKiB), absl::OkStatus());
  Waiting small(scheduler_, Allocate(*pool_, 4 * kKiB));
  EXPECT_TRUE(small.done());
  EXPECT_EQ(Keep(small), absl::OkStatus());
  EXPECT_FALSE(large.done());
  held_.Release(Verb::kRegister);
  EXPECT_EQ(Keep(large), absl::OkStatus());
}

// Nor does a growth in place, at set-up.
TEST_F(PoolGrowthTest, AGrowthUnderWayCountsAgainstTheBudget) {
  Make(128 * kKiB);
  ASSERT_EQ(Take(64 * kKiB), absl::OkStatus());
  AwaitGrown();
  OnHome([this] { buffers_.clear(); });
  pool_.reset();
  Make(128 * kKiB);
  held_.Hold(Verb::kRegister);
  Waiting waiting(scheduler_, Allocate(*pool_, 128 * kKiB));
  AwaitHeld(Verb::kRegister);
  EXPECT_EQ(pool_->stats().growing_bytes, 128 * kKiB);
  EXPECT_FALSE(pool_->TryAllocate(1).ok()) << "on a thread that runs no scheduler";
  held_.Release(Verb::kRegister);
  EXPECT_EQ(Keep(waiting), absl::OkStatus());
  EXPECT_EQ(device_.pinned(), 128 * kKiB);
}

// --- A device that refuses -----------------------------------------------------------------------

TEST_F(PoolGrowthTest, ARefusalReachesTheWaiterAndIsNotRepeatedAtOnce) {
  device_.limit = 100;
  Make(kMiB);
  Waiting first(scheduler_, Allocate(*pool_, 4 * kKiB));
  Waiting second(scheduler_, Allocate(*pool_, 8 * kKiB));
  for (Waiting* waiting : {&first, &second}) {
    const absl::Status refused = Keep(*waiting);
    EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
    EXPECT_THAT(refused.ToString(), HasSubstr("of the test budget's 1048576 bytes only 0 could be "
                                              "registered: RLIMIT_MEMLOCK is 100"));
  }
  // The pool first tries to register what it wants, and then the least that would do.
  EXPECT_EQ(held_.calls(Verb::kRegister), 2);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_THAT(Take(4 * kKiB).ToString(), HasSubstr("RLIMIT_MEMLOCK is 100"));
  }
  EXPECT_EQ(held_.calls(Verb::kRegister), 2);
  // The pause doubles.
  scheduler_.AdvanceBy(milliseconds(100));
  EXPECT_FALSE(Take(4 * kKiB).ok());
  EXPECT_EQ(held_.calls(Verb::kRegister), 4);
  scheduler_.AdvanceBy(milliseconds(199));
  device_.limit = kMiB;
  EXPECT_FALSE(Take(4 * kKiB).ok());
  EXPECT_EQ(held_.calls(Verb::kRegister), 4);
  scheduler_.AdvanceBy(milliseconds(1));
  EXPECT_EQ(Take(4 * kKiB), absl::OkStatus());
  EXPECT_EQ(pool_->growth_failure(), absl::OkStatus());
}

TEST_F(PoolGrowthTest, AfterARefusalMemoryThatComesHomeServesAWaiter) {
  device_.limit = 64 * kKiB;
  Make(kMiB);
  ASSERT_EQ(Take(48 * kKiB), absl::OkStatus());
  Waiting waiting(scheduler_, Allocate(*pool_, 32 * kKiB));
  AwaitGrown();
  EXPECT_FALSE(waiting.done());
  EXPECT_THAT(pool_->growth_failure().ToString(), HasSubstr("RLIMIT_MEMLOCK is 65536"));
  EXPECT_EQ(pool_->stats().budget_bytes, 64 * kKiB);
  const int asked = held_.calls(Verb::kRegister);
  OnHome([this] { buffers_.clear(); });
  EXPECT_EQ(Keep(waiting), absl::OkStatus());
  EXPECT_EQ(held_.calls(Verb::kRegister), asked);
  EXPECT_EQ(held_.calls_of_this_thread(), 0);
}

// The small one is there all the time, and what the large one needs is not.
TEST_F(PoolGrowthTest, ARefusalOfALargeRequestLeavesTheRestOfTheBudgetUsable) {
  device_.limit = 64 * kKiB;
  Make(kMiB);
  ASSERT_EQ(Take(4 * kKiB), absl::OkStatus());
  EXPECT_THAT(Take(512 * kKiB).ToString(), HasSubstr("RLIMIT_MEMLOCK is 65536"));
  EXPECT_EQ(Take(32 * kKiB), absl::OkStatus());
}

TEST_F(PoolGrowthTest, ARefusalForWhichArenasWereGivenUpIsNotRepeatedAtOnce) {
  Make(256 * kKiB);
  for (int i = 0; i < 4; ++i) ASSERT_EQ(Take(48 * kKiB), absl::OkStatus());
  OnHome([this] { buffers_.clear(); });
  AwaitGrown();
  device_.largest = 64 * kKiB;
  const int asked = held_.calls(Verb::kRegister);
  EXPECT_THAT(Take(256 * kKiB).ToString(), HasSubstr("262144 bytes are more than 65536"));
  EXPECT_THAT(Take(256 * kKiB).ToString(), HasSubstr("262144 bytes are more than 65536"));
  EXPECT_LE(held_.calls(Verb::kRegister), asked + 2);
  // Less than was given up can be had again.
  EXPECT_EQ(Take(48 * kKiB), absl::OkStatus());
}

// --- Nobody wants it any more --------------------------------------------------------------------

TEST_F(PoolGrowthTest, AWaiterThatIsDestroyedLeavesTheGrowthToOthers) {
  Make(kMiB);
  held_.Hold(Verb::kRegister);
  Waiting gone(scheduler_, Allocate(*pool_, 32 * kKiB));
  CancelScope scope;
  Waiting cancelled(scheduler_, Allocate(*pool_, 32 * kKiB), &scope);
  Waiting stays(scheduler_, Allocate(*pool_, 32 * kKiB));
  AwaitHeld(Verb::kRegister);
  OnHome([&] { gone.Abandon(); });
  scope.Request();
  scheduler_.RunUntilIdle();
  EXPECT_EQ(Keep(cancelled).code(), StatusCode::kCancelled);
  EXPECT_FALSE(stays.done());
  held_.Release(Verb::kRegister);
  EXPECT_EQ(Keep(stays), absl::OkStatus());
  EXPECT_EQ(pool_->stats().waiting, 0u);
  EXPECT_EQ(held_.calls(Verb::kRegister), 1);
}

TEST_F(PoolGrowthTest, APoolMayGoWhileItGrows) {
  Make(kMiB);
  held_.Hold(Verb::kRegister);
  {
    Waiting waiting(scheduler_, Allocate(*pool_, 32 * kKiB));
    AwaitHeld(Verb::kRegister);
    OnHome([&] { waiting.Abandon(); });
  }
  pool_.reset();
  held_.Release(Verb::kRegister);
  control_.reset();
  EXPECT_EQ(device_.regions(), 0u);
  EXPECT_EQ(held_.calls(Verb::kDeregister), 1);
  EXPECT_EQ(held_.calls_of_this_thread(), 0);
}

// As when the pool's device has failed: nobody waits, but the pool had begun to grow ahead of need.
TEST_F(PoolGrowthTest, APoolMayGiveItsArenasAwayWhileItGrows) {
  Make(kMiB);
  ASSERT_EQ(Take(32 * kKiB), absl::OkStatus());
  held_.Hold(Verb::kRegister);
  ASSERT_EQ(Take(32 * kKiB), absl::OkStatus());
  AwaitHeld(Verb::kRegister);
  EXPECT_GT(pool_->stats().growing_bytes, 0u);
  std::vector<std::unique_ptr<CarvedArena>> arenas;
  OnHome([&] {
    buffers_.clear();
    EXPECT_TRUE(pool_->unused());
    arenas = pool_->TakeArenas();
  });
  EXPECT_EQ(arenas.size(), 1u);
  EXPECT_EQ(pool_->stats().growing_bytes, 0u);
  pool_.reset();
  held_.Release(Verb::kRegister);
  control_.reset();
  EXPECT_EQ(device_.regions(), 1u);
  arenas.clear();
  EXPECT_EQ(device_.regions(), 0u);
}

// Its result is in the inbox already.
TEST_F(PoolGrowthTest, APoolMayGoWhenItHasJustGrown) {
  Make(kMiB);
  {
    Waiting waiting(scheduler_, Allocate(*pool_, 32 * kKiB));
    while (held_.calls(Verb::kRegister) == 0 || held_.waiting(Verb::kRegister) > 0) {
      std::this_thread::yield();
    }
    OnHome([&] { waiting.Abandon(); });
  }
  pool_.reset();
  control_.reset();
  EXPECT_EQ(device_.regions(), 0u);
  scheduler_.RunUntilIdle();
}

}  // namespace pool_growth_test
}  // namespace verbena::internal
