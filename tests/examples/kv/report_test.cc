#include "examples/kv/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "examples/kv/phase.h"
#include "examples/kv/progress.h"

namespace kv {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;

TEST(ReportTest, NumbersAreGroupedByThousands) {
  EXPECT_EQ(Grouped(0), "0");
  EXPECT_EQ(Grouped(999), "999");
  EXPECT_EQ(Grouped(1000), "1,000");
  EXPECT_EQ(Grouped(1234567), "1,234,567");
}

TEST(ReportTest, SizesHaveTheUnitThatKeepsThemShort) {
  EXPECT_EQ(Sized(999), "999 bytes");
  EXPECT_EQ(Sized(1000), "1.0 kB");
  EXPECT_EQ(Sized(999949), "999.9 kB");
  EXPECT_EQ(Sized(999950), "1.0 MB");
  EXPECT_EQ(Sized(1234567890123456), "1234.6 TB");
}

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

TEST(ReportTest, RoundsOfAPhaseAddUp) {
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

std::string Drawn(bool redraws) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* stream = open_memstream(&text, &size);
  Progress progress(stream, redraws);
  progress.Update("one");
  progress.Finish("two");
  std::fclose(stream);
  std::string drawn(text, size);
  std::free(text);
  return drawn;
}

TEST(ProgressTest, OnlyATerminalIsRedrawn) {
  EXPECT_EQ(Drawn(false), "one\ntwo\n");
  EXPECT_EQ(Drawn(true), "\r\x1b[Kone\r\x1b[Ktwo\n");
}

}  // namespace
}  // namespace kv
