// Link: one RC queue pair between one executor here and one executor there, with its credits.
//
// Frames of the same turn are coalesced into as few SENDs as they fit in, and leave with one
// doorbell at the turn's end, behind the transfers that were started before them; an answer that
// nothing can join leaves at once (SendNowIfAlone()). Four things can be exhausted, and each means
// waiting, never an error: the peer's credits, send queue slots, send buffers, and (reserved when
// the link was made) CQ slots.
//
// Owned by its Endpoint; lives on that endpoint's executor thread. A FrameSink hears its frames and
// its end; after OnLinkDown() the pointer is dead to everybody else. Destroyed by the endpoint once
// the queue pair has drained.
//
//   char* body = link.Append(header, body_bytes);
//   if (body == nullptr) link.AwaitWritable(waiter);   // its OnWritable() appends
//   else message.SerializeWithCachedSizesToArray(body);

#ifndef VERBENA_TRANSPORT_LINK_LINK_H_
#define VERBENA_TRANSPORT_LINK_LINK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/connect/handshake_codec.h"
#include "verbena/transport/connect/qp_connector.h"
#include "verbena/transport/coro/bounded_vector.h"
#include "verbena/transport/coro/event.h"
#include "verbena/transport/coro/intrusive_list.h"
#include "verbena/transport/device/handles.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/link/credits.h"
#include "verbena/transport/link/lease.h"
#include "verbena/transport/link/lease_table.h"
#include "verbena/transport/link/one_sided_queue.h"
#include "verbena/transport/link/stats.h"
#include "verbena/transport/link/transfer.h"
#include "verbena/transport/link/wire_format.h"
#include "verbena/transport/link/wr_id.h"

namespace verbena {

class Endpoint;
class Link;
class WrChain;

// Who handles a link's frames: the client's or the server's half of RPC. Called on the executor's
// thread. Must outlive the link, that is, live until OnLinkDown().
class FrameSink {
 public:
  virtual ~FrameSink() = default;

  // One frame. `body` is valid during the call only. A failed Status says that the peer broke the
  // protocol; it closes the link. PING, PONG and RECALL never come here.
  virtual absl::Status OnFrame(Link& link, const FrameHeader& frame, const char* body) = 0;
  // The link is lost, once; every frame that was appended may or may not have reached the peer.
  virtual void OnLinkDown(Link& link, const absl::Status& reason) = 0;
  // True while the peer owes frames: then its silence is checked by PING.
  virtual bool ExpectsFrames() const = 0;
};

// A frame that could not be appended yet. Belongs to whoever waits; destroying it leaves the queue.
class SendWaiter : public IntrusiveNode<SendWaiter> {
 public:
  virtual ~SendWaiter() = default;
  // There is room for one frame with a body of body_bytes: appends it now. The waiter is off the
  // queue.
  virtual void OnWritable(Link& link) = 0;

  size_t body_bytes = 0;
  // The key that its SEND invalidates, as Append() takes it.
  uint32_t invalidated = 0;
};

// Somebody who waits until leases can be granted. Destroying it leaves the queue.
class LeaseWaiter : public IntrusiveNode<LeaseWaiter> {
 public:
  virtual ~LeaseWaiter() = default;
  // free_leases() is at least leases_wanted. The waiter is off the queue.
  virtual void OnLeasesFree() = 0;
  virtual void OnLinkLost() = 0;

  uint32_t leases_wanted = 0;
};

// Names a link for longer than it lives: a slot of its endpoint, and the slot's generation.
struct LinkKey {
  uint32_t slot = 0;
  uint32_t generation = 0;
};

enum class LinkState {
  kConnecting,
  kOpen,
  kDraining,  // the QP is in ERR; its flushes are awaited
  kClosed,    // the QP is gone
};

// Which side may send first. iWARP's connections (MPA, RFC 5044, 7.1.2) are begun by who connected:
// the other side holds its SENDs back until it has heard from it.
enum class FirstSend : uint8_t { kAny, kOurs, kPeers };

class Link final : private FlushHook {
 public:
  ~Link() override;

  // Appends a frame to the SENDs of this turn and returns where its body goes, `body_bytes` of it,
  // to be written before control returns to the executor. nullptr when something is exhausted, or
  // others wait already. The frame must fit: body_bytes ≤ max_body_bytes(). Only while open().
  // Its SEND also ends the peer's lease whose key is `invalidated`, where the peer
  // reports_invalidation(): for the frame after which nothing is written there. 0 for none.
  char* Append(const FrameHeader& header, size_t body_bytes, uint32_t invalidated = 0);

  // For who has appended the answer to a frame, inside OnFrame(), and written its body: posts it
  // now if that frame is all that this turn brought, so that it travels while the call is cleaned
  // up. Else it leaves at the turn's end, with what joins it till then. Never closes the link: what
  // the device refuses does so at the turn's end.
  void SendNowIfAlone() {
    if (alone_) SendNow();
  }

  // Queues `waiter` behind those that wait already. Only while open().
  void AwaitWritable(SendWaiter& waiter);

  // Starts to move `local` to (kWrite) or from (kRead) `remote`, which is as long; not empty, and
  // registered with this link's device. Its listener, who may be null, hears how it ends; it leaves
  // at the turn's end, or when the send queue has room. Only while open(); READs only where
  // max_reads() is not 0.
  Transfer& StartTransfer(Transfer::Direction direction, absl::Span<const BufferView> local,
                          const RemoteRange& remote, TransferListener* listener);
  // For a starter that has no use for it any more: no more of it is posted, and its listener hears
  // nothing. What is appended from now on arrives behind all that it ever moves.
  void StopTransfer(Transfer& transfer) { one_sided_.Stop(transfer); }
  // For a starter that waits for the end of what is in the send queue already: no more of it is
  // posted. False when nothing is in it: then the transfer is gone, and its listener hears nothing.
  bool CutTransfer(Transfer& transfer) { return one_sided_.Cut(transfer); }
  uint32_t max_reads() const { return one_sided_.max_reads(); }
  // The same for an atomic operation on `remote`, 8 bytes at a multiple of 8, whose listener hears
  // what was there. Where has_atomics() and max_reads() is not 0.
  Transfer& StartAtomic(const AtomicOperation& operation, const RemoteRange& remote,
                        TransferListener* listener);
  bool has_atomics() const { return one_sided_.has_atomics(); }

  // Lends `view`, which is not empty, to the peer (lease.h). What is appended from now on may tell
  // of it. nullptr when nothing is free_leases(); errors as LeaseTable::Grant(). Only while open().
  absl::StatusOr<Lease*> Grant(const BufferView& view, LeaseAccess access,
                               LeaseUse use = LeaseUse::kCall);
  // The peer has said that it is done with it; `listener` hears when that is proven. Only while
  // open().
  void EndLease(Lease& lease, LeaseListener* listener);
  // Nobody waits for the peer's word any more; it is still told of by EndLease().
  void AbandonLease(Lease& lease);
  uint32_t free_leases() const;
  void AwaitLeases(LeaseWaiter& waiter);
  const LeaseTable& leases() const { return leases_; }

  // What the handshake agreed on.
  bool reports_invalidation() const { return (features_ & kFeatureInvalidation) != 0; }
  bool checks_payloads() const { return (features_ & kFeatureChecksum) != 0; }
  bool grants_landings() const { return (features_ & kFeatureGrants) != 0; }

  // Ends the link: OnLinkDown() is called before this returns, teardown goes on by itself. Harmless
  // when it has ended already.
  void Close(const absl::Status& reason);

  bool open() const { return state_ == LinkState::kOpen; }
  LinkState state() const { return state_; }
  // The largest body that one frame can carry to this peer.
  size_t max_body_bytes() const { return MaxBodyBytes(send_bytes_); }
  const std::string& peer() const { return peer_; }
  const LinkStats& stats() const { return stats_; }
  // Also valid when the queue pair is gone.
  uint32_t qpn() const { return qpn_; }
  // What tells this end of the link from every other, and how the peer's is told: its queue pair's
  // number, which comes back late, and the packet number that it began with, which is random. Once
  // open().
  uint64_t identity() const { return identity_; }
  uint64_t peer_identity() const { return peer_identity_; }
  Endpoint& endpoint() const { return endpoint_; }
  LinkKey key() const { return key_; }
  uint32_t send_credits() const { return credits_.available(); }

 private:
  friend class Endpoint;

  // A SEND that is being filled, or waits for the flush.
  struct PendingSend {
    uint32_t buffer;
    uint32_t bytes;
    uint16_t frames;
    bool spends_reserve;
    uint32_t invalidated;  // 0: none
  };

  Link(Endpoint& endpoint, LinkKey key, QpHandle qp, FrameSink& sink);

  // Called by the endpoint.
  // `invalidated` is the key that the SEND ended, 0 for none.
  void OnSend(const char* bytes, size_t size, uint32_t invalidated);
  void OnSendCompletion(const ibv_wc& completion, uint16_t position);
  // Sends a PING, or closes a link whose peer has been silent. `now` ticks every ping_interval / 2.
  void CheckLiveness(TimePoint now);
  bool IsQuieterThan(const Link& other) const;
  // Asks the peer for credits that it was lent. True when it was asked.
  bool Recall();
  void SetIdentity(uint32_t psn);
  void MarkOpen(const LinkParameters& parameters, uint32_t max_reads, const std::string& peer,
                FirstSend first_send);

  bool OpenSend(bool spends_reserve);
  bool FitsPending(size_t body_bytes, uint32_t invalidated) const;
  void Flush() override;
  void FinishMoves();
  void SendNow();
  // What a flush posts: bindings and invalidations, then WRITEs and READs, then SENDs, with one
  // doorbell unless one of these is more than a chain.
  void PrepareLeases(WrChain& ready);
  void PrepareTransfers(WrChain& ready);
  // Returns what the device answered: 0, or an errno. Inlined where it is called, since a call of
  // it is a call more for each RPC.
  [[gnu::always_inline]] inline int PostPending(WrChain& ready);
  // False when the link is closed by it.
  bool Ring(WrChain& ready);
  void PrepareHeader(const PendingSend& send);
  bool ReleasePosition(uint16_t position);
  uint32_t SlotsForTransfers() const;
  void WakeWriters();
  void WakeLeaseWaiters();
  void ScheduleFlush();
  // The counters of a SEND. A failed Status closes the link.
  absl::Status OnHeader(const SendHeader& header);
  // What seldom happens is made out of line, so that what always does stays small.
  [[gnu::cold, gnu::noinline]] absl::Status OnControlFrame(const FrameHeader& frame);
  [[gnu::cold, gnu::noinline]] void PostFailed(int error);
  [[gnu::cold, gnu::noinline]] void Misread(WireFault fault, size_t bytes);
  [[gnu::cold, gnu::noinline]] void CompletedUnposted(uint16_t position);
  void AppendControl(FrameKind kind);
  uint32_t InFlight() const { return posted_ - completed_; }
  // Whether a flush would post bindings, WRITEs, READs, or wake who waits for leases.
  bool moves() const {
    return leases_.work_due() || one_sided_.waiting() || !lease_waiters_.empty();
  }
  bool SlotsLeft() const {
    return InFlight() + pending_.size() + leases_.bindings_due() + kDrainMarkers < slot_count_;
  }
  uint32_t& SlotAt(uint32_t position) { return slots_[position & (slots_.size() - 1)]; }
  WrId WrIdOf(uint32_t position) const {
    return {WrId::Kind::kSend, static_cast<uint16_t>(position & WrId::kPositionMask),
            key_.generation, key_.slot};
  }
  // Once the queue pair is in ERR: a WR whose flush tells that all before it have ended.
  void PostDrainMarker();

  Endpoint& endpoint_;
  const LinkKey key_;
  FrameSink* sink_;
  std::shared_ptr<QpConnection> connection_;  // null without a connection manager; outlives qp_
  QpHandle qp_;
  const uint32_t qpn_;
  LinkState state_ = LinkState::kConnecting;
  std::string peer_;
  std::unique_ptr<MessageStream> stream_;  // open as long as the link is; null until it is watched
  Event unwatched_;                        // set when nobody reads stream_ any more

  SendCredits credits_{0};
  ReceiveGrants grants_;
  uint32_t send_bytes_ = 0;
  const uint32_t max_inline_bytes_;

  // WRs that the send queue holds.
  const uint32_t slot_count_;
  // SENDs of this turn; the last one may still take frames.
  BoundedVector<PendingSend> pending_;
  // The buffer that each posted WR holds, by send queue position modulo the size, a power of two;
  // SendBuffers::kNone for an inline one.
  std::vector<uint32_t> slots_;
  uint32_t posted_ = 0;     // WRs posted, modulo 2^32
  uint32_t completed_ = 0;  // WRs known to have ended
  uint32_t since_signal_ = 0;
  OneSidedQueue one_sided_;
  LeaseTable leases_;
  uint64_t features_ = 0;
  uint64_t identity_ = 0;
  uint64_t peer_identity_ = 0;
  IntrusiveList<SendWaiter> writers_;
  IntrusiveList<LeaseWaiter> lease_waiters_;
  bool flush_scheduled_ = false;
  bool pong_due_ = false;
  bool ping_due_ = false;
  bool recall_due_ = false;
  bool serving_writer_ = false;
  bool held_back_ = false;  // until the peer has sent something
  bool alone_ = false;      // the frame that the sink handles is all that this turn brought
  int refusal_ = 0;         // the errno of a post that could not close the link
  // A SEND came since the last liveness check. The hot path reads no clock: that costs as much as
  // posting a WR.
  bool heard_ = false;
  TimePoint last_heard_{};  // to within half a ping_interval
  uint32_t silent_checks_ = 0;
  LinkStats stats_;

  // Teardown: set when every posted WR has completed.
  Event drained_;
  Event last_wqe_;
};

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_LINK_LINK_H_
