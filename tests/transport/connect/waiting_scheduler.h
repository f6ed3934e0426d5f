// WaitingScheduler: a scheduler on the test's thread that sleeps until another thread posts to it.
//
// For tests of classes that have threads of their own. Its time is the machine's, or stands still
// but for AdvanceBy(). A wait that lasts a minute throws, and so fails the test.
//
//   WaitingScheduler scheduler;
//   auto stream = scheduler.Run(bootstrap->Connect(address));

#ifndef VERBENA_TESTS_TRANSPORT_CONNECT_WAITING_SCHEDULER_H_
#define VERBENA_TESTS_TRANSPORT_CONNECT_WAITING_SCHEDULER_H_

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <map>
#include <mutex>
#include <stdexcept>

#include "tests/transport/coro/started.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

class WaitingScheduler final : public Scheduler {
 public:
  enum class Time { kReal, kStanding };

  explicit WaitingScheduler(Time time = Time::kReal) : time_(time) { set_now(Clock::Real().Now()); }

  // Work that was posted late must still run, as in an executor that ends properly.
  ~WaitingScheduler() override { RunPending(); }

  template <typename T>
  T Run(Task<T> task, CancelScope* cancel = nullptr) {
    CurrentScope current(*this);
    Started<T> started(*this, std::move(task), cancel);
    RunUntil([&] { return started.done(); });
    return started.result();
  }

  template <typename Condition>
  void RunUntil(Condition condition) {
    CurrentScope current(*this);
    const TimePoint limit = Clock::Real().Now() + std::chrono::minutes(1);
    while (RunTurn(), !condition()) {
      if (Clock::Real().Now() > limit) throw std::runtime_error("waited a minute for nothing");
      if (!has_ready()) Sleep(limit);
    }
  }

  // Lets standing time pass, and runs everything that can run then.
  void AdvanceBy(Duration delay);

  size_t timer_count() const { return timers_.size(); }

  // Runs everything that can run now, without waiting.
  void RunPending();

  void StartTimer(Timer& timer, TimePoint when) override;
  void StopTimer(Timer& timer) override;
  void Post(InboxItem& item) override;

  // Sleeps until at least `count` items were posted. Does not run them.
  void WaitForPosts(size_t count);

 private:
  // True when it did something.
  bool RunTurn();
  void Sleep(TimePoint limit);

  const Time time_;
  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<InboxItem*> inbox_;  // under mutex_
  std::multimap<TimePoint, Timer*> timers_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_TRANSPORT_CONNECT_WAITING_SCHEDULER_H_
