// The printed table holds every figure of a phase, also of one that made no calls.

#include "examples/kv/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "examples/common/phase.h"

namespace kv {
namespace report_test {

using ::examples::PhaseReport;
using ::testing::AllOf;
using ::testing::ContainsRegex;

TEST(ReportTest, TheTableTellsEveryFigureOfAPhase) {
  PhaseReport report;
  report.name = "put";
  report.calls = 3000;
  report.bytes = 123456;
  report.credit_waits = 17;
  report.errors = 2;
  report.elapsed = std::chrono::milliseconds(500);
  for (int i = 0; i < 3000; ++i) report.latencies.Record(i < 2985 ? 10'000 : 90'000);
  const std::string table = Table({report});
  EXPECT_THAT(table,
              AllOf(ContainsRegex("calls +calls/s +p50 us +p99 us +p99.9 us +bytes +credit "
                                  "waits +errors"),
                    ContainsRegex("put +3,000 +6,000 +10.0 +10.0 +(89|90).[0-9] +123,456 +17 "
                                  "+2\n")));
}

TEST(ReportTest, APhaseWithoutCallsHasARowOfZeros) {
  PhaseReport report;
  report.name = "get";
  EXPECT_THAT(Table({report}), ContainsRegex("get +0 +0 +0.0 +0.0 +0.0 +0 +0 +0\n"));
}

TEST(ReportTest, CallsAreComparedWithTheSameWorkWithoutThem) {
  PhaseReport calls;
  calls.name = "get";
  calls.calls = 300;
  calls.elapsed = std::chrono::seconds(1);
  PhaseReport direct;
  EXPECT_EQ(Ratio(calls, direct), "") << "there is nothing to compare with";
  direct.calls = 2400;
  direct.elapsed = std::chrono::seconds(2);
  EXPECT_EQ(Ratio(calls, direct), "get: 0.25 of the rate of the same store in one process\n");
}

}  // namespace report_test
}  // namespace kv
