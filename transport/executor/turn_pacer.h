// TurnPacer: lets few of many steps run in one turn of an executor.
//
// A thousand coroutines may become ready at once, as the teardowns of lost links do, and each of
// their steps may take microseconds. With a TurnPacer, they delay the completions of others by a
// few steps, not by a thousand. Whoever does not pass in this turn passes in a later one, first
// come, first served.
//
// Used on the thread of its executor, which must outlive it. It must outlive its waiters. Any
// number may wait; a waiter that is destroyed leaves the queue. Pass() fails only with the reason
// for which its coroutine is cancelled.
//
//   (void)co_await teardown_pacer_.Pass();
//   …  // a step

#ifndef VERBENA_TRANSPORT_EXECUTOR_TURN_PACER_H_
#define VERBENA_TRANSPORT_EXECUTOR_TURN_PACER_H_

#include <cstddef>
#include <cstdint>

#include "verbena/transport/base/check.h"
#include "verbena/transport/coro/sync.h"
#include "verbena/transport/executor/executor.h"

namespace verbena::internal {

class TurnPacer final : private FlushHook {
 public:
  // `steps_per_turn` is at least 1.
  TurnPacer(Executor& executor, size_t steps_per_turn)
      : executor_(executor), steps_per_turn_(steps_per_turn), left_(steps_per_turn) {
    VERBENA_CHECK(steps_per_turn >= 1) << "no step would ever pass";
  }

  Semaphore::Awaiter Pass() {
    executor_.FlushLater(*this, FlushPriority::kSends);
    return left_.Acquire(1);
  }

 private:
  // Refills once a turn, although a hook that queues itself is called again in the same turn.
  // Waiters that it lets pass run in the next turn.
  void Flush() override {
    VERBENA_DCHECK(left_.available() <= steps_per_turn_)
        << left_.available() << " of " << steps_per_turn_ << " steps are left";
    const uint64_t turn = executor_.stats().turns;
    const size_t passed = steps_per_turn_ - left_.available();
    if (turn != refilled_in_ && passed > 0) {
      refilled_in_ = turn;
      left_.Release(passed);
    }
    if (left_.available() < steps_per_turn_) {
      executor_.FlushLater(*this, FlushPriority::kSends);
    }
  }

  Executor& executor_;
  const size_t steps_per_turn_;
  Semaphore left_;
  uint64_t refilled_in_ = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_EXECUTOR_TURN_PACER_H_
