#include "verbena/rpc/server/backlog.h"

#include <bit>

#include "verbena/transport/base/check.h"

namespace verbena::internal {

CallBacklog::CallBacklog(Executor& executor, bool is_always_asked)
    : executor_(executor),
      clock_(executor.options().clock != nullptr ? *executor.options().clock : Clock::Real()),
      is_always_asked_(is_always_asked),
      may_hold_(is_always_asked) {}

CallBacklog::~CallBacklog() { VERBENA_CHECK(waiting_ == 0) << waiting_ << " calls wait"; }

void CallBacklog::Watch() {
  if (!LagListener::linked()) executor_.WatchLag(*this);
}

void CallBacklog::SetHolds(bool holds) {
  holds_ = holds;
  may_hold_ = holds || is_always_asked_;
}

void CallBacklog::OnLag() {
  SetHolds(true);
  executor_.FlushLater(*this, FlushPriority::kSends);
}

void CallBacklog::Push(QueuedCall& call) {
  VERBENA_CHECK(holds_ && !call.waits_) << waiting_ << " calls wait";
  call.waits_ = true;
  newest_first_.PushFront(call);
  oldest_first_.PushBack(call);
  ++waiting_;
}

void CallBacklog::Remove(QueuedCall& call) {
  VERBENA_CHECK(call.waits_ && waiting_ > 0) << waiting_ << " calls wait";
  call.waits_ = false;
  call.AgingCall::Unlink();
  call.IntrusiveNode<QueuedCall>::Unlink();
  --waiting_;
}

// A hook that queues itself is called again in the same turn. If the executor has lagged again
// meanwhile, this is queued already.
void CallBacklog::Flush() {
  const uint64_t turn = executor_.stats().turns;
  if (turn != last_turn_) {
    last_turn_ = turn;
    executor_.PollOn();
    StartSome();
    if (waiting_ == 0 && !FlushHook::linked()) {
      SetHolds(false);
      return;
    }
  }
  executor_.FlushLater(*this, FlushPriority::kSends);
}

// The clock is read after 1, 2, 4, 8, 16 starts: short handlers are not to pay for one reading
// each.
void CallBacklog::StartSome() {
  const bool in_order = waiting_ <= kMaxStartsPerTurn;
  const TimePoint begin = clock_.Now();
  for (uint32_t started = 1; started <= kMaxStartsPerTurn; ++started) {
    QueuedCall* call = Next(in_order);
    if (call == nullptr) return;
    Remove(*call);
    call->RunQueued();
    if (std::has_single_bit(started) && clock_.Now() - begin >= kTurnSlice) return;
  }
}

QueuedCall* CallBacklog::Next(bool in_order) {
  if (in_order || newest_in_a_row_ >= kNewestInARow) {
    newest_in_a_row_ = 0;
    return static_cast<QueuedCall*>(oldest_first_.Front());
  }
  ++newest_in_a_row_;
  return newest_first_.Front();
}

void CallBacklog::RefuseAll(RefusalReason reason) {
  while (AgingCall* oldest = oldest_first_.Front()) {
    auto& call = static_cast<QueuedCall&>(*oldest);
    Remove(call);
    call.RefuseQueued(reason);
  }
}

void CallBacklog::Stop() {
  VERBENA_CHECK(waiting_ == 0) << waiting_ << " calls wait";
  LagListener::Unlink();
  FlushHook::Unlink();
  SetHolds(false);
}

}  // namespace verbena::internal
