#include "verbena/benchmarks/harness/stream_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "verbena/benchmarks/harness/median.h"

namespace verbena::benchmarks {

Options StreamDefaults() {
  Options options;
  options.sizes = {1024};
  return options;
}

int StreamRounds(double seconds) {
  return std::max(1, static_cast<int>(seconds * 1000 / (2 * kStreamSliceMs)));
}

Row StreamPoint::ToRow(const std::string& bench, const std::string& device,
                       const std::string& mode) const {
  std::vector<double> rates;
  uint64_t messages = 0;
  uint64_t allocations = 0;
  for (const StreamSample& sample : samples_) {
    rates.push_back(sample.messages_per_s);
    messages += sample.messages;
    allocations += sample.allocations;
  }
  const double messages_per_s = Median(rates);
  const double calls_per_s = Median(calls_per_s_);
  Row row{.bench = bench, .device = device, .mode = mode, .size = size_};
  row.extra = {{"streams", static_cast<double>(streams_)},
               {"messages_per_s", messages_per_s},
               {"unary_calls_per_s", calls_per_s},
               {"ratio_to_unary", messages_per_s / calls_per_s},
               {"client_allocations_per_message",
                static_cast<double>(allocations) / static_cast<double>(messages)}};
  return row;
}

void PrintStreamRow(const Row& row, Report& report) {
  static bool heading_printed = false;
  if (!heading_printed) {
    heading_printed = true;
    fmt::print("{:<12} {:<6} {:<6} {:>6} {:>8} {:>14} {:>14} {:>6} {:>12}\n", "bench", "device",
               "mode", "bytes", "streams", "messages/s", "unary calls/s", "ratio", "allocations");
  }
  fmt::print("{:<12} {:<6} {:<6} {:>6} {:>8.0f} {:>14.0f} {:>14.0f} {:>6.2f} {:>12.4f}\n",
             row.bench, row.device, row.mode, row.size, row.extra[0].second, row.extra[1].second,
             row.extra[2].second, row.extra[3].second, row.extra[4].second);
  std::fflush(stdout);
  report.AddToJson(row);
}

}  // namespace verbena::benchmarks
