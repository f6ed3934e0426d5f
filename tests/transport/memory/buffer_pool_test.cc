// A pool gives registered buffers, never exceeds its budget or what the device lets it pin, and
// registers and allocates nothing in steady state.

#include "verbena/transport/memory/buffer_pool.h"

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport/coro/counted_new.h"
#include "tests/transport/memory/buffer_pool_fixture.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/memory/carved_arena.h"

namespace verbena::internal {
namespace buffer_pool_test {

using absl::StatusCode;
using testing::HasSubstr;

// --- Buffers -------------------------------------------------------------------------------------

TEST_F(BufferPoolTest, ABufferIsAlignedRegisteredAndAsLargeAsAskedFor) {
  Make({.name = "test"});
  for (const size_t bytes : {size_t{0}, size_t{1}, 4 * kKiB, 4 * kKiB + 1, 100 * kKiB, 64 * kMiB}) {
    Buffer buffer = Take(bytes);
    ASSERT_TRUE(buffer);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 4096, 0u);
    EXPECT_EQ(buffer.size(), bytes);
    EXPECT_EQ(buffer.capacity(), SizeClassBytes(SizeClassOf(bytes)));
    EXPECT_EQ(buffer.lkey(), buffer.region().mr()->lkey);
    EXPECT_EQ(buffer.region().rkey(), buffer.lkey() + 1000);
    EXPECT_EQ(buffer.region().home(), &scheduler_);
    buffer.set_size(buffer.capacity());
    std::memset(buffer.data(), 1, buffer.size());
    Free(buffer);
  }
}

TEST_F(BufferPoolTest, RegistersNothingBeforeTheFirstAllocationAndNothingIsLeft) {
  Make({.name = "test", .exposed = true});
  EXPECT_EQ(device_.regions(), 0u);
  Buffer buffer = Take(1);
  EXPECT_EQ(device_.allocations(), 1);
  Free(buffer);
  pool_.reset();
  EXPECT_EQ(device_.regions(), 0u);
  EXPECT_EQ(device_.allocations(), 0);
}

TEST_F(BufferPoolTest, APoolWithNothingInUseGivesItsArenasAwayAndAllocatesNoMore) {
  Make({.name = "test", .exposed = true});
  EXPECT_TRUE(pool_->unused());
  Buffer one = Take(1);
  Buffer other = Take(10 * kMiB);
  EXPECT_FALSE(pool_->unused());
  Free(one);
  EXPECT_DEATH((void)pool_->TakeArenas(), "bytes of the test pool are in use");
  Free(other);
  EXPECT_TRUE(pool_->unused());
  auto arenas = pool_->TakeArenas();
  EXPECT_EQ(arenas.size(), device_.regions());
  EXPECT_GT(device_.regions(), 0u);
  EXPECT_EQ(pool_->TryAllocate(1).status().code(), StatusCode::kResourceExhausted);
  pool_.reset();
  EXPECT_GT(device_.regions(), 0u);
  arenas.clear();
  EXPECT_EQ(device_.regions(), 0u);
}

TEST_F(BufferPoolTest, ABufferOfAByteMoreThanAPowerOfTwoTakesAQuarterMore) {
  MakeWithBudget(20 * kMiB);
  Buffer buffer = Take(16 * kMiB + 1);
  ASSERT_TRUE(buffer);
  EXPECT_EQ(buffer.capacity(), 20 * kMiB);
  EXPECT_EQ(pool_->stats().bytes_in_use, 20 * kMiB);
  EXPECT_EQ(device_.pinned(), 20 * kMiB);
  Free(buffer);
}

TEST_F(BufferPoolTest, TheBufferFreedLastIsTheNextOne) {
  Make({.name = "test"});
  Buffer first = Take(10 * kKiB);
  Buffer second = Take(10 * kKiB);
  const char* data = first.data();
  Free(first);
  Buffer again = Take(9 * kKiB);
  EXPECT_EQ(again.data(), data);
  Free(again);
  Free(second);
}

TEST_F(BufferPoolTest, SteadyStateAllocatesAndRegistersNothing) {
  Make({.name = "test"});
  OnHome([&] {
    const auto use = [&] {
      Buffer a = Take(4 * kKiB);
      Buffer b = Take(64 * kKiB);
      Buffer c = Take(4 * kKiB);
    };
    use();
    const size_t news = CountedNews();
    const size_t registrations = device_.registrations();
    for (int i = 0; i < 1000; ++i) use();
    EXPECT_EQ(CountedNews(), news);
    EXPECT_EQ(device_.registrations(), registrations);
  });
  EXPECT_EQ(pool_->stats().allocations, 3003u);
}

TEST_F(BufferPoolTest, StatisticsCountWholeBlocks) {
  Make({.name = "test", .budget_bytes = 8 * kMiB});
  Buffer a = Take(5 * kKiB);
  Buffer b = Take(4 * kKiB);
  Free(b);
  const BufferPoolStats stats = pool_->stats();
  EXPECT_EQ(stats.budget_bytes, 8 * kMiB);
  EXPECT_EQ(stats.arenas, 1u);
  EXPECT_EQ(stats.arena_bytes, 2 * kMiB);
  EXPECT_EQ(stats.bytes_in_use, 8 * kKiB);
  EXPECT_EQ(stats.peak_bytes_in_use, 12 * kKiB);
  EXPECT_EQ(stats.allocations, 2u);
  EXPECT_EQ(stats.classes[0].in_use, 0u);
  EXPECT_GE(stats.classes[0].free, 1u);
  EXPECT_EQ(stats.classes[1].in_use, 1u);
  Free(a);
}

// --- Bounds --------------------------------------------------------------------------------------

TEST_F(BufferPoolTest, ABudgetOfLessThanOneBufferIsRefused) {
  auto pool = BufferPool::Create(scheduler_, device_, nullptr, {.budget_bytes = 4095});
  EXPECT_EQ(pool.status().code(), StatusCode::kInvalidArgument);
}

TEST_F(BufferPoolTest, ARequestThatCanNeverBeMetIsRefusedAtOnceWithNumbers) {
  MakeWithBudget(64 * kKiB);
  const absl::StatusOr<Buffer> huge = pool_->TryAllocate(kMaxBufferBytes + 1);
  EXPECT_EQ(huge.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(huge.status().ToString(), HasSubstr("67108865"));
  const absl::StatusOr<Buffer> large = scheduler_.Run(Allocate(*pool_, 65 * kKiB));
  EXPECT_EQ(large.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(large.status().ToString(), HasSubstr("takes 81920; the whole test budget has 65536"));
}

TEST_F(BufferPoolTest, TheBudgetIsUsedToItsLastPageAndNoFurther) {
  MakeWithBudget(28 * kKiB + 100);
  std::vector<Buffer> buffers;
  while (true) {
    absl::StatusOr<Buffer> buffer = pool_->TryAllocate(1);
    if (!buffer.ok()) {
      EXPECT_EQ(buffer.status().code(), StatusCode::kResourceExhausted);
      EXPECT_THAT(buffer.status().ToString(), HasSubstr("28672 bytes 28672 are in use"));
      break;
    }
    buffers.push_back(*std::move(buffer));
  }
  EXPECT_EQ(buffers.size(), 7u);
  EXPECT_EQ(device_.pinned(), 28 * kKiB);
  EXPECT_EQ(pool_->stats().refusals, 1u);
  OnHome([&] { buffers.clear(); });
}

TEST_F(BufferPoolTest, ArenasDoubleUpToTheBudget) {
  MakeWithBudget(40 * kMiB);
  std::vector<Buffer> buffers;
  std::vector<size_t> pinned;
  for (int i = 0; i < 40; ++i) {
    buffers.push_back(Take(kMiB));
    if (pinned.empty() || pinned.back() != device_.pinned()) pinned.push_back(device_.pinned());
  }
  EXPECT_THAT(pinned, testing::ElementsAre(4 * kMiB, 8 * kMiB, 16 * kMiB, 32 * kMiB, 40 * kMiB));
  EXPECT_FALSE(pool_->TryAllocate(1).ok());
  OnHome([&] { buffers.clear(); });
}

// Three pools of 1 MiB each, as LinkLimits::Small() has, begin with 768 KiB together.
TEST_F(BufferPoolTest, ASmallBudgetBeginsWithAQuarterOfIt) {
  MakeWithBudget(kMiB);
  std::vector<Buffer> buffers;
  std::vector<size_t> pinned;
  for (int i = 0; i < 16; ++i) {
    buffers.push_back(Take(64 * kKiB));
    if (pinned.empty() || pinned.back() != device_.pinned()) pinned.push_back(device_.pinned());
  }
  EXPECT_THAT(pinned, testing::ElementsAre(256 * kKiB, 512 * kKiB, kMiB));
  OnHome([&] { buffers.clear(); });
  Buffer whole = Take(kMiB);
  EXPECT_EQ(device_.pinned(), kMiB) << "free arenas make room for a payload of the whole budget";
  Free(whole);
}

TEST_F(BufferPoolTest, FreedSmallBuffersServeALargeOne) {
  MakeWithBudget(64 * kKiB, 64 * kKiB);
  std::vector<Buffer> buffers;
  for (int i = 0; i < 16; ++i) buffers.push_back(Take(1));
  OnHome([&] { buffers.clear(); });
  Buffer whole = Take(64 * kKiB);
  EXPECT_EQ(device_.registrations(), 1u);
  Free(whole);
}

TEST_F(BufferPoolTest, ArenasThatAreFreeMakeRoomForALargerOne) {
  MakeWithBudget(64 * kKiB, 4 * kKiB);
  std::vector<Buffer> buffers;
  for (int i = 0; i < 16; ++i) buffers.push_back(Take(1));
  EXPECT_GT(pool_->stats().arenas, 1u);
  Buffer last = std::move(buffers.back());
  OnHome([&] { buffers.clear(); });
  EXPECT_FALSE(pool_->TryAllocate(64 * kKiB).ok());
  Free(last);
  Buffer whole = Take(64 * kKiB);
  EXPECT_EQ(pool_->stats().arenas, 1u);
  EXPECT_EQ(device_.pinned(), 64 * kKiB);
  std::memset(whole.data(), 1, whole.size());
  Free(whole);
}

// --- A device that refuses -----------------------------------------------------------------------

TEST_F(BufferPoolTest, MemoryThatTheDeviceRefusesShrinksTheBudget) {
  device_.limit = 6 * kMiB;
  MakeWithBudget(64 * kMiB);
  std::vector<Buffer> buffers;
  for (int i = 0; i < 6; ++i) buffers.push_back(Take(kMiB));
  EXPECT_EQ(pool_->TryAllocate(kMiB).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(pool_->stats().budget_bytes, 6 * kMiB);
  Waiting waiting(scheduler_, Allocate(*pool_, kMiB));
  EXPECT_FALSE(waiting.done());
  OnHome([&] { buffers.pop_back(); });
  ASSERT_TRUE(waiting.done());
  absl::StatusOr<Buffer> allocated = waiting.result();
  EXPECT_TRUE(allocated.ok());
  OnHome([&] {
    buffers.clear();
    allocated = absl::UnknownError("");
  });
  // With nothing in use it tries again.
  device_.limit = 64 * kMiB;
  Buffer large = Take(32 * kMiB);
  Free(large);
}

TEST_F(BufferPoolTest, MemoryThatCannotBePinnedFailsInsteadOfWaitingForEver) {
  device_.limit = 100;
  MakeWithBudget(kMiB);
  const absl::StatusOr<Buffer> refused = scheduler_.Run(Allocate(*pool_, 1));
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.status().ToString(), HasSubstr("RLIMIT_MEMLOCK is 100"));
}

TEST_F(BufferPoolTest, ARequestForMoreThanCanBePinnedDoesNotWaitForMemoryInUse) {
  device_.limit = 64 * kKiB;
  MakeWithBudget(kMiB, 64 * kKiB);
  Buffer held = Take(1);
  const absl::StatusOr<Buffer> refused = scheduler_.Run(Allocate(*pool_, 128 * kKiB));
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.status().ToString(),
              HasSubstr("of the test budget's 1048576 bytes only 65536 could be registered: "
                        "RLIMIT_MEMLOCK is 65536"));
  Waiting whole(scheduler_, Allocate(*pool_, 64 * kKiB));
  EXPECT_FALSE(whole.done());
  Free(held);
  ASSERT_TRUE(whole.done());
  absl::StatusOr<Buffer> allocated = whole.result();
  EXPECT_TRUE(allocated.ok()) << allocated.status();
  OnHome([&] { allocated = absl::UnknownError(""); });
}

// --- Poison --------------------------------------------------------------------------------------

TEST(BufferPoolDeathTest, UseOfAPooledBufferIsReported) {
#ifdef VERBENA_HAS_ASAN
  ManualScheduler scheduler;
  PinningDevice device;
  auto pool = BufferPool::Create(scheduler, device, nullptr, {.name = "test"}).value();
  Buffer buffer = pool->TryAllocate(100).value();
  volatile char* data = buffer.data();
  data[10] = 1;
  volatile char* beside = data + buffer.capacity();
  EXPECT_DEATH(beside[0] = 1, "use-after-poison") << "memory that was never handed out";
  buffer.Reset();
  EXPECT_DEATH(data[10] = 1, "use-after-poison") << "a buffer on its way home";
  scheduler.RunUntilIdle();
  EXPECT_DEATH(data[10] = 1, "use-after-poison") << "a buffer at home";
#else
  GTEST_SKIP() << "needs AddressSanitizer";
#endif
}

}  // namespace buffer_pool_test
}  // namespace verbena::internal
