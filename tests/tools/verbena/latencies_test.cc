// The histogram of `verbena bench` tells each quantile within its bound.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>

#include "tools/verbena/bench.h"

namespace verbena::command {
namespace latencies_test {

TEST(LatenciesTest, QuantilesAreWithinOneSixtyFourthOfTheTruth) {
  for (const int64_t unit : {1, 63, 64, 127, 128, 1'000, 1'000'003}) {
    Latencies latencies;
    for (int64_t i = 1; i <= 1000; ++i) latencies.Add(Duration(i * unit));
    for (const int64_t permille : {1, 500, 900, 990, 999, 1000}) {
      const int64_t truth = permille * unit;
      const int64_t found = latencies.At(static_cast<double>(permille) / 1000).count();
      EXPECT_GE(found, truth) << unit;
      EXPECT_LE(found, truth + truth / 64 + 1) << unit;
    }
    EXPECT_EQ(1000 * unit, latencies.longest().count());
  }
}

TEST(LatenciesTest, TakesAnyDuration) {
  Latencies latencies;
  EXPECT_EQ(Duration::zero(), latencies.At(0.5));
  latencies.Add(Duration(-1));
  latencies.Add(Duration::max());
  EXPECT_EQ(2u, latencies.count());
  EXPECT_EQ(Duration::zero(), latencies.At(0.5));
  EXPECT_EQ(Duration::max(), latencies.At(1));
}

}  // namespace latencies_test
}  // namespace verbena::command
