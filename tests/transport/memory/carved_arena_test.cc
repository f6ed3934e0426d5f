// Blocks that are carved from an arena never overlap, waste at most a quarter of the request in
// whole pages, and merge into the whole arena again.

#include "verbena/transport/memory/carved_arena.h"

#include <map>
#include <memory>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/transport/memory/pinning_device.h"

namespace verbena::internal {
namespace carved_arena_test {

constexpr size_t kKiB = 1024;

class NoOwner final : public BlockOwner {
 public:
  void OnUnused(Block&) override { FAIL() << "nobody holds these blocks"; }
};

class BuddyListsTest : public testing::Test {
 protected:
  CarvedArena& Add(size_t bytes) {
    auto arena = Arena::Create(device_, nullptr, bytes, 0);
    EXPECT_TRUE(arena.ok()) << arena.status();
    arenas_.push_back(std::make_unique<CarvedArena>(*std::move(arena), nullptr, owner_));
    lists_.Add(*arenas_.back());
    return *arenas_.back();
  }
  size_t FreeBytes() const {
    size_t bytes = 0;
    for (uint32_t i = 0; i < kBlockOrders; ++i) bytes += lists_.free_blocks(i) * OrderBytes(i);
    return bytes;
  }

  PinningDevice device_;
  NoOwner owner_;
  std::vector<std::unique_ptr<CarvedArena>> arenas_;
  BuddyLists lists_;
};

TEST_F(BuddyListsTest, AnArenaIsCutIntoTheLargestBlocksThatFit) {
  Add(28 * kKiB);
  EXPECT_EQ(lists_.free_blocks(0), 1u);
  EXPECT_EQ(lists_.free_blocks(1), 1u);
  EXPECT_EQ(lists_.free_blocks(2), 1u);
  EXPECT_EQ(lists_.Take(SizeClassOf(32 * kKiB)), nullptr);
}

TEST_F(BuddyListsTest, SplittingTakesTheSmallestBlockThatServes) {
  Add(24 * kKiB);  // 16 + 8
  Block* block = lists_.Take(0);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(block->capacity, 4 * kKiB);
  EXPECT_EQ(lists_.free_blocks(2), 1u);
  EXPECT_EQ(lists_.free_blocks(1), 0u);
  EXPECT_EQ(lists_.free_blocks(0), 1u);
}

TEST_F(BuddyListsTest, BuddiesMergeAcrossAllClasses) {
  Add(64 * kKiB);
  std::vector<Block*> blocks;
  while (Block* block = lists_.Take(0)) blocks.push_back(block);
  ASSERT_EQ(blocks.size(), 16u);
  for (Block* block : blocks) lists_.Give(*block);
  EXPECT_EQ(lists_.free_blocks(OrderOf(64 * kKiB)), 1u);
  EXPECT_EQ(FreeBytes(), 64 * kKiB);
}

TEST_F(BuddyListsTest, NeighboursThatAreNoBuddiesDoNotMerge) {
  Add(12 * kKiB);  // 8 + 4
  EXPECT_EQ(lists_.Take(SizeClassOf(16 * kKiB)), nullptr);
  Block* small = lists_.Take(0);
  Block* large = lists_.Take(1);
  lists_.Give(*small);
  lists_.Give(*large);
  EXPECT_EQ(lists_.free_blocks(0), 1u);
  EXPECT_EQ(lists_.free_blocks(1), 1u);
}

TEST_F(BuddyListsTest, AFreeArenaCanBeTakenOutBesideOneInUse) {
  CarvedArena& first = Add(12 * kKiB);
  Add(16 * kKiB);
  Block* block = lists_.Take(SizeClassOf(16 * kKiB));
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(&CarvedArena::Of(*block), arenas_[1].get());
  lists_.Remove(first);
  EXPECT_EQ(FreeBytes(), 0u);
  lists_.Give(*block);
  EXPECT_EQ(FreeBytes(), 16 * kKiB);
}

TEST_F(BuddyListsTest, ABlockLeavesFreeWhatItsClassDoesNotNeed) {
  Add(64 * kKiB);
  Block* block = lists_.Take(SizeClassOf(33 * kKiB));
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(block->capacity, 40 * kKiB);
  EXPECT_EQ(FreeBytes(), 24 * kKiB);
  Block* small = lists_.Take(SizeClassOf(8 * kKiB));
  Block* large = lists_.Take(SizeClassOf(16 * kKiB));
  ASSERT_TRUE(small != nullptr && large != nullptr);
  EXPECT_EQ(small->data, block->data + 40 * kKiB);
  EXPECT_EQ(large->data, block->data + 48 * kKiB);
  EXPECT_EQ(FreeBytes(), 0u);
  lists_.Give(*block);
  lists_.Give(*small);
  lists_.Give(*large);
  EXPECT_EQ(lists_.free_blocks(OrderOf(64 * kKiB)), 1u);
}

TEST_F(BuddyListsTest, AnArenaOfExactlyOneClassServesIt) {
  for (uint32_t size_class = 0; size_class < SizeClassOf(size_t{4} << 20); ++size_class) {
    CarvedArena& arena = Add(SizeClassBytes(size_class));
    Block* block = lists_.Take(size_class);
    ASSERT_NE(block, nullptr) << size_class;
    EXPECT_EQ(block->data, arena.data());
    EXPECT_EQ(block->capacity, arena.size());
    EXPECT_EQ(FreeBytes(), 0u);
    lists_.Give(*block);
    lists_.Remove(arena);
    EXPECT_EQ(FreeBytes(), 0u);
  }
}

TEST(SizeClassTest, AClassWastesAtMostAQuarterOfWhatWasAskedForInWholePages) {
  for (size_t pages = 1; pages <= kMaxBufferBytes / kMinBufferBytes; ++pages) {
    const size_t bytes = pages * kMinBufferBytes;
    const uint32_t size_class = SizeClassOf(bytes);
    ASSERT_LT(size_class, kSizeClasses);
    ASSERT_GE(SizeClassBytes(size_class), bytes);
    ASSERT_LE(4 * (SizeClassBytes(size_class) - bytes), bytes);
    ASSERT_TRUE(size_class == 0 || SizeClassBytes(size_class - 1) < bytes);
    ASSERT_EQ(SizeClassOf(bytes - 1), size_class);
    ASSERT_EQ(SizeClassBytes(size_class) % kMinBufferBytes, 0u);
  }
}

// Whatever is taken and given in whatever order: blocks never overlap, and in the end all is whole
// again.
TEST_F(BuddyListsTest, NoBlockOverlapsAnotherInAnyOrder) {
  std::mt19937 random(7);
  const size_t arena_bytes = 1004 * kKiB;
  CarvedArena& arena = Add(arena_bytes);
  const std::array<size_t, kBlockOrders> whole = [&] {
    std::array<size_t, kBlockOrders> counts{};
    for (uint32_t i = 0; i < kBlockOrders; ++i) counts[i] = lists_.free_blocks(i);
    return counts;
  }();
  std::map<size_t, Block*> held;
  size_t refused = 0;
  for (int i = 0; i < 20000; ++i) {
    if (random() % 2 == 0) {
      Block* block = lists_.Take(random() % 16);
      if (block == nullptr) {
        ++refused;
        continue;
      }
      const auto offset = static_cast<size_t>(block->data - arena.data());
      ASSERT_EQ(offset % kMinBufferBytes, 0u);
      ASSERT_LE(offset + block->capacity, arena_bytes);
      auto after = held.lower_bound(offset);
      ASSERT_TRUE(after == held.end() || offset + block->capacity <= after->first);
      ASSERT_TRUE(after == held.begin() ||
                  std::prev(after)->first + std::prev(after)->second->capacity <= offset);
      held.emplace(offset, block);
    } else if (!held.empty()) {
      auto given = std::next(held.begin(), random() % held.size());
      lists_.Give(*given->second);
      held.erase(given);
    }
    size_t in_use = 0;
    for (const auto& [_, block] : held) in_use += block->capacity;
    ASSERT_EQ(in_use + FreeBytes(), arena_bytes);
  }
  EXPECT_GT(refused, 0u) << "it was never full";
  for (const auto& [_, block] : held) lists_.Give(*block);
  for (uint32_t i = 0; i < kBlockOrders; ++i) EXPECT_EQ(lists_.free_blocks(i), whole[i]);
}

}  // namespace carved_arena_test
}  // namespace verbena::internal
