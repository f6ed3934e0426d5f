// Link: one RC queue pair between one executor here and one executor there, with its credits.
//
// Frames are coalesced into SENDs. The frames of a turn leave with one doorbell at the turn's end.
// If they are many, groups of them leave while the turn goes on, so that the peer works meanwhile
// (EarlyFrames()). An answer that nothing can join leaves at once (SendNowIfAlone()). Transfers
// leave slice by slice behind the frames, few bytes at a time (BulkLimits): a SEND waits only for
// the slices that are already in the send queue. Four things can be used up: the peer's credits,
// send queue slots, send buffers, and outstanding READs and atomics. The link then waits, which is
// never an error. A fifth, CQ slots, is reserved when the link is made.
//
// Owned by its Endpoint; lives on that endpoint's executor thread. A LinkListener hears its frames
// and its end; after OnLinkDown() the pointer is dead to everybody else. Destroyed by the endpoint
// once the queue pair has drained.
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
#include "verbena/transport/connect/handshake_codec.h"
#include "verbena/transport/connect/qp_connector.h"
#include "verbena/transport/coro/event.h"
#include "verbena/transport/coro/intrusive_list.h"
#include "verbena/transport/device/handles.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/link/control_frames.h"
#include "verbena/transport/link/credits.h"
#include "verbena/transport/link/link_key.h"
#include "verbena/transport/link/link_terms.h"
#include "verbena/transport/link/liveness.h"
#include "verbena/transport/link/peer_source.h"
#include "verbena/transport/link/pending_sends.h"
#include "verbena/transport/link/send_slots.h"
#include "verbena/transport/link/stats.h"
#include "verbena/transport/link/watched_stream.h"
#include "verbena/transport/link/wire_format.h"
#include "verbena/transport/log/mutant.h"
#include "verbena/transport/onesided/lease.h"
#include "verbena/transport/onesided/lease_table.h"
#include "verbena/transport/onesided/transfer.h"
#include "verbena/transport/onesided/transfer_queue.h"

namespace verbena {

class Endpoint;
class Link;
class WrChain;

// The RPC layer's side of a link: receives its frames and learns of its end. Called on the
// executor's thread. Must outlive the link, that is, live until OnLinkDown().
class LinkListener {
 public:
  virtual ~LinkListener() = default;

  // One frame. `body` is valid during the call only. A failed Status says that the peer broke the
  // protocol; it closes the link. PING, PONG and RECALL never come here.
  virtual absl::Status OnFrame(Link& link, const FrameHeader& frame, const char* body) = 0;
  // The link is lost, once; every frame that was appended may or may not have reached the peer.
  virtual void OnLinkDown(Link& link, const absl::Status& reason) = 0;
  // True while the peer owes frames: then its silence is checked by PING.
  virtual bool ExpectsFrames() const = 0;
  // True while something needs the link though nothing travels on it: then it is not idle.
  virtual bool InUse(const Link&) const { return ExpectsFrames(); }
  // Nothing has travelled for LinkLimits::idle_timeout, and the link is not InUse(). Returns true
  // if it is to be closed at once; false if the listener has asked the peer to close it. Called
  // again after as long a time if it stays idle.
  virtual bool OnIdle(Link&) { return true; }
  // Calls of this side that the peer has not answered, by which frames that leave while a turn goes
  // on are grouped. 0 on the side that answers.
  virtual uint32_t calls_in_flight() const { return 0; }
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

// Somebody who waits until leases can be opened. Destroying it leaves the queue.
class LeaseWaiter : public IntrusiveNode<LeaseWaiter> {
 public:
  virtual ~LeaseWaiter() = default;
  // free_leases() is at least leases_wanted. The waiter is off the queue.
  virtual void OnLeasesFree() = 0;
  virtual void OnLinkLost() = 0;

  uint32_t leases_wanted = 0;
};

// A link's places in lists of its endpoint, beside RoomWaiter.
class WatchedLink : public IntrusiveNode<WatchedLink> {};  // the next liveness check looks at it
class BorrowingLink : public IntrusiveNode<BorrowingLink> {};  // its peer may be asked for credits

enum class LinkState {
  kConnecting,
  kOpen,
  kDraining,  // the QP is in ERR; its flushes are awaited
  kClosed,    // the QP is gone
};

// Which side may send first. On iWARP (MPA, RFC 5044, 7.1.2) the side that connected begins: the
// other side holds its SENDs back until it has heard from it. A server whose client has not said
// Ready yet cannot send either: its queue pair is in RTR until AllowSends().
enum class FirstSend : uint8_t { kAny, kOurs, kPeers, kAfterReady };

class Link final : private FlushHook,
                   private RoomWaiter,
                   private WatchedLink,
                   private BorrowingLink {
 public:
  ~Link() override;

  // Appends a frame to the SENDs of this turn, and returns the place of its body, `body_bytes`
  // long. Write the body before the next Append() and before control returns to the executor:
  // earlier frames may leave then. Returns nullptr if something is exhausted, or if others wait
  // already. Preconditions: open(), and body_bytes ≤ max_body_bytes(). `invalidated` is the key of
  // a peer's lease that the SEND also ends, if the peer reports_invalidation(); 0 for none. Pass it
  // with the frame after which nothing is written to that lease.
  char* Append(const FrameHeader& header, size_t body_bytes, uint32_t invalidated = 0);

  // Call this inside OnFrame(), after appending the answer to a frame and writing its body. Posts
  // the answer now if that frame is all that this turn brought, so that it travels while the call
  // is cleaned up. Otherwise the answer leaves at the turn's end, with whatever joins it till then.
  // Never closes the link: if the device refuses, the turn's end does.
  void SendNowIfAlone() {
    if (alone_) SendNow();
  }

  // Queues `waiter` behind those that wait already. Precondition: open().
  void AwaitWritable(SendWaiter& waiter);

  // Starts to move `local` to (kWrite) or from (kRead) `remote`, which is as long. `local` is not
  // empty, and is registered with this link's device. The listener, who may be null, hears how the
  // transfer ends. The transfer leaves in slices, from the turn's end on. Preconditions: open(),
  // and for READs, max_reads() is not 0.
  Transfer& StartTransfer(Transfer::Direction direction, absl::Span<const BufferView> local,
                          const RemoteRange& remote, TransferListener* listener);
  // For a starter that has no more use for the transfer: posts no more of it, and its listener
  // hears nothing. Frames that are appended from now on arrive after the last byte that it moves.
  void AbandonTransfer(Transfer& transfer) { transfers_.Abandon(transfer); }
  // For a starter that waits for the part in the send queue: posts no more of the transfer. False
  // if no part is there: then the transfer is gone, and its listener hears nothing.
  bool CancelTransfer(Transfer& transfer) { return transfers_.Cancel(transfer); }
  uint32_t max_reads() const { return transfers_.max_reads(); }
  // The same for an atomic operation on `remote`, 8 bytes at a multiple of 8. Its listener hears
  // the former value. Precondition: has_atomics(), and max_reads() is not 0.
  Transfer& StartAtomic(const AtomicOperation& operation, const RemoteRange& remote,
                        TransferListener* listener);
  bool has_atomics() const { return transfers_.has_atomics(); }

  // Leases `view`, which is not empty, to the peer (lease.h). Frames that are appended from now on
  // may tell the peer of the lease. nullptr if free_leases() is 0; errors as LeaseTable::Open().
  // Precondition: open().
  absl::StatusOr<Lease*> OpenLease(const BufferView& view, LeaseAccess access,
                                   LeaseUse use = LeaseUse::kCall);
  // The peer has said that it is done with the lease; `listener` hears when that is proven.
  // Precondition: open().
  void EndLease(Lease& lease, LeaseListener* listener);
  // Nobody waits for the peer's word any more. EndLease() is still called when it comes.
  void AbandonLease(Lease& lease);
  uint32_t free_leases() const;
  void AwaitLeases(LeaseWaiter& waiter);
  const LeaseTable& leases() const { return leases_; }

  // The features that the handshake agreed on.
  bool reports_invalidation() const { return (terms_.features & kFeatureInvalidation) != 0; }
  bool checks_payloads() const { return (terms_.features & kFeatureChecksum) != 0; }
  bool has_grants() const { return (terms_.features & kFeatureGrants) != 0; }

  // Ends the link. OnLinkDown() is called before this returns; teardown goes on by itself. Does
  // nothing if the link has already ended.
  void Close(const absl::Status& reason);

  bool open() const { return state_ == LinkState::kOpen; }
  LinkState state() const { return state_; }
  // The largest body that one frame can carry to this peer.
  size_t max_body_bytes() const { return MaxBodyBytes(terms_.send_bytes); }
  const std::string& peer() const { return terms_.peer; }
  const LinkStats& stats() const { return stats_; }
  // Also valid when the queue pair is gone.
  uint32_t qpn() const { return qpn_; }
  // Numbers that tell this end of the link, and the peer's end, from every other. Valid once
  // open().
  uint64_t identity() const { return terms_.identity; }
  uint64_t peer_identity() const { return terms_.peer_identity; }
  Endpoint& endpoint() const { return endpoint_; }
  LinkKey key() const { return slots_.key(); }
  uint32_t send_credits() const { return credits_.available(); }
  // The most receives of ours that the queue pair may have taken without our having seen it.
  uint32_t receives_held() const { return issued_.outstanding() + kReserveCredits; }
  // Whether SENDs can leave, now or as soon as there is room. Only on a link that is open().
  bool may_send() const { return open() && held_back_ != HeldBack::kUntilReady; }
  // Asks the peer to say something. Only while open().
  void Ping() {
    control_.ping = true;
    ScheduleFlush();
  }
  // Whether a PING is held up here because other links hold all send buffers. If so, the peer's
  // silence is not its fault.
  bool ping_is_held_up() const { return control_.ping && OthersHoldBuffers(); }

 private:
  friend class Endpoint;
  friend class SendRoom;

  // Whether SENDs are held back on this side, and until when. With kUntilReady frames wait as well,
  // and take no send buffers.
  enum class HeldBack : uint8_t { kNo, kUntilHeard, kUntilReady };

  Link(Endpoint& endpoint, LinkKey key, QpHandle qp, LinkListener& listener, PeerSource& source);

  // Called by the endpoint.
  // `invalidated` is the key that the SEND ended, 0 for none.
  void OnSend(const char* bytes, size_t size, uint32_t invalidated);
  void OnSendCompletion(const ibv_wc& completion, uint16_t position);
  // Closes it, or lets its listener do so, if it has been idle for too long.
  void CheckIdle(TimePoint now);
  // Sends a PING, or closes a link whose peer has been silent, or has kept credits that it was
  // asked for. `now` ticks every ping_interval / 2. False if nothing is left to be watched.
  bool CheckLiveness(TimePoint now);
  absl::Status CheckRecall();
  // Whether the peer acknowledges what it is sent. A failed Status closes the link.
  absl::Status CheckAcknowledged();
  // Whether one-sided operations on the peer's memory make progress. A failed Status closes the
  // link.
  absl::Status CheckTransfers();
  // Asks the peer to return the credits beyond its initial window.
  void Recall();
  void SetIdentity(uint32_t psn);
  void MarkOpen(const LinkParameters& parameters, uint32_t max_reads, const std::string& peer,
                FirstSend first_send);
  // The queue pair of a link that was opened with kAfterReady has reached RTS.
  void AllowSends();

  bool OpenSend(SendUse use = SendUse::kFrames);
  uint32_t TakeBuffer(SendUse use);
  // Writes a frame without its body behind those of the last pending SEND, and returns where the
  // body goes. The caller has seen that it fits.
  char* Place(const FrameHeader& header, size_t body_bytes, uint32_t invalidated);
  bool FitsPending(size_t body_bytes, uint32_t invalidated) const;
  void Flush() override;
  void FinishMoves();
  void SendNow();
  // Sending while the turn goes on.
  uint32_t EarlyFrames() const;
  // True if as many frames are pending as EarlyFrames() wants now. Otherwise sets that number as
  // the next at which to ask again.
  bool IsGroup();
  [[gnu::noinline]] bool PostWritten();
  [[gnu::noinline]] void PostEarly();
  bool MayPostEarly();
  // A flush posts, in this order: bindings and invalidations, the SENDs that wait, a slice of
  // WRITEs and READs, and the SENDs that follow a payload of that slice. One doorbell rings for
  // all. If SENDs wait ahead of a slice, they take a doorbell of their own, and so does each
  // further chain of leases or transfers.
  void PrepareLeases(WrChain& ready);
  void PrepareTransfers(WrChain& ready);
  // Posts the SENDs that wait. False if that closes the link.
  [[gnu::noinline]] bool PostAhead(WrChain& ready);
  // Returns what the device answered: 0, or an errno. The last `kept` of the pending SENDs stay:
  // they leave later in this turn. Always inlined, which saves a call for each RPC.
  [[gnu::always_inline]] inline int PostPending(WrChain& ready, size_t kept = 0);
  // False if that closes the link.
  bool Ring(WrChain& ready);
  void PrepareHeader(const PendingSend& send);
  // Frees the slots up to a completion's position. False if no WR there is in flight.
  bool FreeSlots(uint16_t position);
  uint32_t SlotsForTransfers() const;
  void WakeWriters();
  // Call when this link has something to send, but lacks a send queue slot or a send buffer.
  [[gnu::cold, gnu::noinline]] void LackRoom();
  // There may be a buffer again.
  void OnRoom();
  // Whether this link waits for a buffer and holds none itself. False for one that lacks slots: it
  // has used them up itself.
  bool OthersHoldBuffers() const {
    return lacks_room_ && held_ == 0 && (SlotsLeft() || VERBENA_MUTANT(kFullQueueExcusesSilence));
  }
  // So many buffers that it held are free.
  void CountReleased(uint32_t count) {
    held_ -= count;
    source_.held -= count;
  }
  void WakeLeaseWaiters();
  void ScheduleFlush();
  // The counters of a SEND. A failed Status closes the link.
  absl::Status OnHeader(const SendHeader& header);
  // Rare paths are out of line to keep the hot path small.
  [[gnu::cold, gnu::noinline]] absl::Status OnControlFrame(const FrameHeader& frame);
  [[gnu::cold, gnu::noinline]] void PostFailed(int error);
  [[gnu::cold, gnu::noinline]] void Misread(WireFault fault, size_t bytes);
  [[gnu::cold, gnu::noinline]] void CompletedUnposted(uint16_t position);
  // The control frames that are due, as far as there is room.
  void AppendDue();
  [[gnu::cold, gnu::noinline]] void AppendControl(FrameKind kind);
  // Whether a flush would post bindings, WRITEs or READs, or wake those who wait for leases.
  bool moves() const {
    return leases_.work_due() || transfers_.waiting() || !lease_waiters_.empty();
  }
  bool SlotsLeft() const {
    return slots_.in_flight() + pending_.size() + leases_.bindings_due() + kDrainMarkers <
           slots_.count();
  }
  // Call once the queue pair is in ERR. Posts a WR whose flush proves that all before it have
  // ended.
  void PostDrainMarker();

  Endpoint& endpoint_;
  LinkListener* listener_;
  PeerSource& source_;
  std::shared_ptr<QpConnection> connection_;  // null without a connection manager; outlives qp_
  QpHandle qp_;
  const uint32_t qpn_;
  LinkState state_ = LinkState::kConnecting;
  LinkTerms terms_;
  WatchedStream stream_;

  SendCredits credits_{0};
  IssuedCredits issued_;
  const uint32_t max_inline_bytes_;
  SendSlots slots_;
  PendingSends pending_;
  uint32_t held_ = 0;  // send buffers, of pending_ and of posted WRs
  TransferQueue transfers_;
  LeaseTable leases_;
  IntrusiveList<SendWaiter> writers_;
  IntrusiveList<LeaseWaiter> lease_waiters_;
  bool flush_scheduled_ = false;
  bool flushing_ = false;  // WRs may have positions in the send queue and not be posted
  ControlFrames control_;
  bool serving_writer_ = false;
  bool lacks_room_ = false;  // since the last flush
  HeldBack held_back_ = HeldBack::kNo;
  bool bulk_refused_ = false;  // by the last flush: other links had their slices in that turn
  bool alone_ = false;         // the frame that the listener handles is all that this turn brought
  int refusal_ = 0;            // the errno of a post that could not close the link
  Liveness liveness_;
  LinkStats stats_;

  // Teardown: set when every posted WR has completed.
  Event drained_;
  Event last_wqe_;
};

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_LINK_LINK_H_
