#include "verbena/benchmarks/harness/report.h"

#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <cstring>

namespace verbena::benchmarks {
namespace {

std::string Figure(double value) { return value == 0 ? "null" : fmt::format("{:.6g}", value); }

std::string Cell(double value, int precision) {
  return value == 0 ? "-" : fmt::format("{:.{}f}", value, precision);
}

}  // namespace

double RatioToFloor(const Row& row) {
  return row.floor_p50_us == 0 ? 0 : row.p50_us / row.floor_p50_us;
}

std::string ToJson(const Row& row) {
  std::string line = fmt::format(
      R"({{"bench":"{}","device":"{}","mode":"{}","size":{},"outstanding":{},"p50_us":{},)"
      R"("p99_us":{},"calls_per_s":{},"floor_p50_us":{},"ratio_to_floor":{})",
      row.bench, row.device, row.mode, row.size, row.outstanding, Figure(row.p50_us),
      Figure(row.p99_us), Figure(row.calls_per_s), Figure(row.floor_p50_us),
      Figure(RatioToFloor(row)));
  if (!row.op.empty()) line += fmt::format(R"(,"op":"{}")", row.op);
  if (!row.scenario.empty()) line += fmt::format(R"(,"scenario":"{}")", row.scenario);
  for (const auto& [name, value] : row.extra) {
    line += fmt::format(R"(,"{}":{:.12g})", name, value);
  }
  return line + "}";
}

absl::StatusOr<Report> Report::Open(const std::string& json) {
  if (json.empty()) return Report(nullptr);
  std::FILE* file = std::fopen(json.c_str(), "ae");
  if (file == nullptr) {
    return absl::InvalidArgumentError(fmt::format("{}: {}", json, std::strerror(errno)));
  }
  return Report(file);
}

void Report::Add(const Row& row) {
  if (!header_printed_) {
    fmt::print("{:<10} {:<6} {:<9} {:>6} {:>7} {:>9} {:>9} {:>12} {:>9} {:>7}\n", "bench", "device",
               "mode", "bytes", "flight", "p50 us", "p99 us", "calls/s", "floor us", "ratio");
    header_printed_ = true;
  }
  fmt::print("{:<10} {:<6} {:<9} {:>6} {:>7} {:>9} {:>9} {:>12} {:>9} {:>7}\n", row.bench,
             row.device, row.mode, row.size, row.outstanding, Cell(row.p50_us, 3),
             Cell(row.p99_us, 3), Cell(row.calls_per_s, 0), Cell(row.floor_p50_us, 3),
             Cell(RatioToFloor(row), 2));
  std::fflush(stdout);
  if (!row.extra.empty()) with_extra_.push_back(row);
  AddToJson(row);
}

void Report::AddToJson(const Row& row) {
  if (json_ == nullptr) return;
  fmt::print(json_.get(), "{}\n", ToJson(row));
  std::fflush(json_.get());
}

void Report::PrintExtra() {
  if (with_extra_.empty()) return;
  fmt::print("{:<10} {:<6} {:<9} {:>6} {:>7}", "bench", "device", "mode", "bytes", "flight");
  for (const auto& [name, value] : with_extra_.front().extra) fmt::print("  {}", name);
  for (const Row& row : with_extra_) {
    fmt::print("\n{:<10} {:<6} {:<9} {:>6} {:>7}", row.bench, row.device, row.mode, row.size,
               row.outstanding);
    for (const auto& [name, value] : row.extra) {
      fmt::print("  {:>{}.{}f}", value, name.size(), value == std::floor(value) ? 0 : 2);
    }
  }
  fmt::print("\n");
  with_extra_.clear();
  header_printed_ = false;
}

}  // namespace verbena::benchmarks
