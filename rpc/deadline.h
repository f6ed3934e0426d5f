// Deadline: the time by which a call must have ended.
//
// Made from a duration or a time point, implicitly, so that `{.deadline = 5ms}` reads well. A
// duration counts from the start of the call, on the clock of the executor that makes it; a time
// point is a time of that clock. The default leaves it to the channel (ChannelOptions), which has
// none unless it is given one. A value; any thread.
//
//   co_await stub.Read(request, {.deadline = std::chrono::milliseconds(5)});

#ifndef VERBENA_RPC_DEADLINE_H_
#define VERBENA_RPC_DEADLINE_H_

#include <chrono>
#include <cstdint>

#include "verbena/transport/base/check.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/coro/scheduler.h"

namespace verbena {

class Deadline {
 public:
  constexpr Deadline() = default;
  template <typename Rep, typename Period>
  constexpr Deadline(  // NOLINT(google-explicit-constructor)
      std::chrono::duration<Rep, Period> from_start)
      : when_(internal::SaturatingCast(from_start)), kind_(Kind::kFromStart) {}
  constexpr Deadline(TimePoint when) : when_(when) {}  // NOLINT(google-explicit-constructor)

  // No deadline, whatever the channel's default is.
  static constexpr Deadline None() {
    Deadline none;
    none.kind_ = Kind::kNone;
    return none;
  }

  constexpr bool is_set() const { return kind_ == Kind::kFromStart || when_ != kNever; }
  // Whether the caller chose: a deadline, or None(). False for the default.
  constexpr bool is_given() const { return is_set() || kind_ == Kind::kNone; }
  // The deadline of a call that starts at `start`: kNever if there is none. The second form asks
  // `scheduler` for the time if it must.
  constexpr TimePoint At(TimePoint start) const {
    return kind_ == Kind::kFromStart ? SaturatingAdd(start, when_.time_since_epoch()) : when_;
  }
  TimePoint At(const Scheduler& scheduler) const {
    return kind_ == Kind::kFromStart ? At(scheduler.now()) : when_;
  }

  // kNever if there is none. Precondition: made from a time point, as ServerContext::deadline() is.
  constexpr TimePoint when() const {
    VERBENA_CHECK(kind_ != Kind::kFromStart)
        << "a deadline made from a duration is no time before its call starts: use At()";
    return when_;
  }

 private:
  enum class Kind : uint8_t { kTime, kFromStart, kNone };

  // A duration from the call's start is kept as the time that far after the clock's epoch.
  TimePoint when_ = kNever;
  Kind kind_ = Kind::kTime;
};

}  // namespace verbena

#endif  // VERBENA_RPC_DEADLINE_H_
