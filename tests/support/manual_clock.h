// ManualClock: a clock that stands still until the test moves it, and counts who looks at it. For
// any thread.
//
//   ManualClock clock;
//   auto executor = *Executor::Create({.clock = &clock});
//   clock.Advance(std::chrono::hours(1));

#ifndef VERBENA_TESTS_SUPPORT_MANUAL_CLOCK_H_
#define VERBENA_TESTS_SUPPORT_MANUAL_CLOCK_H_

#include <atomic>
#include <chrono>
#include <cstdint>

#include "verbena/transport/base/clock.h"

namespace verbena {

class ManualClock final : public Clock {
 public:
  // Some way into time, so that earlier times exist.
  static constexpr TimePoint kStart{std::chrono::hours(1)};

  // `step` passes with each reading: time for a loop that reads the clock in each round.
  explicit ManualClock(TimePoint start = kStart, Duration step = Duration::zero())
      : now_(start.time_since_epoch().count()), step_(step.count()) {}

  TimePoint Now() override {
    ++reads_;
    return TimePoint(Duration(now_.fetch_add(step_)));
  }
  void Advance(Duration by) { now_ += by.count(); }
  // How often Now() was called.
  uint64_t reads() const { return reads_; }

 private:
  std::atomic<Duration::rep> now_;
  const Duration::rep step_;
  std::atomic<uint64_t> reads_ = 0;
};

}  // namespace verbena

#endif  // VERBENA_TESTS_SUPPORT_MANUAL_CLOCK_H_
