// Ticks: readings of the processor's counter. TickSource reads it, and knows how long a tick is;
// TurnTicks are the readings that the work of one executor shares.
//
// A reading costs a fraction of what a clock's does, but still as much as some dozen instructions.
// So an executor reads once for each poll that found something (TurnTicks::found), and once for
// each few calls that begin (TurnTicks::Shared). A time is the difference of two readings, as a
// number of ticks until somebody needs it in nanoseconds.
//
//   const Ticks arrived = executor.ticks().found();
//   …
//   Duration took = source.DurationOf(TicksBetween(arrived, source.Read()));

#ifndef VERBENA_TRANSPORT_BASE_TICKS_H_
#define VERBENA_TRANSPORT_BASE_TICKS_H_

#include <cstdint>

#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/export.h"

namespace verbena::internal {

using Ticks = uint64_t;

// 0 if `to` is before `from`: counters of two cores may differ by a little.
inline Ticks TicksBetween(Ticks from, Ticks to) {
  return static_cast<int64_t>(to - from) < 0 ? 0 : to - from;
}

// `ticks` in the units of which UnitsPerTick() gave `units_per_tick`, rounded down. Right below
// 2^63 units.
inline uint64_t UnitsIn(Ticks ticks, uint64_t units_per_tick) {
  using Wide = unsigned __int128;
  return static_cast<uint64_t>(static_cast<Wide>(ticks) * units_per_tick >> 32);
}

// TickSource: the processor's counter, or a clock in its place.
//
// A value, for any thread. Readings of one source alone can be compared.
class VERBENA_EXPORT TickSource {
 public:
  // rdtsc or cntvct. Clock::Real() if the processor has no counter, one that stands still while it
  // sleeps, or one whose pace nobody knows.
  static TickSource Processor();
  // Ticks are the nanoseconds of `clock`, which outlives the source and its copies.
  explicit TickSource(Clock& clock) : clock_(&clock) {}

  Ticks Read() const {
    if (clock_ == nullptr) [[likely]]
      return ReadCounter();
    return static_cast<Ticks>(clock_->Now().time_since_epoch().count());
  }
  // How long `ticks` are. At most Duration::max().
  Duration DurationOf(Ticks ticks) const;
  // For UnitsIn(): how many units of so many nanoseconds a tick has. Ask once, and keep it. The
  // first question to the counter for this or the above takes half a millisecond, which measures
  // how long a tick is.
  uint64_t UnitsPerTick(double unit_nanoseconds) const;

 private:
  TickSource() = default;
  static Ticks ReadCounter() {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    Ticks ticks;
    asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#else
    return 0;  // Processor() has a clock
#endif
  }
  double NanosecondsPerTick() const;

  Clock* clock_ = nullptr;  // null: the counter
};

// TurnTicks: the readings that the work of one executor shares.
//
// Part of a Scheduler, on its thread. Nobody reads found() unless the executor was told to stamp
// its polls (ExecutorOptions::stamps).
class TurnTicks {
 public:
  // (start) How many calls share a reading as their beginning. What one of them does before the
  // next begins counts in the next one's time.
  static constexpr uint32_t kSharers = 8;

  // From now on readings are of `source`. Before anything runs.
  void Use(TickSource source) { source_ = source; }
  const TickSource& source() const { return source_; }

  // For the executor: a turn begins, or a poll has found something.
  void BeginTurn() {
    left_ = 0;
    found_now_ = false;
  }
  void OnFound() {
    found_now_ = true;
    found_ = source_.Read();
    left_ = 0;
  }

  // When the last poll that found something had done so.
  Ticks found() const { return found_; }
  // Whether that was in this turn.
  bool found_now() const { return found_now_; }
  // Now, for something that begins: at most kSharers in a row share a reading, all in one turn, and
  // after its last poll.
  Ticks Shared() {
    if (left_-- == 0) [[unlikely]]
      Renew();
    return shared_;
  }
  // Now, for what is rare.
  Ticks Read() const { return source_.Read(); }

 private:
  [[gnu::noinline]] void Renew() {
    shared_ = source_.Read();
    left_ = kSharers - 1;
  }

  TickSource source_ = TickSource::Processor();
  Ticks found_ = 0;
  Ticks shared_ = 0;
  uint32_t left_ = 0;  // sharers of shared_ to come
  bool found_now_ = false;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_BASE_TICKS_H_
