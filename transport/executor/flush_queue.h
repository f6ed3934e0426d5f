// FlushQueue: the work that leaves at the end of an executor's turn.
//
// A part of an Executor, on its thread; it owns no hook.

#ifndef VERBENA_TRANSPORT_EXECUTOR_FLUSH_QUEUE_H_
#define VERBENA_TRANSPORT_EXECUTOR_FLUSH_QUEUE_H_

#include "verbena/transport/base/list.h"

namespace verbena::internal {

// Something with work to push out at the end of a turn. Queued by Executor::FlushLater for one turn
// at a time, so that a turn costs nothing for an idle object. Its destructor takes it off the
// queue.
class FlushHook : public IntrusiveNode<FlushHook> {
 public:
  virtual ~FlushHook() = default;
  // May queue hooks, this one too.
  virtual void Flush() = 0;
};

// Receives are reposted before the SENDs that return their credits.
enum class FlushPriority { kReceives = 0, kSends = 1 };

// The hooks that want to push work out at the end of this turn: two intrusive lists, one per
// priority.
class FlushQueue {
 public:
  bool empty() const { return receives_.empty() && sends_.empty(); }

  void Push(FlushHook& hook, FlushPriority priority) {
    if (hook.linked()) return;
    (priority == FlushPriority::kReceives ? receives_ : sends_).PushBack(hook);
  }

  // Flushes every hook, and those queued meanwhile, for kMaxRounds rounds; what is queued after
  // that waits for the next turn. Returns how many were flushed.
  int Run() {
    int flushed = 0;
    for (int round = 0; round < kMaxRounds && !empty(); ++round) {
      if (!receives_.empty()) flushed += FlushOnce(receives_);
      if (!sends_.empty()) flushed += FlushOnce(sends_);
    }
    return flushed;
  }

 private:
  // A repost may let a SEND go, and posting that SEND may queue one more repost.
  static constexpr int kMaxRounds = 4;

  static int FlushOnce(IntrusiveList<FlushHook>& hooks) {
    FlushHook* hook = hooks.PopFront();
    if (hooks.empty()) {  // one hook is queued: the common case
      hook->Flush();
      return 1;
    }
    IntrusiveList<FlushHook> round;
    round.Append(hooks);
    int flushed = 0;
    for (; hook != nullptr; hook = round.PopFront()) {
      hook->Flush();
      ++flushed;
    }
    return flushed;
  }

  IntrusiveList<FlushHook> receives_;
  IntrusiveList<FlushHook> sends_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_EXECUTOR_FLUSH_QUEUE_H_
