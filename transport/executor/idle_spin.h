// IdleSpin: how long an adaptive executor polls in vain before it sleeps.
//
// Measured in real time, since it spends a real core. The clock is read in one of kTurnsPerRead
// idle turns, and the time counts from the first read. Owned by its executor; one thread.

#ifndef VERBENA_TRANSPORT_EXECUTOR_IDLE_SPIN_H_
#define VERBENA_TRANSPORT_EXECUTOR_IDLE_SPIN_H_

#include <cstdint>

#include "verbena/transport/base/clock.h"

namespace verbena::internal {

class IdleSpin {
 public:
  explicit IdleSpin(Duration limit) : limit_(limit) {}

  // There was work: the next idle turn begins anew.
  void Reset() { turns_ = 0; }

  // Counts an idle turn. True when it is time to sleep.
  bool Over() {
    if (limit_ <= Duration::zero()) return true;
    if (++turns_ % kTurnsPerRead != 0) return false;
    const TimePoint now = std::chrono::steady_clock::now();
    if (turns_ == kTurnsPerRead) since_ = now;
    return now - since_ >= limit_;
  }

 private:
  static constexpr uint64_t kTurnsPerRead = 16;

  const Duration limit_;
  uint64_t turns_ = 0;
  TimePoint since_{};
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_EXECUTOR_IDLE_SPIN_H_
