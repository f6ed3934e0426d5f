#include "examples/kv/report.h"

#include "examples/common/amounts.h"
#include "fmt/format.h"

namespace kv {

using examples::Grouped;
using examples::PhaseReport;

std::string Table(const std::vector<PhaseReport>& phases) {
  std::string table =
      fmt::format("{:<5} {:>12} {:>11} {:>9} {:>9} {:>9} {:>15} {:>12} {:>7}\n", "", "calls",
                  "calls/s", "p50 us", "p99 us", "p99.9 us", "bytes", "credit waits", "errors");
  for (const PhaseReport& phase : phases) {
    const double seconds = phase.elapsed.count();
    const double rate = seconds > 0 ? static_cast<double>(phase.calls) / seconds : 0;
    table +=
        fmt::format("{:<5} {:>12} {:>11} {:>9.1f} {:>9.1f} {:>9.1f} {:>15} {:>12} {:>7}\n",
                    phase.name, Grouped(phase.calls), Grouped(static_cast<uint64_t>(rate)),
                    phase.latencies.PercentileNs(50) / 1e3, phase.latencies.PercentileNs(99) / 1e3,
                    phase.latencies.PercentileNs(99.9) / 1e3, Grouped(phase.bytes),
                    Grouped(phase.credit_waits), Grouped(phase.errors));
  }
  return table;
}

}  // namespace kv
