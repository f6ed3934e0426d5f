// Pauses double up to the longest, within a fifth, and clients that begin together pause for
// different times.

#include "verbena/transport/base/random.h"

#include <gtest/gtest.h>

#include <chrono>
#include <set>

namespace verbena::internal {
namespace backoff_test {

constexpr Duration kFirst = std::chrono::milliseconds(100);
constexpr Duration kLongest = std::chrono::milliseconds(1000);

TEST(BackoffTest, EachPauseIsTwiceTheOneBeforeUpToTheLongestGiveOrTakeAFifth) {
  SeededRandom random(1);
  Backoff backoff(kFirst, kLongest, random);
  for (int round = 0; round < 2; ++round) {
    for (const int expected : {100, 200, 400, 800, 1000, 1000, 1000}) {
      const Duration pause = backoff.Next();
      EXPECT_GE(pause, std::chrono::milliseconds(expected) * 4 / 5);
      EXPECT_LE(pause, std::chrono::milliseconds(expected) * 6 / 5);
    }
    backoff.Reset();
  }
}

TEST(BackoffTest, ManyWhoBeginTogetherPauseForDifferentTimes) {
  SeededRandom random(1);
  std::set<Duration> pauses;
  for (int i = 0; i < 100; ++i) pauses.insert(Backoff(kFirst, kLongest, random).Next());
  EXPECT_GT(pauses.size(), 90u);
}

TEST(BackoffDeathTest, APauseThatIsNoneOrBeyondTheLongestIsRefused) {
  EXPECT_DEATH(Backoff(Duration::zero(), kLongest), "0 ns, at most");
  EXPECT_DEATH(Backoff(kLongest, kFirst), "at most 100000000");
}

}  // namespace backoff_test
}  // namespace verbena::internal
