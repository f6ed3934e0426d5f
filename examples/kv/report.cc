#include "examples/kv/report.h"

#include "examples/common/amounts.h"
#include "fmt/format.h"

namespace kv {

using examples::Grouped;
using examples::PhaseReport;

namespace {

double RateOf(const PhaseReport& phase) {
  const double seconds = phase.elapsed.count();
  return seconds > 0 ? static_cast<double>(phase.calls) / seconds : 0;
}

}  // namespace

std::string Table(const std::vector<PhaseReport>& phases) {
  std::string table =
      fmt::format("{:<11} {:>12} {:>11} {:>9} {:>9} {:>9} {:>15} {:>12} {:>7}\n", "", "calls",
                  "calls/s", "p50 us", "p99 us", "p99.9 us", "bytes", "credit waits", "errors");
  for (const PhaseReport& phase : phases) {
    table +=
        fmt::format("{:<11} {:>12} {:>11} {:>9.1f} {:>9.1f} {:>9.1f} {:>15} {:>12} {:>7}\n",
                    phase.name, Grouped(phase.calls), Grouped(static_cast<uint64_t>(RateOf(phase))),
                    phase.latencies.PercentileNs(50) / 1e3, phase.latencies.PercentileNs(99) / 1e3,
                    phase.latencies.PercentileNs(99.9) / 1e3, Grouped(phase.bytes),
                    Grouped(phase.credit_waits), Grouped(phase.errors));
  }
  return table;
}

std::string Ratio(const PhaseReport& calls, const PhaseReport& direct) {
  const double rate = RateOf(direct);
  if (rate == 0) return "";
  return fmt::format("{}: {:.2f} of the rate of the same store in one process\n", calls.name,
                     RateOf(calls) / rate);
}

}  // namespace kv
