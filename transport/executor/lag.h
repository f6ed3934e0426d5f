// Lag: whether an executor comes to its work so late that the work may be out of date.
//
// An executor that computes for long, or whose process stands still, finds requests in its
// completion queues that nobody waits for any more, and what ends them behind them. It lags if
//
//   - two readings of its clock are more than kMost apart, and it was not idle between them; or
//   - its polls have filled their arrays for kMost on end; or
//   - a turn is seen to have lasted for more than kMost.
//
// An idle turn proves that the queues were empty, and so does a sleep, however long it was. Nothing
// here reads the clock but OnFullPoll().
//
// Part of an Executor, on its thread. It owns no listener.

#ifndef VERBENA_TRANSPORT_EXECUTOR_LAG_H_
#define VERBENA_TRANSPORT_EXECUTOR_LAG_H_

#include <chrono>
#include <cstdint>

#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/list.h"

namespace verbena::internal {

// Hears that its executor lags. Its destructor takes it off the list, on the executor's thread.
class LagListener : public IntrusiveNode<LagListener> {
 public:
  virtual ~LagListener() = default;
  // Perhaps inside a completion listener, in the middle of a frame, and several times in a turn: it
  // may queue a FlushHook, and polls nothing. A hook that polls on calls Executor::PollOn().
  virtual void OnLag() = 0;
};

class Lag {
 public:
  // (start) Ten times what a handler should compute at most, and a tenth of a short deadline.
  static constexpr Duration kMost = std::chrono::milliseconds(10);

  // `turns` counts the executor's turns. Both outlive it.
  Lag(Clock& clock, const uint64_t& turns) : clock_(clock), turns_(turns) {}
  Lag(const Lag&) = delete;
  Lag& operator=(const Lag&) = delete;

  void Add(LagListener& listener) { listeners_.PushBack(listener); }

  // The clock was read.
  void OnReading(TimePoint time) {
    const bool is_late = time > late_behind_;
    late_behind_ = time + kMost;
    if (is_late) [[unlikely]]
      Tell();
  }
  // A turn found nothing to do.
  void OnIdle() { late_behind_ = kNever; }
  // A sleep has ended. A host may sleep behind a turn that was not idle.
  void OnSleep() {
    OnIdle();
    full_turn_ = 0;
  }
  // A poll has filled its array, whose completions have not been handled.
  [[gnu::cold, gnu::noinline]] void OnFullPoll();
  // The turn has lasted from `begin` to `now`. True if that is too long.
  [[gnu::cold, gnu::noinline]] bool OnLook(TimePoint begin, TimePoint now);
  // The queues were polled until they were empty.
  void OnPolledOn() { full_turn_ = 0; }

 private:
  [[gnu::cold, gnu::noinline]] void Tell();

  Clock& clock_;
  const uint64_t& turns_;
  // A reading beyond this tells of a lag: kMost behind the last one, if the executor was not idle
  // since.
  TimePoint late_behind_ = kNever;
  uint64_t full_turn_ = 0;  // the last turn with a full poll; 0: none
  TimePoint full_since_{};  // when the first of these turns in a row polled
  IntrusiveList<LagListener> listeners_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_EXECUTOR_LAG_H_
