#include "verbena/rpc/shard/call_report.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "fmt/format.h"

namespace verbena::internal {

double QuantileOf(const std::vector<TimeSlot>& slots, double q) {
  const double rank = q * static_cast<double>(CallsIn(slots));
  double below = 0;
  for (const TimeSlot& slot : slots) {
    const auto count = static_cast<double>(slot.count);
    if (count == 0 || below + count < rank) {
      below += count;
      continue;
    }
    const double share = std::clamp((rank - below) / count, 0.0, 1.0);
    const double inside = slot.begin + share * (slot.end - slot.begin);
    // As far as a tenth allows from either end, should all calls be there.
    const double low = 0.9 * slot.end;
    const double high = 1.1 * slot.begin;
    if (slot.end <= slot.begin) return slot.begin;
    return std::clamp(inside, std::min(low, high), std::max(low, high));
  }
  return 0;
}

std::vector<TimeSlot> SlotsSince(const std::vector<TimeSlot>& now,
                                 const std::vector<TimeSlot>& before) {
  std::vector<TimeSlot> since;
  auto then = before.begin();
  for (const TimeSlot& slot : now) {
    while (then != before.end() && then->begin < slot.begin) ++then;
    const bool is_there = then != before.end() && then->begin == slot.begin;
    const uint64_t old = is_there ? then->count : 0;
    if (slot.count > old) {
      since.push_back({.begin = slot.begin, .end = slot.end, .count = slot.count - old});
    }
  }
  return since;
}

uint64_t CallsIn(const std::vector<TimeSlot>& slots) {
  uint64_t calls = 0;
  for (const TimeSlot& slot : slots) calls += slot.count;
  return calls;
}

std::string TimeText(double seconds) {
  constexpr std::pair<double, const char*> kUnits[] = {
      {1e-9, "ns"}, {1e-6, "µs"}, {1e-3, "ms"}, {1, "s"}};
  size_t unit = 0;
  while (unit + 1 < std::size(kUnits) && seconds >= 999.5 * kUnits[unit].first) ++unit;
  const double value = seconds / kUnits[unit].first;
  const int digits = value >= 99.95 || unit == 0 ? 0 : value >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f} {}", value, digits, kUnits[unit].second);
}

}  // namespace verbena::internal
