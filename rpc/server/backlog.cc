#include "verbena/rpc/server/backlog.h"

#include "verbena/transport/base/check.h"

namespace verbena::internal {

CallBacklog::CallBacklog(Executor& executor, bool is_always_asked)
    : executor_(executor), is_always_asked_(is_always_asked), may_hold_(is_always_asked) {}

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

CallFlow& CallBacklog::FlowOf(const QueuedCall& call) {
  return call.client_->flows_[static_cast<size_t>(CallClass::kNormal)];
}

void CallBacklog::Push(QueuedCall& call, ClientQueue& client) {
  VERBENA_CHECK(holds_ && !call.waits_) << waiting_ << " calls wait";
  call.waits_ = true;
  call.client_ = &client;
  CallFlow& flow = FlowOf(call);
  flow.calls_.PushBack(call);
  if (!flow.linked()) flow.source_->flows_.PushBack(flow);
  if (!flow.source_->linked()) turns_.PushBack(*flow.source_);
  ++waiting_;
}

void CallBacklog::Remove(QueuedCall& call) {
  VERBENA_CHECK(call.waits_ && waiting_ > 0) << waiting_ << " calls wait";
  call.waits_ = false;
  call.IntrusiveNode<QueuedCall>::Unlink();
  --waiting_;
  CallFlow& flow = FlowOf(call);
  if (!flow.calls_.empty()) return;
  flow.newest_in_a_row_ = 0;
  flow.Unlink();
  if (flow.source_->flows_.empty()) flow.source_->Unlink();
}

// A hook that queues itself is called again in the same turn. If the executor has lagged again
// meanwhile, this is queued already.
void CallBacklog::Flush() {
  const uint64_t turn = executor_.stats().turns;
  if (turn != last_turn_) {
    last_turn_ = turn;
    const bool has_read_all = executor_.PollOn();
    StartSome();
    if (has_read_all && waiting_ == 0 && !FlushHook::linked()) {
      SetHolds(false);
      return;
    }
  }
  executor_.FlushLater(*this, FlushPriority::kSends);
}

void CallBacklog::StartSome() {
  const bool in_order = waiting_ <= kMaxStartsPerTurn;
  const TimePoint begin = executor_.now();
  for (uint32_t started = 0; started < kMaxStartsPerTurn; ++started) {
    QueuedCall* call = Next(in_order);
    if (call == nullptr) return;
    Remove(*call);
    call->RunQueued();
    if (executor_.FreshNow() - begin >= kTurnSlice) return;
  }
}

QueuedCall* CallBacklog::Next(bool in_order) {
  SourceFlow* const source = turns_.PopFront();
  if (source == nullptr) return nullptr;
  turns_.PushBack(*source);
  CallFlow& flow = *source->flows_.PopFront();
  source->flows_.PushBack(flow);
  if (in_order || flow.newest_in_a_row_ >= kNewestInARow) {
    flow.newest_in_a_row_ = 0;
    return flow.calls_.Front();
  }
  ++flow.newest_in_a_row_;
  return flow.calls_.Back();
}

void CallBacklog::RefuseAll(RefusalReason reason) {
  while (QueuedCall* call = Next(/*in_order=*/true)) {
    Remove(*call);
    call->RefuseQueued(reason);
  }
}

void CallBacklog::Stop() {
  VERBENA_CHECK(waiting_ == 0) << waiting_ << " calls wait";
  LagListener::Unlink();
  FlushHook::Unlink();
  SetHolds(false);
}

}  // namespace verbena::internal
