// ManualClock: time for a device that a test steps by hand. It stands still until the test moves
// it. For any thread.

#ifndef VERBENA_TESTS_TRANSPORT_SOFT_MANUAL_CLOCK_H_
#define VERBENA_TESTS_TRANSPORT_SOFT_MANUAL_CLOCK_H_

#include <atomic>
#include <chrono>

#include "verbena/transport/base/clock.h"

namespace verbena::internal::soft {

class ManualClock final : public Clock {
 public:
  TimePoint Now() override { return TimePoint(now_.load()); }
  void Advance(Duration by) { now_ = now_.load() + by; }

 private:
  std::atomic<Duration> now_ = Duration(std::chrono::seconds(1));
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TESTS_TRANSPORT_SOFT_MANUAL_CLOCK_H_
