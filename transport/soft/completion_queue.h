// CompletionQueue: the ibv_cq of the soft device, and the heart of its data path.
//
// Polling is what makes messages move: it serves the requests that wait in this CQ's in-lanes,
// harvests the progress of its out-lanes, and hands the completions straight to the caller. While
// nobody polls (the CQ is armed, or its owner is busy elsewhere) the engine does the same into the
// queue of Completions, the lower half of the CQ, which also says what the lock guards.
//
// Owned by the SoftObjects. InLanes bounds its in-lanes; its out-lanes are as many as the CQs that
// its QPs were connected to.

#ifndef VERBENA_TRANSPORT_SOFT_COMPLETION_QUEUE_H_
#define VERBENA_TRANSPORT_SOFT_COMPLETION_QUEUE_H_

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "verbena/transport/soft/completions.h"
#include "verbena/transport/soft/in_lanes.h"
#include "verbena/transport/soft/lane.h"
#include "verbena/transport/soft/peer.h"
#include "verbena/transport/soft/state.h"

namespace verbena::internal::soft {

class LanePair;
class LanePairs;

class CompletionQueue final : public Completions {
 public:
  CompletionQueue(SoftState& device, uint64_t id, int entries, void* user_context,
                  CompletionChannel* events, CqControl& control);
  ~CompletionQueue();

  int Poll(int room, ibv_wc* out);
  int Arm(bool solicited_only);

  // Engine only. Serve acts if the doorbell rang; Tick takes over a CQ that was not polled since
  // the last Tick. Both return true when they did something. NeedsTick is true while the owner
  // polls, since nobody else would notice that it stops, and while the engine cannot watch the TCP
  // connections, at which a Tick then looks itself.
  bool Serve();
  bool Tick();
  // The engine's epoll says that something came over a TCP connection of this CQ.
  void ServePairs();
  bool NeedsTick() const {
    return control_.mode.load() == CqControl::kPolled || unwatched_.load(std::memory_order_relaxed);
  }

  // All below: under the lock. The lanes of the CQ:
  // Frees first those that are over.
  void AddOutLane(std::unique_ptr<OutLane> lane);
  OutLane* FindOutLane(const Peer& peer, uint64_t remote_cq);
  // False when the CQ has as many in-lanes as it may.
  bool AddInLane(std::unique_ptr<InLane> lane) { return in_lanes_.Add(std::move(lane)); }
  // Takes over the connection, and its in-lane. `engine_epoll` watches it while nobody polls.
  absl::Status AddPair(std::shared_ptr<LanePair> pair, uint64_t lane_id, int engine_epoll);
  // Null when there is no TCP connection to that CQ.
  std::shared_ptr<LanePair> FindPair(const Peer& peer, uint64_t remote_cq) const;
  // The target refused the lane, or the initiator has ended it.
  void LoseOutLane(const Peer& peer, uint64_t id);
  void CloseInLane(const Peer& peer, uint64_t id);
  // The peer is no more, and all its lanes end.
  void LosePeer(const Peer& peer);
  // Frees the memory of lanes that are over.
  void SweepLanes();
  // Ends all lanes. Returns the out-lanes, whose targets are to hear of it.
  std::vector<std::unique_ptr<OutLane>> CloseLanes();

 private:
  void SweepOutLanes();
  void Progress(CompletionWriter& writer);
  void HarvestLanes(CompletionWriter& writer);
  bool ServeLane(InLane& lane, CompletionWriter& writer);
  void SettleServed();
  void TakeAttention(CompletionWriter& writer);
  bool HasWork() const;
  void SetWakeLevels();
  bool TickUnwatched();
  // Moves everything that waits into the queue, as the engine does.
  void Drive();
  void BecomePolled();
  void BecomeUnpolled();
  // Has the engine watch the TCP connections, if there are any.
  void WatchPairs(bool watch);

  std::atomic<uint64_t> polls_{0};
  uint64_t polls_at_tick_ = 0;
  uint32_t turns_ = 0;
  InLanes in_lanes_;
  // Lanes that were served and whose progress is not settled yet (SettleServed).
  std::vector<InLane*> served_;
  std::vector<std::unique_ptr<OutLane>> out_lanes_;
  std::unique_ptr<LanePairs> pairs_;          // none until the first TCP connection
  std::atomic<bool> unwatched_{false};        // they are to be watched, and cannot be
  std::vector<QueuePair*> attended_scratch_;  // keeps its memory
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_COMPLETION_QUEUE_H_
