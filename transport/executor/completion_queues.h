// CompletionQueues: the CQs that an executor polls, and how they wake it.
//
// Each CQ has a completion channel of its own, watched by the executor's Waiter. Arming is
// one-shot: an armed CQ stays armed until its event has been read. So a turn that found work after
// arming need not arm again. Events are acknowledged in batches, and before a CQ is destroyed. One
// thread; the devices and listeners outlive it.
//
//   queues.Poll();                                  // every turn
//   if (queues.Arm() && queues.Poll() == 0) Sleep();  // before every sleep

#ifndef VERBENA_TRANSPORT_EXECUTOR_COMPLETION_QUEUES_H_
#define VERBENA_TRANSPORT_EXECUTOR_COMPLETION_QUEUES_H_

#include <infiniband/verbs.h>

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/ticks.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/executor/completion_listener.h"
#include "verbena/transport/executor/lag.h"
#include "verbena/transport/executor/waiter.h"

namespace verbena::internal {

class CompletionQueues {
 public:
  // Both outlive it. `lag` hears of polls that fill their arrays.
  CompletionQueues(Waiter& waiter, Lag& lag);
  // Destroys CQs that their owners did not give back, and logs this.
  ~CompletionQueues();

  // From now on each poll that finds something stamps `ticks`, which outlive this.
  void Stamp(TurnTicks& ticks) { ticks_ = &ticks; }

  absl::StatusOr<ibv_cq*> Add(Device& device, int entries, CompletionListener& listener,
                              int comp_vector);
  // Its listener hears no more, and the CQ is not touched again. If the device refuses to destroy
  // the CQ, this returns the error, and CQ and channel leak.
  absl::Status Remove(ibv_cq* cq);

  // Hands up to one batch of each CQ to its listener. Returns how many completions there were.
  int Poll() {
    int completions = 0;
    // By index: a listener may add or remove other CQs.
    for (size_t i = 0; i < polled_.size(); ++i) {
      completions += PollOnce(polled_[i].cq, *polled_[i].listener);
    }
    return completions;
  }

  // Polls `cq` until it is empty. Returns how many completions there were. A listener that posts
  // work meanwhile may get its completions, too: the caller must make sure that this ends.
  int Drain(ibv_cq* cq);

  // Polls each CQ until it is empty, or has handed over as many completions as it has entries: a
  // listener posts receives meanwhile, and its peers may use them.
  struct PolledOn {
    int completions = 0;
    bool emptied = true;  // each of them
  };
  PolledOn PollOn();

  // Arms every CQ that is not armed. False when a CQ cannot be (logged): sleeping is not safe.
  bool Arm();

 private:
  // (start) A batch fits the L1 cache, and its listener is called once for it.
  static constexpr int kBatch = 32;

  // The part of a Queue that every turn touches.
  struct Polled {
    ibv_cq* cq;
    CompletionListener* listener;
  };
  class Queue;

  int PollOnce(ibv_cq* cq, CompletionListener& listener) {
    ibv_wc completions[kBatch];
    const int count = ibv_poll_cq(cq, kBatch, completions);
    if (count == 0) [[likely]]
      return 0;
    // As unsigned, so that an error is large, too.
    if (static_cast<unsigned>(count) >= kBatch) [[unlikely]] {
      if (count < 0) return PollFailed(cq, count);
      lag_.OnFullPoll();
    }
    if (ticks_ != nullptr) ticks_->OnFound();
    listener.OnCompletions(completions, count);
    return count;
  }
  static void Abandon(std::unique_ptr<Queue> queue);
  // Returns 0: nothing was polled.
  int PollFailed(ibv_cq* cq, int error);

  Waiter& waiter_;
  Lag& lag_;
  TurnTicks* ticks_ = nullptr;  // null: nobody reads them
  std::vector<Polled> polled_;
  std::vector<std::unique_ptr<Queue>> queues_;  // in the order of polled_
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_EXECUTOR_COMPLETION_QUEUES_H_
