// MovedClock: the machine's clock plus an offset that a test sets. Safe from any thread.

#ifndef VERBENA_TESTS_RPC_MOVED_CLOCK_H_
#define VERBENA_TESTS_RPC_MOVED_CLOCK_H_

#include <atomic>

#include "verbena/transport/base/clock.h"

namespace verbena {

class MovedClock final : public Clock {
 public:
  TimePoint Now() override { return Clock::Real().Now() + moved_by.load(); }

  std::atomic<Duration> moved_by{Duration::zero()};
};

}  // namespace verbena

#endif  // VERBENA_TESTS_RPC_MOVED_CLOCK_H_
