// The rounds of a phase add up: calls, bytes, time and latencies.

#include <chrono>

#include "examples/common/phase.h"
#include "gtest/gtest.h"

namespace examples {
namespace phase_report_test {

TEST(PhaseReportTest, RoundsOfAPhaseAddUp) {
  PhaseReport sum;
  PhaseReport round;
  round.calls = 2;
  round.bytes = 10;
  round.elapsed = std::chrono::seconds(1);
  round.latencies.Record(5);
  sum.Add(round);
  sum.Add(round);
  EXPECT_EQ(sum.calls, 4u);
  EXPECT_EQ(sum.bytes, 20u);
  EXPECT_EQ(sum.elapsed.count(), 2);
  EXPECT_EQ(sum.latencies.count(), 2u);
}

}  // namespace phase_report_test
}  // namespace examples
