// A seed always gives the same sequence, in every version, so that a failure can be replayed.
// Below() is even, and real random numbers differ between threads.

#include "verbena/transport/base/random.h"

#include <array>
#include <cstdint>
#include <set>
#include <thread>

#include "gtest/gtest.h"

namespace verbena::internal {
namespace random_test {

TEST(RandomTest, EqualSeedsGiveEqualSequencesAndOthersDiffer) {
  SeededRandom one(42), same(42), other(43);
  bool differs = false;
  for (int i = 0; i < 100; ++i) {
    const uint64_t number = one.Next();
    EXPECT_EQ(number, same.Next());
    differs = differs || number != other.Next();
  }
  EXPECT_TRUE(differs);
}

// Replays of a recorded seed must stay valid: the sequence never changes.
TEST(RandomTest, SequenceIsFixedForever) {
  SeededRandom random(1234567);
  EXPECT_EQ(random.Next(), 6457827717110365317u);
  EXPECT_EQ(random.Next(), 3203168211198807973u);
  EXPECT_EQ(random.Next(), 9817491932198370423u);
}

TEST(RandomTest, BelowReachesEveryValueEvenlyAndNoOther) {
  SeededRandom random(1);
  std::array<int, 7> counts{};
  for (int i = 0; i < 70'000; ++i) {
    const uint64_t value = random.Below(7);
    ASSERT_LT(value, 7u);
    ++counts[value];
  }
  for (int count : counts) EXPECT_NEAR(count, 10'000, 500);
  EXPECT_EQ(random.Below(1), 0u);
  EXPECT_EQ(random.Below(0), 0u);
}

class Fixed final : public Random {
 public:
  explicit Fixed(uint64_t first) : next_(first) {}
  uint64_t Next() override { return next_++; }

 private:
  uint64_t next_;
};

TEST(RandomTest, BelowSkipsNumbersThatWouldFavourSmallResults) {
  // 2^64 = 1 (mod 3): the last number alone is one too many.
  EXPECT_EQ(Fixed(UINT64_MAX).Below(3), 0u);      // skipped; 0 follows
  EXPECT_EQ(Fixed(UINT64_MAX - 1).Below(3), 2u);  // the last one kept
  EXPECT_EQ(Fixed(UINT64_MAX).Below(4), 3u);      // nothing to skip
}

TEST(RandomTest, RealDiffersBetweenThreads) {
  std::set<uint64_t> numbers{Random::Real().Next(), Random::Real().Next()};
  std::thread([&] { numbers.insert(Random::Real().Next()); }).join();
  EXPECT_EQ(numbers.size(), 3u);
}

}  // namespace random_test
}  // namespace verbena::internal
