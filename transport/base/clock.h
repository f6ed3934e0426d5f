// Clock: tells the time. A simulator can replace it.
//
// All of Verbena's time is steady (monotonic) time in nanoseconds. Clocks are used from any thread
// and live longer than whatever uses them. They never fail.
//
// Users pass any duration, Duration::max() and hours::max() among them. Sums of a time and such a
// duration saturate: write SaturatingAdd(now, delay), never now + delay.

#ifndef VERBENA_TRANSPORT_BASE_CLOCK_H_
#define VERBENA_TRANSPORT_BASE_CLOCK_H_

#include <chrono>
#include <cstdint>
#include <ratio>
#include <type_traits>
#include <utility>

#include "verbena/transport/base/export.h"

namespace verbena {

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

// No deadline at all: later than every time a clock returns.
inline constexpr TimePoint kNever = TimePoint::max();

namespace internal {

// A time that no clock returns and no sum reaches: schedulers use it as a mark.
inline constexpr TimePoint kBeforeAllTime = TimePoint::min();

}  // namespace internal

// `time` + `delay`. kNever if the sum lies beyond the end of time, and the first nanosecond after
// kBeforeAllTime if it lies before that. kNever plus anything is kNever.
constexpr TimePoint SaturatingAdd(TimePoint time, Duration delay) {
  constexpr TimePoint kEarliest = internal::kBeforeAllTime + Duration(1);
  if (time == kNever) return kNever;
  if (delay > Duration::zero()) return time > kNever - delay ? kNever : time + delay;
  return time < kEarliest - delay ? kEarliest : time + delay;
}

namespace internal {

// `duration` in nanoseconds; the largest or smallest Duration if it does not fit.
template <typename Rep, typename Period>
constexpr Duration SaturatingCast(std::chrono::duration<Rep, Period> duration) {
  if constexpr (std::is_floating_point_v<Rep>) {
    using Wide = std::chrono::duration<long double, std::nano>;
    const auto wide = std::chrono::duration_cast<Wide>(duration).count();
    if (wide >= static_cast<long double>(Duration::max().count())) return Duration::max();
    if (wide <= static_cast<long double>(Duration::min().count())) return Duration::min();
  } else if constexpr (std::ratio_greater_equal_v<Period, std::nano>) {
    using Wide = std::chrono::duration<int64_t, Period>;
    constexpr int64_t kMax = std::chrono::duration_cast<Wide>(Duration::max()).count();
    constexpr int64_t kMin = std::chrono::duration_cast<Wide>(Duration::min()).count();
    if (std::cmp_greater(duration.count(), kMax)) return Duration::max();
    if (std::cmp_less(duration.count(), kMin)) return Duration::min();
  }
  return std::chrono::duration_cast<Duration>(duration);
}

}  // namespace internal

class VERBENA_EXPORT Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint Now() = 0;

  // The machine's steady clock.
  static Clock& Real();
};

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_BASE_CLOCK_H_
