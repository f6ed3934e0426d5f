#include "verbena/transport/soft/completion_queue.h"

#include <mutex>
#include <utility>

#include "verbena/transport/base/status.h"
#include "verbena/transport/soft/queue_pair.h"
#include "verbena/transport/soft/responder.h"
#include "verbena/transport/soft/state.h"
#include "verbena/transport/soft/tcp_lane.h"

namespace verbena::internal::soft {

CompletionQueue::CompletionQueue(SoftState& device, uint64_t id, int entries, void* user_context,
                                 CompletionChannel* events, CqControl& control)
    : Completions(device, id, entries, user_context, events, control, in_lanes_),
      in_lanes_(control) {
  // Nobody has woken the engine for this CQ yet, whatever was said of a former one.
  control_.doorbell.Take();
  control_.activity_summary.store(0);
  for (auto& word : control_.activity) word.store(0);
  control_.mode.store(CqControl::kPolled);
}

CompletionQueue::~CompletionQueue() = default;

int CompletionQueue::Poll(int room, ibv_wc* out) {
  std::lock_guard<SpinLock> guard(lock());
  polls_.store(polls_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  if (unpolled() && armed_ == Armed::kNo) BecomePolled();
  if (has_queued()) {
    const int taken = TakeQueued(room, out);
    if (taken == room) return taken;
    CompletionWriter writer(*this, out + taken, room - taken);
    Progress(writer);
    writer.Finish();
    return taken + writer.count();
  }
  CompletionWriter writer(*this, out, room);
  Progress(writer);
  // A caller without room may have moved some into the queue.
  if (writer.added()) writer.Finish();
  return writer.count();
}

int CompletionQueue::Arm(bool solicited_only) {
  std::lock_guard<SpinLock> guard(lock());
  // Messages that arrived before the arming raise no event: the caller polls once more for them.
  Drive();
  if (!solicited_only) {
    armed_ = Armed::kAny;
  } else if (armed_ == Armed::kNo) {
    armed_ = Armed::kSolicited;
  }
  BecomeUnpolled();
  return 0;
}

bool CompletionQueue::Serve() {
  if (!control_.doorbell.IsRung()) return false;
  std::lock_guard<SpinLock> guard(lock());
  control_.doorbell.Take();
  Drive();
  return true;
}

void CompletionQueue::ServePairs() {
  std::lock_guard<SpinLock> guard(lock());
  if (unpolled()) Drive();
}

bool CompletionQueue::Tick() {
  if (unwatched_.load(std::memory_order_relaxed)) return TickUnwatched();
  const uint64_t polls = polls_.load(std::memory_order_relaxed);
  if (polls != polls_at_tick_ || control_.mode.load() != CqControl::kPolled) {
    polls_at_tick_ = polls;
    return false;
  }
  std::lock_guard<SpinLock> guard(lock());
  BecomeUnpolled();
  Drive();
  return true;
}

bool CompletionQueue::TickUnwatched() {
  std::lock_guard<SpinLock> guard(lock());
  if (!unpolled()) return false;
  WatchPairs(true);
  Drive();
  return true;
}

void CompletionQueue::Drive() {
  CompletionWriter writer(*this);
  // Bounded, so that a peer that never stops cannot keep the engine here: its next message rings
  // again, and so do we.
  constexpr int kMaxTurns = 64;
  // Others wait for the lock, and, if this is the engine, for the mutex of the objects. (start)
  constexpr uint64_t kMaxDirectBytes = 4 * kDirectBytesPerTurn;
  int turns = 0;
  uint64_t copied = 0;
  bool more = true;
  while (more && copied < kMaxDirectBytes && turns++ < kMaxTurns) {
    Progress(writer);
    copied += kDirectBytesPerTurn - direct_left();
    SetWakeLevels();
    SettleServed();
    more = HasWork();
  }
  if (more) WakeEngine();
  if (pairs_ != nullptr) pairs_->Flush(writer);
  writer.Finish();
}

void CompletionQueue::BecomePolled() {
  control_.mode.store(CqControl::kPolled, std::memory_order_relaxed);
  WatchPairs(false);
  device_.engine().OnTickNeeded();
}

void CompletionQueue::BecomeUnpolled() {
  control_.mode.store(CqControl::kUnpolled, std::memory_order_relaxed);
  WatchPairs(true);
  SetWakeLevels();
  std::atomic_thread_fence(std::memory_order_seq_cst);
  // Published before its writer could see the new mode: nobody else will ring for it.
  if (HasWork()) WakeEngine();
}

void CompletionQueue::WatchPairs(bool watch) {
  if (pairs_ == nullptr) return;
  const bool unwatched = !pairs_->LetEngineWatch(watch);
  unwatched_.store(unwatched);
  if (unwatched) device_.engine().OnTickNeeded();
}

void CompletionQueue::Progress(CompletionWriter& writer) {
  if (overrun()) {
    // Nobody reads them any more.
    if (pairs_ != nullptr) pairs_->Close(nullptr, writer);
    return;
  }
  BeginTurn();
  if (!served_.empty()) SettleServed();
  if (pairs_ != nullptr) pairs_->Receive(writer);
  if (needs_attention()) TakeAttention(writer);
  // Our own sends first: there are only as many of them as we posted, whereas receives could keep a
  // caller with a short array from ever hearing of them.
  if (!active_.empty()) HarvestLanes(writer);
  if (!writer.full()) in_lanes_.ServeActive([&](InLane& lane) { return ServeLane(lane, writer); });
  if (pairs_ == nullptr) return;
  // A CQ that is armed may have been polled for the last time: nobody settles it later.
  if (unpolled() && !served_.empty()) SettleServed();
  // Likewise: what such a poll has read from a socket, but had no room to report, may be solicited.
  if (armed_ == Armed::kSolicited && writer.full()) WakeEngine();
  pairs_->Flush(writer);
}

void CompletionQueue::HarvestLanes(CompletionWriter& writer) {
  for (size_t i = 0; i < active_.size() && !writer.full(); ++i) {
    if (active_[i]->HasNews()) active_[i]->Harvest(writer);
  }
  constexpr uint32_t kTurnsPerSweep = 64;
  if (++turns_ % kTurnsPerSweep != 0 || writer.full()) return;
  std::erase_if(active_, [&](OutLane* lane) { return !lane->StaysActive(writer); });
}

bool CompletionQueue::ServeLane(InLane& lane, CompletionWriter& writer) {
  const bool watched = ServeRequests(lane, *this, writer);
  if (lane.progress_due()) {
    if (lane.ShouldPublishAtOnce(watched)) {
      lane.PublishProgress();
      lane.WakeInitiator();
    }
    if (!lane.listed()) {
      lane.set_listed(true);
      served_.push_back(&lane);
    }
  }
  return !writer.full();
}

// Publishes progress that is not urgent, at the next poll: by now the caller has answered what it
// was handed, and the fence costs nobody's latency.
void CompletionQueue::SettleServed() {
  for (InLane* lane : served_) {
    if (lane->progress_due()) lane->PublishProgress();
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (InLane* lane : served_) {
    lane->set_listed(false);
    lane->CheckWake();
  }
  served_.clear();
}

void CompletionQueue::SetWakeLevels() {
  for (OutLane* lane : active_) lane->SetWakeLevel();
}

bool CompletionQueue::HasWork() const {
  if (overrun()) return false;
  if (needs_attention() || in_lanes_.HasWork()) return true;
  for (const OutLane* lane : active_) {
    if (lane->HasNews()) return true;
  }
  return false;
}

void CompletionQueue::TakeAttention(CompletionWriter& writer) {
  TakeAttended(attended_scratch_);
  size_t first = 0;  // of those for which nothing was left to copy
  for (QueuePair* qp : attended_scratch_) {
    if (direct_left() != 0) ++first;
    qp->Attend(*this, writer);
  }
  // Their turn comes next.
  while (first < attended_scratch_.size() && !AttendFirst(*attended_scratch_[first])) ++first;
  attended_scratch_.clear();
}

void CompletionQueue::SweepOutLanes() {
  std::erase_if(active_, [](const OutLane* lane) { return lane->over(); });
  std::erase_if(out_lanes_, [](const auto& lane) { return lane->over(); });
}

void CompletionQueue::AddOutLane(std::unique_ptr<OutLane> lane) {
  SweepOutLanes();
  out_lanes_.push_back(std::move(lane));
}

OutLane* CompletionQueue::FindOutLane(const Peer& peer, uint64_t remote_cq) {
  for (auto& lane : out_lanes_) {
    if (&lane->peer() == &peer && lane->remote_cq() == remote_cq && !lane->failed()) {
      return lane.get();
    }
  }
  return nullptr;
}

absl::Status CompletionQueue::AddPair(std::shared_ptr<LanePair> pair, uint64_t lane_id,
                                      int engine_epoll) {
  if (pairs_ == nullptr) {
    pairs_ = std::make_unique<LanePairs>(*this, control_, engine_epoll, id() | kCqTag);
  }
  auto lane = std::make_unique<InLane>(
      pair->peer(), static_cast<uint32_t>(pair->remote_cq() % kMaxCompletionQueues), lane_id,
      pair->in_memory(), pair);
  if (!in_lanes_.Add(std::move(lane))) {
    return absl::ResourceExhaustedError("the CQ has too many lanes");
  }
  InLane* added = pair->in_lane();
  absl::Status status = pairs_->Add(std::move(pair));
  if (!status.ok()) added->Orphan();
  WatchPairs(unpolled());
  return status;
}

std::shared_ptr<LanePair> CompletionQueue::FindPair(const Peer& peer, uint64_t remote_cq) const {
  return pairs_ == nullptr ? nullptr : pairs_->Find(peer, remote_cq);
}

void CompletionQueue::LoseOutLane(const Peer& peer, uint64_t id) {
  CompletionWriter writer(*this);
  for (const std::unique_ptr<OutLane>& lane : out_lanes_) {
    if (&lane->peer() == &peer && lane->id() == id) lane->Lose(writer);
  }
  writer.Finish();
}

void CompletionQueue::CloseInLane(const Peer& peer, uint64_t id) {
  in_lanes_.ForEach([&](InLane& lane) {
    if (&lane.peer() != &peer || lane.id() != id) return;
    lane.Close();
    in_lanes_.Orphan(lane);
  });
  if (unpolled() && HasWork()) WakeEngine();
}

void CompletionQueue::LosePeer(const Peer& peer) {
  CompletionWriter writer(*this);
  if (pairs_ != nullptr) pairs_->Close(&peer, writer);
  for (const std::unique_ptr<OutLane>& lane : out_lanes_) {
    if (&lane->peer() == &peer) lane->Lose(writer);
  }
  in_lanes_.ForEach([&](InLane& lane) {
    if (&lane.peer() == &peer) in_lanes_.Orphan(lane);
  });
  writer.Finish();
  // The peer may have been killed before it woke us for what it had published.
  if (unpolled() && HasWork()) WakeEngine();
}

void CompletionQueue::SweepLanes() {
  in_lanes_.Sweep();
  SweepOutLanes();
}

std::vector<std::unique_ptr<OutLane>> CompletionQueue::CloseLanes() {
  CompletionWriter writer(*this);
  if (pairs_ != nullptr) pairs_->Close(nullptr, writer);
  in_lanes_.CloseAll();
  return std::exchange(out_lanes_, {});
}

}  // namespace verbena::internal::soft
