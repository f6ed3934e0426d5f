#include "verbena/rpc/testing/fake_clock.h"

#include <algorithm>
#include <coroutine>

#include "verbena/rpc/runtime.h"
#include "verbena/rpc/task.h"

namespace verbena::testing {
namespace {

// More turns than an executor takes until it looks at its clock, and some for what becomes ready.
constexpr int kTurns = 32;

// Resumes the coroutine when the executor's loop next takes what was posted to it.
struct Posted {
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> coroutine) {
    executor.PostFunction([coroutine] { coroutine.resume(); });
  }
  void await_resume() const noexcept {}

  Executor& executor;
};

Task<TimePoint> NextTimer(Executor& executor) { co_return executor.NextTimer(); }

// Each round takes a turn of the loop: what is posted runs before what is ready.
Task<void> RunWhatIsDue(Executor& executor) {
  for (int turn = 0; turn < kTurns; ++turn) {
    co_await Posted{executor};
    (void)co_await Yield();
  }
}

}  // namespace

TimePoint FakeClock::Now() {
  const TimePoint now = now_.load();
  const TimePoint since = running_since_.load();
  return since == kNever ? now : SaturatingAdd(now, Clock::Real().Now() - since);
}

void FakeClock::Advance(Runtime& runtime, Duration by) {
  const auto run_what_is_due = [&runtime] {
    for (int i = 0; i < runtime.executors(); ++i) {
      runtime.BlockOn(RunWhatIsDue(runtime.executor(i)), i);
    }
  };
  const TimePoint end = SaturatingAdd(now_.load(), by);
  // A task that was spawned just before begins now, not after the time that passes.
  run_what_is_due();
  while (now_.load() < end) {
    TimePoint next = end;
    for (int i = 0; i < runtime.executors(); ++i) {
      next = std::min(next, runtime.BlockOn(NextTimer(runtime.executor(i)), i));
    }
    // A timer that is overdue must not stop time.
    now_ = std::min(std::max(next, SaturatingAdd(now_.load(), Duration(1))), end);
    run_what_is_due();
  }
}

void FakeClock::Run() {
  if (running_since_.load() == kNever) running_since_ = Clock::Real().Now();
}

}  // namespace verbena::testing
