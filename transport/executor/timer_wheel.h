// TimerWheel: the timers of one executor, a hierarchical wheel of 64-slot levels.
//
// Start and stop cost O(1) and allocate nothing. A slot of the lowest level is one nanosecond, so
// timers fire exactly in the order of their times, and those of the same time in the order of their
// starts; eleven levels reach every TimePoint, kNever included. A timer lies at the level of the
// highest base-64 digit in which it differs from the wheel's position, and moves down as the
// position enters its slot: at most once per level, and hardly ever for a deadline that is met. One
// thread; it owns no timer, and knows no clock, so that real and virtual time work alike.
//
//   wheel.Start(timer, now + std::chrono::milliseconds(5));
//   if (now >= wheel.next_check()) wheel.Advance(now);   // calls timer.OnTimer()

#ifndef VERBENA_TRANSPORT_EXECUTOR_TIMER_WHEEL_H_
#define VERBENA_TRANSPORT_EXECUTOR_TIMER_WHEEL_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/coro/scheduler.h"

namespace verbena::internal {

class TimerWheel {
 public:
  explicit TimerWheel(TimePoint now) : position_(KeyOf(now)) {}

  // Restarts a timer that runs. A time that has passed fires at the next Advance().
  void Start(Timer& timer, TimePoint when);
  // Does nothing if the timer does not run.
  void Stop(Timer& timer) { timer.Unlink(); }

  // Fires every timer with when <= now, and returns how many. Timers that are started meanwhile
  // wait for the next call, so that this call ends. A `now` before an earlier one fires nothing.
  size_t Advance(TimePoint now);

  // Before this time Advance() has nothing to do; kNever when there is no timer. Free.
  TimePoint next_check() const { return next_check_; }
  // The time of the earliest timer, or of a check before it when very many timers are close
  // together; kNever when there is none. For a loop about to sleep.
  TimePoint NextTimer();

 private:
  static constexpr int kBitsPerLevel = 6;
  static constexpr int kSlots = 1 << kBitsPerLevel;
  static constexpr int kLevels = (64 + kBitsPerLevel - 1) / kBitsPerLevel;

  struct Slot {
    int level;
    int index;
    uint64_t start;  // the first time that falls into it
  };

  // Times as unsigned numbers in the same order, also before the clock's epoch.
  static constexpr uint64_t kSign = uint64_t{1} << 63;
  static uint64_t KeyOf(TimePoint time) {
    return static_cast<uint64_t>(time.time_since_epoch().count()) ^ kSign;
  }
  static TimePoint TimeOf(uint64_t key) {
    return TimePoint(Duration(static_cast<int64_t>(key ^ kSign)));
  }

  void Insert(Timer& timer);
  IntrusiveList<Timer>& ListOf(const Slot& slot) { return slots_[slot.level][slot.index]; }
  // The earliest slot that holds a timer. False when there is none.
  bool FindFirst(Slot& slot);
  // Moves all timers with when <= now to `due`, in order.
  void Collect(uint64_t now, IntrusiveList<Timer>& due);

  // Every timer's time is at or after position_, or counts as if it were. Within a level all timers
  // agree with position_ in the higher digits and come after it in that level's digit; so lower
  // levels come before higher ones, and a level never wraps around.
  uint64_t position_;
  TimePoint next_check_ = kNever;
  // A bit per slot that may hold timers. Stop() leaves it set; FindFirst() clears it.
  std::array<uint64_t, kLevels> occupied_{};
  std::array<std::array<IntrusiveList<Timer>, kSlots>, kLevels> slots_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_EXECUTOR_TIMER_WHEEL_H_
