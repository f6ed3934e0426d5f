// MovedClock: the machine's time, and what a test adds to it. Any thread.

#ifndef VERBENA_TESTS_RPC_MOVED_CLOCK_H_
#define VERBENA_TESTS_RPC_MOVED_CLOCK_H_

#include <atomic>

#include "verbena/transport/coro/clock.h"

namespace verbena {

class MovedClock final : public Clock {
 public:
  TimePoint Now() override { return Clock::Real().Now() + moved_by.load(); }

  std::atomic<Duration> moved_by{Duration::zero()};
};

}  // namespace verbena

#endif  // VERBENA_TESTS_RPC_MOVED_CLOCK_H_
