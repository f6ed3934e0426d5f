// ManualClock: time for a device that a test steps by hand. It stands still until the test moves
// it. One thread.

#ifndef VERBENA_TESTS_TRANSPORT_SOFT_MANUAL_CLOCK_H_
#define VERBENA_TESTS_TRANSPORT_SOFT_MANUAL_CLOCK_H_

#include <chrono>

#include "verbena/transport/coro/clock.h"

namespace verbena::internal::soft {

class ManualClock final : public Clock {
 public:
  TimePoint Now() override { return now_; }
  void Advance(Duration by) { now_ += by; }

 private:
  TimePoint now_ = TimePoint(std::chrono::seconds(1));
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TESTS_TRANSPORT_SOFT_MANUAL_CLOCK_H_
