// Completions: the lower half of a CQ: its lock, its queue of completions, and whether it is armed.
//
// Queue pairs and lanes know no more of their CQ; the upper half, CompletionQueue, polls lanes.
// While nobody polls, completions wait in a queue of `cqe`; one more is an overrun, which breaks
// the CQ and its QPs, as on hardware.
//
// One lock per CQ guards its lanes, the send queues of the QPs that send through it, and the
// receive side of those that receive through it. The lock order is CQ, SRQ, leaf (events, timers,
// attention); of two CQs the one at the lower address goes first. A thread that holds one CQ's lock
// and needs another CQ to act uses Attend.

#ifndef VERBENA_TRANSPORT_SOFT_COMPLETIONS_H_
#define VERBENA_TRANSPORT_SOFT_COMPLETIONS_H_

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "verbena/transport/soft/copies.h"
#include "verbena/transport/soft/events.h"
#include "verbena/transport/soft/peer.h"
#include "verbena/transport/soft/state.h"

namespace verbena::internal::soft {

// A turn, which is a post or a poll, copies at most this much by itself in peers' memory, for all
// QPs of the CQ together. The rest is copied in later turns, between which the thread sees what has
// arrived.
inline constexpr uint32_t kDirectBytesPerTurn = 256u << 10;

class Completions;
class InLanes;
class OutLane;
class QueuePair;

// The ibv_comp_channel of the soft device.
class CompletionChannel : public ibv_comp_channel {
 public:
  explicit CompletionChannel(ibv_context* device) : ibv_comp_channel{} {
    context = device;
    fd = events.fd();
  }

  EventQueue events;
  std::atomic<int> users{0};
};

// Takes completions: into the caller's array while it has room, otherwise into the CQ's own queue.
// Lives within one locked section of the CQ; Finish ends it.
class CompletionWriter {
 public:
  explicit CompletionWriter(Completions& cq) : cq_(cq) {}
  CompletionWriter(Completions& cq, ibv_wc* out, int room) : cq_(cq), out_(out), room_(room) {}

  // True when a poll has what it asked for, and should leave the rest where it is.
  bool full() const { return out_ != nullptr && count_ == room_; }
  int count() const { return count_; }
  bool added() const { return added_; }

  // A zeroed completion to fill in, except for its status, which decides about the event.
  // `released`, for a send completion: becomes `value` once this one is polled.
  ibv_wc& Add(ibv_wc_status status, bool solicited, uint32_t* released = nullptr,
              uint32_t value = 0);
  // Raises the completion event if the CQ was armed for what was added.
  void Finish();

 private:
  Completions& cq_;
  ibv_wc* out_ = nullptr;
  int room_ = 0;
  int count_ = 0;
  bool added_ = false;
  bool added_solicited_ = false;
};

// Completions: as above. The SoftObjects own it, as a CompletionQueue.
class Completions : public ibv_cq {
 public:
  // `in_lanes` are those of the upper half.
  Completions(SoftState& device, uint64_t id, int entries, void* user_context,
              CompletionChannel* events, CqControl& control, InLanes& in_lanes);
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;

  SoftState& device() { return device_; }
  // Unique among all CQs that the device ever had; its low bits are the index of its CqControl.
  uint64_t id() const { return id_; }
  SpinLock& lock() { return lock_; }
  // Bytes copied: counted under the lock, read without it.
  CopyCounters& copied() { return copied_; }
  // QPs that send or receive through the CQ.
  std::atomic<int>& users() { return users_; }

  // False if more than `entries` completions wait.
  bool Resize(int entries);
  // From now on a completion that the queue has no room for is dropped.
  void IgnoreOverrun();

  // Has `qp` looked at under this CQ's lock, soon (QueuePair::Attend). Any thread, any locks.
  void Attend(QueuePair& qp);
  void CancelAttention(QueuePair& qp);

  // All below: under the lock.
  InLanes& in_lanes() { return in_lanes_; }
  // Polls look at the lane from here on, until nothing is under way in it.
  void AddActive(OutLane& lane) { active_.push_back(&lane); }
  bool unpolled() const {
    return control_.mode.load(std::memory_order_relaxed) != CqControl::kPolled;
  }
  void WakeEngine() { device_.WakeEngine(control_); }
  // A post or a poll begins.
  void BeginTurn() { direct_left_ = kDirectBytesPerTurn; }
  // Bytes that QPs may still copy by themselves in this turn.
  uint32_t direct_left() const { return direct_left_; }
  void TakeDirect(uint32_t bytes) { direct_left_ -= bytes; }
  bool overrun() const { return overrun_; }
  // QP `qpn` is going away: its completions stay, but free nothing. `drop`: they go too.
  void ForgetCompletions(uint32_t qpn, bool drop);

 protected:
  enum class Armed { kNo, kSolicited, kAny };

  ~Completions() = default;

  bool has_queued() const { return queue_head_ != queue_tail_; }
  int TakeQueued(int room, ibv_wc* out);
  bool needs_attention() const { return attention_.load(std::memory_order_relaxed); }
  // Moves the QPs that are to be looked at into `qps`, which is empty.
  void TakeAttended(std::vector<QueuePair*>& qps);
  // Has `qp` looked at first, and those before it last. False if it is not to be looked at.
  bool AttendFirst(const QueuePair& qp);

  SoftState& device_;
  CqControl& control_;
  Armed armed_ = Armed::kNo;
  std::vector<OutLane*> active_;  // those with something under way

 private:
  friend class CompletionWriter;
  struct Queued {
    ibv_wc wc;
    uint32_t* released = nullptr;
    uint32_t value = 0;
  };

  ibv_wc& Push(uint32_t* released, uint32_t value);
  [[gnu::cold, gnu::noinline]] void Overrun();

  const uint64_t id_;
  InLanes& in_lanes_;
  SpinLock lock_;
  std::atomic<int> users_{0};
  CopyCounters copied_;
  bool overrun_ = false;
  bool ignores_overrun_ = false;
  uint32_t direct_left_ = 0;
  std::unique_ptr<Queued[]> queue_;
  uint64_t queue_head_ = 0;
  uint64_t queue_tail_ = 0;
  ibv_wc discarded_;  // where a completion goes that overran the queue

  std::atomic<bool> attention_{false};
  SpinLock attention_lock_;
  std::vector<QueuePair*> attended_;
};

inline ibv_wc& CompletionWriter::Add(ibv_wc_status status, bool solicited, uint32_t* released,
                                     uint32_t value) {
  added_ = true;
  added_solicited_ |= solicited || status != IBV_WC_SUCCESS;
  ibv_wc* wc;
  if (count_ < room_ && cq_.queue_head_ == cq_.queue_tail_) {
    wc = &out_[count_++];
    if (released != nullptr) *released = value;
  } else {
    wc = &cq_.Push(released, value);
  }
  *wc = ibv_wc{};
  wc->status = status;
  return *wc;
}

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_COMPLETIONS_H_
