#include "verbena/transport/memory/carved_arena.h"

#include <map>
#include <memory>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/transport/memory/pinning_device.h"

namespace verbena::internal {
namespace {

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
    for (uint32_t i = 0; i < kSizeClasses; ++i) bytes += lists_.free_blocks(i) * SizeClassBytes(i);
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
  EXPECT_EQ(lists_.Take(3), nullptr);
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
  EXPECT_EQ(lists_.free_blocks(SizeClassOf(64 * kKiB)), 1u);
  EXPECT_EQ(FreeBytes(), 64 * kKiB);
}

TEST_F(BuddyListsTest, NeighboursThatAreNoBuddiesDoNotMerge) {
  Add(12 * kKiB);  // 8 + 4
  EXPECT_EQ(lists_.Take(2), nullptr);
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
  Block* block = lists_.Take(2);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(&CarvedArena::Of(*block), arenas_[1].get());
  lists_.Remove(first);
  EXPECT_EQ(FreeBytes(), 0u);
  lists_.Give(*block);
  EXPECT_EQ(FreeBytes(), 16 * kKiB);
}

// Whatever is taken and given in whatever order: blocks never overlap, begin at multiples of their
// size, and in the end all is whole again.
TEST_F(BuddyListsTest, NoBlockOverlapsAnotherInAnyOrder) {
  std::mt19937 random(7);
  const size_t arena_bytes = 1004 * kKiB;
  CarvedArena& arena = Add(arena_bytes);
  const std::array<size_t, kSizeClasses> whole = [&] {
    std::array<size_t, kSizeClasses> counts{};
    for (uint32_t i = 0; i < kSizeClasses; ++i) counts[i] = lists_.free_blocks(i);
    return counts;
  }();
  std::map<size_t, Block*> held;
  size_t refused = 0;
  for (int i = 0; i < 20000; ++i) {
    if (random() % 2 == 0) {
      Block* block = lists_.Take(random() % 6);
      if (block == nullptr) {
        ++refused;
        continue;
      }
      const auto offset = static_cast<size_t>(block->data - arena.data());
      ASSERT_EQ(offset % block->capacity, 0u);
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
  for (uint32_t i = 0; i < kSizeClasses; ++i) EXPECT_EQ(lists_.free_blocks(i), whole[i]);
}

}  // namespace
}  // namespace verbena::internal
