// Percentiles of latencies are precise in every magnitude, and sums count the calls of both.

#include "examples/common/latencies.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace examples {
namespace latencies_test {

TEST(LatenciesTest, PercentilesCountFromTheSmallest) {
  Latencies latencies;
  for (uint64_t ns = 1; ns <= 20; ++ns) latencies.Record(ns);
  EXPECT_EQ(latencies.PercentileNs(1), 1);
  EXPECT_EQ(latencies.PercentileNs(50), 10);
  EXPECT_EQ(latencies.PercentileNs(95), 19);
  EXPECT_EQ(latencies.PercentileNs(100), 20);
}

TEST(LatenciesTest, EveryMagnitudeIsPrecise) {
  for (uint64_t ns = 1; ns < uint64_t{1} << 60; ns = ns * 5 / 3 + 1) {
    Latencies latencies;
    latencies.Record(ns);
    EXPECT_NEAR(latencies.PercentileNs(50), static_cast<double>(ns), static_cast<double>(ns) / 255);
  }
}

TEST(LatenciesTest, TheLargestHasABucket) {
  Latencies latencies;
  latencies.Record(UINT64_MAX);
  EXPECT_NEAR(latencies.PercentileNs(50), 1.84e19, 0.01e19);
}

TEST(LatenciesTest, ASumHasTheCallsOfBoth) {
  Latencies sum;
  Latencies other;
  sum.Record(10);
  other.Record(20);
  other.Record(20);
  sum += other;
  EXPECT_EQ(sum.count(), 3u);
  EXPECT_EQ(sum.PercentileNs(33), 10);
  EXPECT_EQ(sum.PercentileNs(50), 20);
}

TEST(LatenciesTest, NoneHasPercentileZero) { EXPECT_EQ(Latencies().PercentileNs(50), 0); }

}  // namespace latencies_test
}  // namespace examples
