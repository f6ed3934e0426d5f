// CompletionQueue: the ibv_cq of the soft device, and the heart of its data path.
//
// Polling is what makes messages move: it serves the requests that wait in this CQ's in-lanes,
// harvests the progress of its out-lanes, and hands the completions straight to the caller. While
// nobody polls (the CQ is armed, or its owner is busy elsewhere) the engine does the same into a
// queue of `cqe` completions; one more is an overrun, which breaks the CQ and its QPs, as on
// hardware.
//
// One lock per CQ guards its lanes, the send queues of the QPs that send through it, and the
// receive side of those that receive through it. The lock order is CQ, SRQ, leaf (events, timers,
// attention); of two CQs the one at the lower address goes first. A thread that holds one CQ's lock
// and needs another CQ to act uses Attend.

#ifndef VERBENA_TRANSPORT_SOFT_COMPLETION_QUEUE_H_
#define VERBENA_TRANSPORT_SOFT_COMPLETION_QUEUE_H_

#include <infiniband/verbs.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "verbena/transport/soft/address.h"
#include "verbena/transport/soft/completions.h"
#include "verbena/transport/soft/copies.h"
#include "verbena/transport/soft/copies_under_way.h"
#include "verbena/transport/soft/in_lanes.h"
#include "verbena/transport/soft/lane.h"

namespace verbena::internal::soft {

class CompletionQueue;
class LanePair;
class LanePairs;
class QueuePair;
class SoftState;

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
  explicit CompletionWriter(CompletionQueue& cq) : cq_(cq) {}
  CompletionWriter(CompletionQueue& cq, ibv_wc* out, int room) : cq_(cq), out_(out), room_(room) {}

  // True when a poll has what it asked for, and should leave the rest where it is.
  bool full() const { return out_ != nullptr && count_ == room_; }
  int count() const { return count_; }

  // A zeroed completion to fill in, except for its status, which decides about the event. `qp`, for
  // a send completion: its SQ slots before `released` are free once this one is polled.
  ibv_wc& Add(ibv_wc_status status, bool solicited, QueuePair* qp = nullptr, uint32_t released = 0);
  // Raises the completion event if the CQ was armed for what was added.
  void Finish();

 private:
  CompletionQueue& cq_;
  ibv_wc* out_ = nullptr;
  int room_ = 0;
  int count_ = 0;
  bool added_ = false;
  bool added_solicited_ = false;
};

class CompletionQueue : public ibv_cq {
 public:
  CompletionQueue(SoftState& device, uint32_t index, uint64_t id, int entries, void* user_context,
                  CompletionChannel* events, CqControl& control);
  ~CompletionQueue();

  int Poll(int room, ibv_wc* out);
  int Arm(bool solicited_only);

  // Engine only. Serve acts if the doorbell rang; Tick takes over a CQ that was not polled since
  // the last Tick. Both return true when they did something. NeedsTick is true while the owner
  // polls: without a Tick, nobody would notice that it stopped.
  bool Serve();
  bool Tick();
  // The engine's epoll says that something came over a TCP connection of this CQ.
  void ServePairs();
  bool NeedsTick() const { return control_.mode.load() == CqControl::kPolled; }

  // False if more than `entries` completions wait.
  bool Resize(int entries);

  // Has `qp` looked at under this CQ's lock, soon (QueuePair::Attend). Any thread, any locks.
  void Attend(QueuePair& qp);
  void CancelAttention(QueuePair& qp);

  SpinLock& lock() { return lock_; }
  SoftState& device() { return device_; }
  // Unique among all CQs that the device ever had; its low bits are the index of its CqControl.
  uint64_t id() const { return id_; }
  std::atomic<int>& users() { return users_; }
  // Bytes copied: counted under the lock, read without it.
  CopyCounters& copied() { return copied_; }

  // All below: under the lock. The lanes of the CQ:
  // Frees first those that failed and that no QP is left on.
  void AddOutLane(std::unique_ptr<OutLane> lane);
  OutLane* FindOutLane(const Peer& peer, uint64_t remote_cq);
  // False when the CQ has as many in-lanes as it may.
  bool AddInLane(std::unique_ptr<InLane> lane) { return in_lanes_.Add(std::move(lane)); }
  // Takes over the connection, and its in-lane. `engine_epoll` watches it while nobody polls.
  absl::Status AddPair(std::shared_ptr<LanePair> pair, uint64_t lane_id, int engine_epoll);
  // Null when there is no TCP connection to that CQ.
  std::shared_ptr<LanePair> FindPair(const Peer& peer, uint64_t remote_cq) const;
  // The target refused the lane, or the initiator writes nothing more into it.
  void LoseOutLane(const Peer& peer, uint64_t id);
  void OrphanInLane(const Peer& peer, uint64_t id);
  // The peer is no more, and all its lanes end.
  void LosePeer(const Peer& peer);
  // Frees the memory of lanes that are over.
  void SweepLanes();
  // Ends all lanes. Returns the out-lanes, whose targets are to hear of it.
  std::vector<std::unique_ptr<OutLane>> CloseLanes();
  // Adds the copies that are under way into our memory, by `key` or, if that is 0, by any: those of
  // the device at `peer`, or, if that is null, of all. The caller has passed a full fence since it
  // withdrew the permission.
  void AddCopiesUnderWay(const DeviceAddress* peer, uint32_t key,
                         std::vector<CopyUnderWay>& copies);

  void AddActive(OutLane& lane) { active_.push_back(&lane); }
  bool unpolled() const {
    return control_.mode.load(std::memory_order_relaxed) != CqControl::kPolled;
  }
  // `qp` is going away: its completions stay, but free nothing. `drop`: they go too.
  void ForgetCompletions(QueuePair& qp, bool drop);
  bool overrun() const { return overrun_; }
  void WakeEngine();

 private:
  friend class CompletionWriter;
  enum class Armed { kNo, kSolicited, kAny };
  struct Queued {
    ibv_wc wc;
    QueuePair* qp = nullptr;
    uint32_t released = 0;
  };

  void SweepOutLanes();
  int TakeQueued(int room, ibv_wc* out);
  void Progress(CompletionWriter& writer);
  void HarvestLanes(CompletionWriter& writer);
  bool ServeLane(InLane& lane, CompletionWriter& writer);
  void SettleServed();
  void TakeAttention(CompletionWriter& writer);
  bool HasWork() const;
  void SetWakeLevels();
  // Moves everything that waits into the queue, as the engine does.
  void Drive();
  void BecomePolled();
  void BecomeUnpolled();
  void Overrun();
  ibv_wc& Push(QueuePair* qp, uint32_t released);

  SoftState& device_;
  const uint64_t id_;
  CqControl& control_;
  SpinLock lock_;
  std::atomic<int> users_{0};
  std::atomic<uint64_t> polls_{0};
  uint64_t polls_at_tick_ = 0;
  Armed armed_ = Armed::kNo;
  bool overrun_ = false;
  uint32_t turns_ = 0;
  CopyCounters copied_;
  InLanes in_lanes_;
  // Lanes that were served and whose progress is not settled yet (SettleServed).
  std::vector<InLane*> served_;
  std::vector<std::unique_ptr<OutLane>> out_lanes_;
  std::vector<OutLane*> active_;      // those with something under way
  std::unique_ptr<LanePairs> pairs_;  // none until the first TCP connection
  std::unique_ptr<Queued[]> queue_;
  uint64_t queue_head_ = 0;
  uint64_t queue_tail_ = 0;
  ibv_wc discarded_;  // where a completion goes that overran the queue

  std::atomic<bool> attention_{false};
  SpinLock attention_lock_;
  std::vector<QueuePair*> attended_;
  std::vector<QueuePair*> attended_scratch_;  // under the CQ's lock; keeps its memory
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_COMPLETION_QUEUE_H_
