// Clock: where time comes from, so that a simulator can own it.
//
// All of Verbena's time is steady (monotonic) time in nanoseconds. Clocks are used from any thread
// and live longer than whatever uses them. They never fail.

#ifndef VERBENA_TRANSPORT_CORO_CLOCK_H_
#define VERBENA_TRANSPORT_CORO_CLOCK_H_

#include <chrono>

namespace verbena {

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

// No deadline at all: later than every time a clock returns.
inline constexpr TimePoint kNever = TimePoint::max();

// `time` + `delay`; kNever when that lies beyond the end of time.
constexpr TimePoint SaturatingAdd(TimePoint time, Duration delay) {
  if (delay > Duration::zero() && time > kNever - delay) return kNever;
  return time + delay;
}

class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint Now() = 0;

  // The machine's steady clock.
  static Clock& Real();
};

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_CORO_CLOCK_H_
