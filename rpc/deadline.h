// Deadline: the time by which a call must have ended.
//
// Made from a duration or a time point, implicitly, so that `{.deadline = 5ms}` reads well; a
// duration counts from the moment the options are built. The default is no deadline. A value; any
// thread.
//
//   co_await stub.Read(request, {.deadline = std::chrono::milliseconds(5)});

#ifndef VERBENA_RPC_DEADLINE_H_
#define VERBENA_RPC_DEADLINE_H_

#include <chrono>

#include "verbena/transport/coro/clock.h"

namespace verbena {

class Deadline {
 public:
  constexpr Deadline() = default;
  template <typename Rep, typename Period>
  Deadline(std::chrono::duration<Rep, Period> from_now)  // NOLINT(google-explicit-constructor)
      : when_(After(std::chrono::duration_cast<Duration>(from_now))) {}
  constexpr Deadline(TimePoint when) : when_(when) {}  // NOLINT(google-explicit-constructor)

  // kNever when there is none.
  constexpr TimePoint when() const { return when_; }
  constexpr bool is_set() const { return when_ != kNever; }

 private:
  static TimePoint After(Duration from_now) {
    const TimePoint now = Clock::Real().Now();
    return from_now >= kNever - now ? kNever : now + from_now;
  }

  TimePoint when_ = kNever;
};

}  // namespace verbena

#endif  // VERBENA_RPC_DEADLINE_H_
