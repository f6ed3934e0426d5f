// The benchmarks' figures can be trusted: histograms keep 0.8% precision, a median ignores one
// disturbed slice, options with bad values are refused by name, and a report's row is one line of
// JSON.

#include <gtest/gtest.h>
#include <sched.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/benchmarks/harness/cores.h"
#include "verbena/benchmarks/harness/latency_histogram.h"
#include "verbena/benchmarks/harness/median.h"
#include "verbena/benchmarks/harness/options.h"
#include "verbena/benchmarks/harness/report.h"
#include "verbena/benchmarks/harness/stream_table.h"

namespace verbena::benchmarks {
namespace {

TEST(LatencyHistogramTest, EveryMagnitudeKeepsItsPrecision) {
  for (std::uint64_t value = 1; value < std::uint64_t{1} << 39; value = value * 5 / 3 + 1) {
    LatencyHistogram latencies;
    latencies.Record(value);
    EXPECT_NEAR(latencies.PercentileNs(50), double(value), double(value) * 0.008) << value;
  }
}

TEST(LatencyHistogramTest, PercentilesCountFromTheSmallest) {
  LatencyHistogram latencies;
  for (int i = 1; i <= 100; ++i) latencies.Record(static_cast<std::uint64_t>(i));
  EXPECT_EQ(latencies.PercentileNs(1), 1);
  EXPECT_EQ(latencies.PercentileNs(50), 50);
  EXPECT_EQ(latencies.PercentileNs(99), 99);
  EXPECT_EQ(latencies.PercentileNs(100), 100);
}

TEST(LatencyHistogramTest, LatenciesBeyondTheLastBucketStayInside) {
  LatencyHistogram latencies;
  latencies.Record(~std::uint64_t{0});
  EXPECT_NEAR(latencies.PercentileNs(100), 1.1e12, 0.01e12);
}

TEST(LatencyHistogramTest, AddingAndClearingCarryTheCount) {
  LatencyHistogram a;
  LatencyHistogram b;
  a.Record(10);
  b.Record(20);
  b.Record(20);
  a.Add(b);
  EXPECT_EQ(a.count(), 3u);
  EXPECT_EQ(a.PercentileNs(50), 20);
  a.Clear();
  EXPECT_EQ(a.count(), 0u);
  EXPECT_EQ(a.PercentileNs(50), 0);
}

TEST(MedianTest, OneDisturbedSliceDoesNotMoveIt) {
  EXPECT_EQ(Median({3, 900, 1}), 3);
  EXPECT_EQ(Median({1, 2, 4, 900}), 3);
  EXPECT_EQ(Median({}), 0);
}

class OptionsTest : public testing::Test {
 protected:
  absl::StatusOr<Options> Parse(std::vector<std::string> words) {
    words.insert(words.begin(), "bench");
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    return ParseOptions(static_cast<int>(argv.size()), argv.data(), rest_);
  }

  std::vector<std::string> rest_;
};

TEST_F(OptionsTest, BothSpellingsOfAnOptionAreRead) {
  absl::StatusOr<Options> options =
      Parse({"--json", "out.json", "--seconds=0.5", "--outstanding", "1,64"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->json, "out.json");
  EXPECT_EQ(options->seconds, 0.5);
  EXPECT_EQ(options->outstanding, (std::vector<int>{1, 64}));
  EXPECT_TRUE(rest_.empty());
}

TEST_F(OptionsTest, UnknownOptionsAreLeftToTheBenchmark) {
  ASSERT_TRUE(Parse({"--mode", "busy", "--seconds", "1", "--quick"}).ok());
  EXPECT_EQ(rest_, (std::vector<std::string>{"--mode", "busy", "--quick"}));
}

TEST_F(OptionsTest, ABadValueIsRefusedByName) {
  for (const char* bad : {"--seconds=0", "--seconds=x", "--seconds=-1", "--seconds=1e9",
                          "--size=", "--outstanding=0", "--outstanding=8x", "--json="}) {
    absl::StatusOr<Options> options = Parse({bad});
    ASSERT_FALSE(options.ok()) << bad;
    const std::string message(options.status().message());
    EXPECT_EQ(message.substr(0, 2), "--") << message;
  }
}

TEST(ReportTest, ARowIsOneLineOfJsonWithEveryField) {
  Row row{.bench = "rpc", .device = "shm", .mode = "busy", .size = 32, .outstanding = 8};
  row.p50_us = 1.5;
  row.p99_us = 3;
  row.calls_per_s = 2e6;
  row.floor_p50_us = 0.5;
  row.extra = {{"credit_waits", 0}};
  EXPECT_EQ(ToJson(row), R"({"bench":"rpc","device":"shm","mode":"busy","size":32,"outstanding":8,)"
                         R"("p50_us":1.5,"p99_us":3,"calls_per_s":2e+06,"floor_p50_us":0.5,)"
                         R"("ratio_to_floor":3,"credit_waits":0})");
}

TEST(ReportTest, AMissingFigureIsNull) {
  const std::string json = ToJson({.bench = "ucx", .device = "shm", .mode = "busy"});
  EXPECT_NE(json.find(R"("floor_p50_us":null,"ratio_to_floor":null)"), std::string::npos) << json;
}

TEST(ReportTest, RowsAreAppendedToTheFileOneALine) {
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/rows.json";
  for (int run = 0; run < 2; ++run) {
    absl::StatusOr<Report> report = Report::Open(path);
    ASSERT_TRUE(report.ok()) << report.status();
    report->Add({.bench = "floor", .device = "shm", .mode = "busy"});
  }
  std::ifstream file(path);
  int lines = 0;
  for (std::string line; std::getline(file, line);) {
    EXPECT_EQ(line.front(), '{');
    EXPECT_EQ(line.back(), '}');
    ++lines;
  }
  EXPECT_EQ(lines, 2);
}

TEST(ReportTest, AFileThatCannotBeOpenedIsNamed) {
  absl::StatusOr<Report> report = Report::Open("/nonexistent/rows.json");
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(std::string(report.status().message()).rfind("/nonexistent/rows.json: ", 0), 0u);
}

TEST(StreamPointTest, ARowComparesTheMediansOfItsSlices) {
  StreamPoint point(1024, 100);
  for (const double rate : {600.0, 10.0, 700.0}) {
    point.Add({.messages_per_s = rate, .messages = 1000, .allocations = 2});
  }
  for (const double rate : {300.0, 250.0, 5.0}) point.AddUnary(rate);
  const Row row = point.ToRow("stream", "shm", "busy");
  EXPECT_EQ(row.size, 1024);
  const std::vector<std::pair<std::string, double>> expected = {
      {"streams", 100},
      {"messages_per_s", 600},
      {"unary_calls_per_s", 250},
      {"ratio_to_unary", 2.4},
      {"client_allocations_per_message", 0.002}};
  EXPECT_EQ(row.extra, expected);
}

TEST(CoresTest, APinnedThreadRunsOnItsCoreAlone) {
  std::thread([] {
    const int core = sched_getcpu();
    ASSERT_TRUE(PinToCore(core).ok());
    cpu_set_t set;
    ASSERT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
    EXPECT_EQ(CPU_COUNT(&set), 1);
    EXPECT_TRUE(CPU_ISSET(core, &set));
    // One core is not enough for two processes.
    EXPECT_EQ(ChooseTwoCores().status().code(), absl::StatusCode::kFailedPrecondition);
  }).join();
}

TEST(CoresTest, ACoreThatIsNotThereIsRefused) { EXPECT_FALSE(PinToCore(CPU_SETSIZE - 1).ok()); }

}  // namespace
}  // namespace verbena::benchmarks
