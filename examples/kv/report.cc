#include "examples/kv/report.h"

#include <array>

#include "fmt/format.h"

namespace kv {

std::string Grouped(uint64_t number) {
  std::string text = fmt::format("{}", number);
  for (size_t end = text.size(); end > 3; end -= 3) text.insert(end - 3, ",");
  return text;
}

std::string Sized(uint64_t bytes) {
  constexpr std::array kUnits = {"kB", "MB", "GB", "TB"};
  if (bytes < 1000) return fmt::format("{} bytes", bytes);
  double amount = static_cast<double>(bytes) / 1000;
  size_t unit = 0;
  while (amount >= 999.95 && unit + 1 < kUnits.size()) {
    amount /= 1000;
    ++unit;
  }
  return fmt::format("{:.1f} {}", amount, kUnits[unit]);
}

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
