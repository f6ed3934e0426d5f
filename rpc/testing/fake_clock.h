// FakeClock: a clock that stands still until a test moves it, so that deadlines, sleeps and timers
// pass without waiting.
//
// Give it to a Runtime (RuntimeOptions::clock), or use the one of an InProcess fixture. It must
// outlive that runtime. Everything on its executors takes its time from this clock: deadlines,
// Sleep(), and the pauses of channels that connect again. Now() and Advance() are for any thread,
// but one thread at a time advances.
//
//   JoinHandle<absl::Status> call = runtime->Spawn(Wait(channel));   // has a deadline of 1 h
//   clock.Advance(*runtime, std::chrono::hours(1));
//   EXPECT_TRUE(absl::IsDeadlineExceeded(call.Join()));

#ifndef VERBENA_RPC_TESTING_FAKE_CLOCK_H_
#define VERBENA_RPC_TESTING_FAKE_CLOCK_H_

#include <atomic>

#include "verbena/rpc/runtime.h"
#include "verbena/rpc/task.h"
#include "verbena/transport/base/export.h"

namespace verbena::testing {

class VERBENA_EXPORT FakeClock final : public Clock {
 public:
  TimePoint Now() override;

  // Lets `by` pass on the executors of `runtime`, from one timer to the next. Returns when the
  // executors have run what was due, and what that made ready. Work that needs other threads, such
  // as a call between two executors, may end later: join it. Links have timers, too, so an hour
  // takes a second or more of the machine's time. Aborts on an executor's thread.
  void Advance(Runtime& runtime, Duration by);

  // From now on time passes by itself, too, at the machine's pace: for the end of a test, when
  // handlers and links are given time to end.
  void Run();

 private:
  std::atomic<TimePoint> now_{Clock::Real().Now()};
  // When Run() was called, by the machine's clock; kNever before.
  std::atomic<TimePoint> running_since_{kNever};
};

}  // namespace verbena::testing

#endif  // VERBENA_RPC_TESTING_FAKE_CLOCK_H_
