#include "verbena/benchmarks/floor/payload_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "verbena/benchmarks/harness/median.h"

namespace verbena::benchmarks {
namespace {

template <typename Sample>
double MedianOf(const std::vector<Sample>& samples, double Sample::* figure) {
  std::vector<double> values;
  values.reserve(samples.size());
  for (const Sample& sample : samples) values.push_back(sample.*figure);
  return Median(std::move(values));
}

double Ratio(double of, double to) { return to == 0 ? 0 : of / to; }

std::string DirectionName(CopyDirection direction) {
  return direction == CopyDirection::kToClient ? "_read" : "_write";
}

double Figure(const Row& row, const std::string& name) {
  for (const auto& [each, value] : row.extra) {
    if (each == name) return value;
  }
  return 0;
}

std::string Cell(double value, int precision) {
  return value == 0 ? "-" : fmt::format("{:.{}f}", value, precision);
}

}  // namespace

Options PayloadDefaults() {
  Options options;
  options.sizes = {4096, 65536, 1 << 20, 16 << 20};
  options.outstanding = {1, 4, 16};
  return options;
}

int PayloadRounds(double seconds) {
  return std::max(1, static_cast<int>(seconds * 1000 / (2 * kPayloadSliceMs)));
}

Row PayloadPoint::ToRow(const std::string& bench, const std::string& variant,
                        const std::string& device, const std::string& mode) const {
  Row row{.bench = bench + DirectionName(direction_) + variant,
          .device = device,
          .mode = mode,
          .size = size_,
          .outstanding = outstanding_,
          .p50_us = MedianOf(samples_, &PayloadSample::p50_ns) / 1e3,
          .p99_us = MedianOf(samples_, &PayloadSample::p99_ns) / 1e3,
          .calls_per_s = MedianOf(samples_, &PayloadSample::calls_per_s),
          .floor_p50_us = MedianOf(floor_, &CopySample::p50_ns) / 1e3};
  double calls = 0;
  double client_ns = 0;
  double server_ns = 0;
  for (const PayloadSample& sample : samples_) {
    calls += static_cast<double>(sample.calls);
    client_ns += static_cast<double>(sample.client_cpu_ns);
    server_ns += static_cast<double>(sample.server_cpu_ns);
  }
  const double gib = calls * size_ / double(1 << 30);
  const double floor = GbPerSecond(MedianOf(floor_, &CopySample::copies_per_s));
  row.extra = {{"gb_per_s", GbPerSecond(row.calls_per_s)},
               {"floor_gb_per_s", floor},
               {"bandwidth_to_floor", Ratio(GbPerSecond(row.calls_per_s), floor)},
               {"client_cpu_s_per_gib", Ratio(client_ns / 1e9, gib)},
               {"server_cpu_s_per_gib", Ratio(server_ns / 1e9, gib)}};
  return row;
}

Row PayloadPoint::FloorRow() const {
  Row row{.bench = "memcpy" + DirectionName(direction_),
          .device = "shm",
          .mode = "busy",
          .size = size_,
          .outstanding = outstanding_,
          .p50_us = MedianOf(floor_, &CopySample::p50_ns) / 1e3,
          .p99_us = MedianOf(floor_, &CopySample::p99_ns) / 1e3,
          .calls_per_s = MedianOf(floor_, &CopySample::copies_per_s)};
  row.extra = {{"gb_per_s", GbPerSecond(row.calls_per_s)}};
  return row;
}

void PrintPayloadRow(const Row& row, Report& report) {
  static bool heading_printed = false;
  if (!heading_printed) {
    heading_printed = true;
    fmt::print("{:<22} {:<6} {:<8} {:>9} {:>6} {:>10} {:>10} {:>8} {:>9} {:>8} {:>7} {:>9} {:>9}\n",
               "bench", "device", "mode", "bytes", "flight", "p50 us", "p99 us", "ratio", "GB/s",
               "floor", "ratio", "cli s/GiB", "srv s/GiB");
  }
  fmt::print("{:<22} {:<6} {:<8} {:>9} {:>6} {:>10} {:>10} {:>8} {:>9} {:>8} {:>7} {:>9} {:>9}\n",
             row.bench, row.device, row.mode, row.size, row.outstanding, Cell(row.p50_us, 2),
             Cell(row.p99_us, 2), Cell(RatioToFloor(row), 2), Cell(Figure(row, "gb_per_s"), 3),
             Cell(Figure(row, "floor_gb_per_s"), 2), Cell(Figure(row, "bandwidth_to_floor"), 2),
             Cell(Figure(row, "client_cpu_s_per_gib"), 3),
             Cell(Figure(row, "server_cpu_s_per_gib"), 3));
  std::fflush(stdout);
  report.AddToJson(row);
}

}  // namespace verbena::benchmarks
