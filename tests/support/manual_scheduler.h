// ManualScheduler: a scheduler that moves only when told to, on a clock of its own.
//
// For deterministic tests and simulators. Nothing happens by itself: RunUntilIdle() runs what can
// run now, AdvanceTo() and AdvanceBy() let time pass, from one timer to the next. Equal inputs give
// equal runs. Belongs to the thread that drives it; only Post() and Now() may be called from
// others. Everything that waits on it must be destroyed before it.
//
//   ManualScheduler scheduler;
//   absl::Status slept = scheduler.Run(SleepTwice());   // time passes as it is needed
//
// or, step by step:
//
//   TaskScope scope(scheduler);
//   scope.Spawn(Serve());
//   scheduler.RunUntilIdle();
//   scheduler.AdvanceBy(5ms);

#ifndef VERBENA_TESTS_SUPPORT_MANUAL_SCHEDULER_H_
#define VERBENA_TESTS_SUPPORT_MANUAL_SCHEDULER_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <map>
#include <stdexcept>

#include "verbena/transport/base/clock.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

class ManualScheduler final : public Scheduler, public Clock {
 public:
  // Time starts some way into the clock, so that earlier times exist.
  static constexpr TimePoint kStart{std::chrono::hours(1)};

  explicit ManualScheduler(TimePoint start = kStart);
  ~ManualScheduler() override;

  // Runs the inbox and the ready coroutines until nothing is left to run; no time passes. Returns
  // how many coroutines were resumed. Does not return while some coroutine is always ready.
  size_t RunUntilIdle();
  // One inbox round and at most one ready coroutine. False when there was nothing to run.
  bool RunOne();

  // Lets time pass: at each timer's time the timers due are called, then all that became ready
  // runs. A time that is past changes nothing.
  void AdvanceTo(TimePoint time);
  void AdvanceBy(Duration delay);
  // Lets time pass to the first timer and calls those due then; what becomes ready stays so. For
  // tests that stop at every step. False when no timer runs.
  bool FireNextTimers();
  // The time of the first timer; kNever when none runs.
  TimePoint next_timer() const;
  size_t timer_count() const { return timers_.size(); }

  // Starts `task` and runs until it has ended, letting time pass when nothing else can happen.
  // Throws std::logic_error if it would never end: a test has failed then.
  template <typename T>
  T Run(Task<T> task, CancelScope* cancel = nullptr);
  template <TaskSource A>
  typename A::value_type Run(A awaitable, CancelScope* cancel = nullptr) {
    return Run(ToTask(std::move(awaitable)), cancel);
  }

  TimePoint Now() override { return clock_.load(std::memory_order_relaxed); }

  void StartTimer(Timer& timer, TimePoint when) override;
  void StopTimer(Timer& timer) override;
  void Post(InboxItem& item) override;

 private:
  void RunInbox();
  void RunTimersDue();
  void MoveTo(TimePoint time);

  // In order of time, then of starting.
  std::multimap<TimePoint, Timer*> timers_;
  std::atomic<InboxItem*> inbox_{nullptr};  // newest first
  std::atomic<TimePoint> clock_;
};

template <typename T>
T ManualScheduler::Run(Task<T> task, CancelScope* cancel) {
  struct Done final : TaskListener {
    void OnTaskDone() override { done = true; }
    bool done = false;
  } completion;
  task.StartLater(*this, cancel, &completion);
  RunUntilIdle();
  while (!completion.done) {
    if (timers_.empty()) throw std::logic_error("the task waits for something that never happens");
    AdvanceTo(next_timer());
  }
  return task.TakeResult();
}

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_SUPPORT_MANUAL_SCHEDULER_H_
