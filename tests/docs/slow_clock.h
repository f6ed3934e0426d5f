// SlowClock, and fixtures on it: time that runs at a thirtieth of its pace. The guide's calls have
// a deadline of a second; on a busy machine a thread may not run for as long.
//
//   SlowClock clock;
//   auto runtime = Runtime::Start({.clock = &clock});

#ifndef VERBENA_TESTS_DOCS_SLOW_CLOCK_H_
#define VERBENA_TESTS_DOCS_SLOW_CLOCK_H_

#include <utility>

#include "verbena/rpc/task.h"
#include "verbena/testing.h"

namespace guide {

// For any thread.
class SlowClock final : public verbena::Clock {
 public:
  verbena::TimePoint Now() override { return start_ + (Clock::Real().Now() - start_) / 30; }

 private:
  const verbena::TimePoint start_ = Clock::Real().Now();
};

// Constructed before the fixture whose runtime has the clock, and destroyed after it.
class HasSlowClock {
 protected:
  verbena::testing::InProcessOptions OnClock(verbena::testing::InProcessOptions options) {
    if (!options.fake_clock) options.runtime.clock = &clock_;
    return options;
  }

 private:
  SlowClock clock_;
};

// As verbena::testing::InProcess, on a SlowClock unless it is to be a FakeClock.
template <typename S>
class InProcess : private HasSlowClock, public verbena::testing::InProcess<S> {
 public:
  explicit InProcess(verbena::testing::InProcessOptions options = {})
      : verbena::testing::InProcess<S>(OnClock(std::move(options))) {}
};

}  // namespace guide

#endif  // VERBENA_TESTS_DOCS_SLOW_CLOCK_H_
