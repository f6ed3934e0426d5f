// Deadline: the time by which a call must have ended.
//
// Made from a duration or a time point, implicitly, so that `{.deadline = 5ms}` reads well. A
// duration counts from the start of the call, on the clock of the executor that makes it; a time
// point is a time of that clock. The default is no deadline. A value; any thread.
//
//   co_await stub.Read(request, {.deadline = std::chrono::milliseconds(5)});

#ifndef VERBENA_RPC_DEADLINE_H_
#define VERBENA_RPC_DEADLINE_H_

#include <chrono>

#include "verbena/transport/coro/clock.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/log/check.h"

namespace verbena {

class Deadline {
 public:
  constexpr Deadline() = default;
  template <typename Rep, typename Period>
  constexpr Deadline(  // NOLINT(google-explicit-constructor)
      std::chrono::duration<Rep, Period> from_start)
      : when_(internal::SaturatingCast(from_start)), counts_from_start_(true) {}
  constexpr Deadline(TimePoint when) : when_(when) {}  // NOLINT(google-explicit-constructor)

  constexpr bool is_set() const { return counts_from_start_ || when_ != kNever; }
  // The deadline of a call that starts at `start`: kNever if there is none. The second form asks
  // `scheduler` for the time if it must.
  constexpr TimePoint At(TimePoint start) const {
    return counts_from_start_ ? SaturatingAdd(start, when_.time_since_epoch()) : when_;
  }
  TimePoint At(const Scheduler& scheduler) const {
    return counts_from_start_ ? At(scheduler.now()) : when_;
  }

  // kNever if there is none. Precondition: made from a time point, as that of a ServerContext is.
  constexpr TimePoint when() const {
    VERBENA_CHECK(!counts_from_start_)
        << "a deadline made from a duration is no time before its call starts: use At()";
    return when_;
  }

 private:
  // A duration from the call's start is kept as the time that far after the clock's epoch.
  TimePoint when_ = kNever;
  bool counts_from_start_ = false;
};

}  // namespace verbena

#endif  // VERBENA_RPC_DEADLINE_H_
