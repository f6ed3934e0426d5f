// AdmissionPace: the time from one start of a queued call to the next while calls are ready, as an
// average.
//
// Part of an AdmissionQueue, on its executor's thread. Measured from turn to turn: now() is the
// turn's, so the time between two turns is what the calls of the first one took.

#ifndef VERBENA_RPC_SERVER_ADMISSION_PACE_H_
#define VERBENA_RPC_SERVER_ADMISSION_PACE_H_

#include <algorithm>
#include <cstdint>

#include "verbena/transport/base/clock.h"

namespace verbena::internal {

class AdmissionPace {
 public:
  // How many calls a turn may start so that it takes `slice`: 1 to `most`.
  uint32_t StartsIn(Duration slice, uint32_t most) const {
    if (!measured_) return 1;
    if (average_ <= Duration::zero()) return most;
    return static_cast<uint32_t>(
        std::clamp<uint64_t>(static_cast<uint64_t>(slice / average_), 1, most));
  }
  // True if calls have been ready ever since the pace was measured.
  bool holds() const { return holds_ && average_ > Duration::zero(); }
  // How many calls start in `wait`. Precondition: holds().
  uint64_t StartsDuring(Duration wait) const { return static_cast<uint64_t>(wait / average_); }

  // True if calls have been ready ever since the last turn that started some. Ask before a turn.
  bool measuring() const { return measuring_; }
  // A turn at `now` has started `started` calls, not 0. `measuring` was true before the turn, and
  // calls are `ready` after it.
  void EndTurn(TimePoint now, uint32_t started, bool measuring, bool ready) {
    if (measuring) {
      const Duration sample = (now - last_turn_) / last_started_;
      average_ = measured_ ? average_ + (sample - average_) / (1 << kShift) : sample;
      measured_ = true;
      holds_ = ready;
    }
    last_turn_ = now;
    last_started_ = started;
    measuring_ = ready;
  }
  // No call is ready any more.
  void Interrupt() { measuring_ = holds_ = false; }

 private:
  // A new sample counts one in two to the power of this.
  static constexpr int kShift = 3;

  Duration average_{};
  bool measured_ = false;  // ever
  bool holds_ = false;
  bool measuring_ = false;
  TimePoint last_turn_{};  // that started calls
  uint32_t last_started_ = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_ADMISSION_PACE_H_
