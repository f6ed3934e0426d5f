// MovedClock: the machine's clock, which a test may set forward and stop. For any thread.
//
// Use it if time must go on by itself, too, such as between a server and its client. Otherwise a
// ManualClock is better. A test that counts checks or compares times stops the machine's part: a
// thread that stands still for a second would add to both.

#ifndef VERBENA_TESTS_SUPPORT_MOVED_CLOCK_H_
#define VERBENA_TESTS_SUPPORT_MOVED_CLOCK_H_

#include <atomic>

#include "verbena/transport/base/clock.h"

namespace verbena {

class MovedClock final : public Clock {
 public:
  TimePoint Now() override {
    const TimePoint stopped = stopped_at_;
    return (stopped == kNever ? Clock::Real().Now() : stopped) + moved_by.load();
  }

  // For one thread at a time.
  void Advance(Duration by) { moved_by = moved_by.load() + by; }
  // From now on the machine does not move it.
  void Stop() { stopped_at_ = Clock::Real().Now(); }
  // The machine moves it again.
  void GoOn() { stopped_at_ = kNever; }

  // How far the test has set it forward.
  std::atomic<Duration> moved_by{Duration::zero()};

 private:
  std::atomic<TimePoint> stopped_at_{kNever};
};

}  // namespace verbena

#endif  // VERBENA_TESTS_SUPPORT_MOVED_CLOCK_H_
