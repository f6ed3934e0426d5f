// Quantiles are within a tenth of the truth, and within an eighth where all times are at one end of
// a slot.

#include "verbena/rpc/shard/call_report.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "verbena/rpc/shard/call_counts.h"

namespace verbena::internal {
namespace call_report_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr double kUnit = CallTimes::kUnitNanoseconds / 1e9;

// The slots that an executor has for these times, in seconds.
std::vector<TimeSlot> SlotsOf(const std::vector<double>& times) {
  std::vector<uint64_t> counts(CallTimes::kSlots);
  for (const double time : times) ++counts[CallTimes::SlotOf(static_cast<uint64_t>(time / kUnit))];
  std::vector<TimeSlot> slots;
  for (uint32_t slot = 0; slot + 1 < CallTimes::kSlots; ++slot) {
    if (counts[slot] == 0) continue;
    slots.push_back({.begin = static_cast<double>(CallTimes::UnitsAt(slot)) * kUnit,
                     .end = static_cast<double>(CallTimes::UnitsAt(slot + 1)) * kUnit,
                     .count = counts[slot]});
  }
  return slots;
}

// Expects p50, p90 and p99 to be at most `off` of the truth away from it.
void ExpectQuantiles(std::vector<double> times, double off) {
  const std::vector<TimeSlot> slots = SlotsOf(times);
  std::ranges::sort(times);
  for (const double q : {0.5, 0.9, 0.99}) {
    const auto last = static_cast<double>(times.size() - 1);
    const double truth = times[static_cast<size_t>(std::lround(q * last))];
    EXPECT_NEAR(QuantileOf(slots, q) / truth, 1, off) << "p" << 100 * q << " is " << truth;
  }
}

TEST(QuantileOfTest, IsWithinATenthOfTheTruth) {
  std::mt19937_64 random(44);
  for (double middle = 2e-6; middle < 1; middle *= 1.07) {
    std::lognormal_distribution<double> latency(std::log(middle), 0.5);
    std::vector<double> times(2000);
    for (double& time : times) time = latency(random);
    ExpectQuantiles(times, 0.1001);
  }
}

TEST(QuantileOfTest, IsWithinAnEighthIfAllTimesAreEqual) {
  for (double time = 1e-6; time < 10; time *= 1.01) {
    ExpectQuantiles(std::vector<double>(100, time), 0.1251);
  }
}

TEST(QuantileOfTest, CountsCallsNotSlots) {
  const std::vector<TimeSlot> slots = {{.begin = 1, .end = 1.1, .count = 98},
                                       {.begin = 8, .end = 9, .count = 2}};
  EXPECT_NEAR(QuantileOf(slots, 0.5), 1, 0.1);
  EXPECT_NEAR(QuantileOf(slots, 0.97), 1, 0.1);
  EXPECT_NEAR(QuantileOf(slots, 0.99), 8.5, 0.85);
}

TEST(QuantileOfTest, HasAnAnswerAtTheEnds) {
  EXPECT_EQ(QuantileOf({}, 0.5), 0);
  EXPECT_EQ(QuantileOf({{.begin = 16, .end = 16, .count = 3}}, 0.99), 16) << "or longer";
  EXPECT_LE(QuantileOf({{.begin = 0, .end = kUnit, .count = 1}}, 0.5), kUnit);
}

TEST(SlotsSinceTest, HasWhatCameSince) {
  const std::vector<TimeSlot> before = {{1, 2, 5}, {4, 5, 1}};
  const std::vector<TimeSlot> now = {{1, 2, 5}, {2, 3, 7}, {4, 5, 3}};
  EXPECT_THAT(SlotsSince(now, before), ElementsAre(TimeSlot{2, 3, 7}, TimeSlot{4, 5, 2}));
  EXPECT_EQ(SlotsSince(now, {}), now);
  EXPECT_THAT(SlotsSince(before, now), IsEmpty()) << "the process has started anew";
}

TEST(TimeTextTest, HasThreeDigits) {
  EXPECT_EQ(TimeText(0), "0 ns");
  EXPECT_EQ(TimeText(780e-9), "780 ns");
  EXPECT_EQ(TimeText(1.234e-6), "1.23 µs");
  EXPECT_EQ(TimeText(12.34e-6), "12.3 µs");
  EXPECT_EQ(TimeText(123.4e-6), "123 µs");
  EXPECT_EQ(TimeText(0.9996e-3), "1.00 ms");
  EXPECT_EQ(TimeText(16.8), "16.8 s");
  EXPECT_EQ(TimeText(1234), "1234 s");
}

}  // namespace call_report_test
}  // namespace verbena::internal
