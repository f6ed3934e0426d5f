// The sending half of a link: LinkSender.
//
// Part of a Link, on its executor's thread. Credits, send queue slots and send buffers bound what
// is under way.

#ifndef VERBENA_TRANSPORT_LINK_SENDER_H_
#define VERBENA_TRANSPORT_LINK_SENDER_H_

#include <infiniband/verbs.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/link/credits.h"
#include "verbena/transport/link/host.h"
#include "verbena/transport/link/ids.h"
#include "verbena/transport/link/leases.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/listener.h"
#include "verbena/transport/link/peer_source.h"
#include "verbena/transport/link/send_queue.h"
#include "verbena/transport/link/stats.h"
#include "verbena/transport/link/transfers.h"
#include "verbena/transport/link/wire_format.h"

namespace verbena::internal {

// How far a link has come.
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

// LinkSender: the sending half of a link: it decides which frames, leases and transfers are posted,
// in which order, and when.
//
// Frames are coalesced into SENDs. The frames of a turn leave with one doorbell at the turn's end.
// If they are many, groups of them leave while the turn goes on, so that the peer works meanwhile
// (EarlyFrames()). Transfers leave slice by slice behind the frames, few bytes at a time
// (BulkLimits): a SEND waits only for the slices that are already in the send queue.
//
// Four things can be used up: the peer's credits, send queue slots, send buffers, and outstanding
// READs and atomics. Frames then wait, which is never an error. A fifth, CQ slots, is reserved when
// the link is made. A lease needs a memory window, and a place in the send queue for its binding:
// whoever finds too few of either waits, first come, first served.
//
// Part of a Link, on its executor's thread. A device that refuses a post closes that link.
class LinkSender final : private FlushHook, private RoomWaiter {
 public:
  // The link whose sending half this is, as far as its sender knows it. What is virtual is rare.
  class Owner : public WatchedLink, public RecallableLink {
   public:
    // The sender hands this link to SendWaiters, and calls nothing of it.
    Link& link() const { return link_; }
    LinkListener& listener() const { return listener_; }

    virtual LinkState state() const = 0;
    // The peer's name, for texts of errors.
    virtual const std::string& peer() const = 0;
    // The link is lost for `reason`. Calls LinkSender::Close().
    virtual void Close(const absl::Status& reason) = 0;
    // Close() for a fault of the device, or of the path behind it.
    void Break(const absl::Status& reason) {
      broken_ = broken_ || state() == LinkState::kOpen;
      Close(reason);
    }
    // Whether Break() has ended the link.
    bool broken() const { return broken_; }
    // Has a control thread allocate memory windows, if there are too few for `wanted` leases.
    virtual void RefillWindows(uint32_t wanted) = 0;
    // Since Close() all that was posted has ended.
    virtual void OnSendsDrained() = 0;

   protected:
    Owner(Link& link, LinkListener& listener) : link_(link), listener_(listener) {}
    ~Owner() = default;

   private:
    Link& link_;
    LinkListener& listener_;
    bool broken_ = false;
  };

  // Posts to `qp`, for `owner`. `source` is that of the peer. Not open yet.
  LinkSender(Owner& owner, LinkHost& host, ibv_qp* qp, LinkKey key, PeerSource& source);

  // The terms of the handshake.
  struct Terms {
    uint32_t initial_credits;  // to begin with
    uint32_t send_bytes;       // of a SEND, at most
    bool padded_pings;         // PINGs and PONGs may have a body
  };
  void Open(const Terms& terms, FirstSend first_send);
  // The queue pair of a link that was opened with kAfterReady has reached RTS.
  void AllowSends();
  // The link is lost: nothing is sent any more. Drops the frames that wait, and tells those that
  // wait for leases or for a PONG. Posted WRs keep their slots and buffers until they have ended.
  void Close(const absl::Status& reason);
  // The queue pair is gone: transfers fail, and the buffers of posted WRs are free.
  void Release();

  // --- frames

  // Append() and AwaitWritable() of the link.
  char* Append(const FrameHeader& header, size_t body_bytes, uint32_t invalidated);
  void AwaitWritable(SendWaiter& waiter);
  // Posts the answer that is pending, if it can leave at once and nothing else is due.
  void SendNow();
  // Whether SENDs can leave, now or as soon as there is room.
  bool may_send() const { return state_ >= State::kUntilHeard; }
  // The largest body that one frame can carry to the peer.
  size_t max_body_bytes() const { return MaxBodyBytes(queue_.send_bytes()); }

  // --- arrivals

  // A SEND has come: the peer has begun.
  void OnHeard() {
    if (state_ == State::kUntilHeard) [[unlikely]]
      StopHolding();
  }
  // The counters of a SEND. A failed Status closes the link.
  absl::Status OnHeader(const SendHeader& header) {
    VERBENA_RETURN_IF_ERROR(issued_.OnSend((header.flags & kSendSpendsReserve) != 0));
    if (header.is_compact()) {
      VERBENA_RETURN_IF_ERROR(
          credits_.OnCompactHeader(static_cast<uint16_t>(header.credits_issued)));
    } else {
      VERBENA_RETURN_IF_ERROR(issued_.OnReturned(header.credits_returned));
      VERBENA_RETURN_IF_ERROR(credits_.OnHeader(header.credits_issued, header.reserve_seen));
    }
    if (issued_.recalled()) [[unlikely]]
      SettleRecall();
    if ((header.flags & kSendStarved) != 0) GrowPeersWindow();
    return absl::OkStatus();
  }
  // Rare paths are out of line to keep the hot path small.
  [[gnu::cold, gnu::noinline]] absl::Status OnControlFrame(const FrameHeader& frame);
  // All frames of a SEND are handled.
  void OnHandled() {
    if (!writers_.empty()) WakeWriters();
    if (queue_.is_group()) PostEarly();
    if (issued_.ShouldAdvertise() || control_.pong || control_.recall) ScheduleFlush();
  }
  // `position` is that of the WR that has ended, and with it all earlier ones.
  void OnCompletion(const ibv_wc& completion, uint16_t position);
  // A receive of the link has failed, so its queue pair is in ERR. Where no SEND is under way, or
  // the device flushes none, nothing else says so.
  void OnFailedReceive(const ibv_wc& completion);

  // --- control frames

  // Asks the peer to say something, as long as `padding`, which is at most padding_limit(). Only
  // while the link is open.
  void Ping(uint32_t padding = 0) {
    control_.ping = true;
    control_.ping_padding = std::max(control_.ping_padding, padding);
    ScheduleFlush();
  }
  // `waiter` hears of each PONG until it is destroyed, or the link is lost.
  void AwaitPongs(PongWaiter& waiter) { pong_waiters_.PushBack(waiter); }
  // The longest body of a PING or PONG on this link.
  uint32_t padding_limit() const {
    return padded_pings_ ? static_cast<uint32_t>(max_body_bytes()) : 0;
  }
  // Whether a PING is held up here because other links hold all send buffers.
  bool ping_is_held_up() const { return control_.ping && OthersHoldBuffers(); }
  // Takes back `count` credits of those beyond the peer's initial window, and asks the peer for
  // those that it holds.
  void Recall(uint32_t count);
  // At each liveness check: whether a peer that was asked for credits may keep them until the next
  // one. A failed Status closes the link.
  absl::Status CheckRecall();
  // Control frames that have travelled, in both directions.
  uint64_t control_count() const { return control_.count; }

  // --- leases and transfers, which the next flush posts

  LeaseTable& leases() { return leases_; }
  const LeaseTable& leases() const { return leases_; }
  TransferQueue& transfers() { return transfers_; }
  const TransferQueue& transfers() const { return transfers_; }
  // Leases that can be opened now. Bindings take slots of the send queue, of which one must be left
  // for the SEND that tells of them.
  uint32_t free_leases() const {
    return std::min(leases_.free(), queue_.FreeSlots(leases_.bindings_due() + 1));
  }
  void AwaitLeases(LeaseWaiter& waiter) { lease_waiters_.Add(waiter); }
  // Wakes those whose leases are free. Has windows allocated for the next one.
  void WakeLeaseWaiters();

  // --- the link's own

  void ScheduleFlush() {
    if (!flush_scheduled_) StartFlush();
  }
  bool flush_scheduled() const { return flush_scheduled_; }
  const SendCredits& credits() const { return credits_; }
  IssuedCredits& issued() { return issued_; }
  const IssuedCredits& issued() const { return issued_; }
  LinkSendQueue& queue() { return queue_; }
  const LinkSendQueue& queue() const { return queue_; }
  // The link's counters: the link itself counts what arrives.
  LinkStats& stats() { return stats_; }
  const LinkStats& stats() const { return stats_; }
  bool SlotsLeft() const { return queue_.FreeSlots(leases_.bindings_due()) > 0; }

 private:
  // Whether SENDs may leave; if not, until when. With kUntilReady frames wait as well, and take no
  // send buffers.
  enum class State : uint8_t { kClosed, kUntilReady, kUntilHeard, kFree };

  bool open() const { return state_ != State::kClosed; }
  void Flush() override;
  // There may be a buffer again.
  void OnRoom() override;
  void StartFlush();
  void StopHolding();
  [[gnu::cold, gnu::noinline]] void SettleRecall();
  void NoteRecallAnswered();
  void GrowPeersWindow();

  bool OpenSend(SendUse use = SendUse::kFrames);
  char* Place(const FrameHeader& header, size_t body_bytes, uint32_t invalidated);
  void WakeWriters();
  // Call when this link has something to send, but lacks a send queue slot or a send buffer.
  [[gnu::cold, gnu::noinline]] void LackRoom();
  // Whether this link waits for a buffer and holds none itself. False for one that lacks slots: it
  // has used them up itself.
  bool OthersHoldBuffers() const { return lacks_room_ && queue_.held() == 0 && SlotsLeft(); }
  // The control frames that are due, as far as there is room.
  void AppendDue();
  [[gnu::cold, gnu::noinline]] void AppendPongs();
  [[gnu::cold, gnu::noinline]] void AppendControl(const FrameHeader& header, uint32_t padding);

  // Sending while the turn goes on.
  uint32_t EarlyFrames() const;
  // True if as many frames are pending as EarlyFrames() wants now. Otherwise
  // LinkSendQueue::is_group() is false until that many are.
  bool IsGroup();
  bool MayPostEarly();
  [[gnu::noinline]] bool PostWritten();
  [[gnu::noinline]] void PostEarly();

  // A flush posts, in this order: bindings and invalidations, the pending SENDs, a slice of
  // WRITEs and READs, and the SENDs that follow a payload of that slice. One doorbell rings for
  // all. If SENDs are pending ahead of a slice, they take a doorbell of their own, and so does each
  // further chain of leases or transfers.
  void PrepareLeases(WrChain& ready);
  bool MayPostBulk() const { return host_.supplies().MayPostBulk(host_.executor().stats().turns); }
  // True if the next slice must wait because other links had theirs in this turn.
  bool PrepareTransfers(WrChain& ready);
  void FinishMoves(bool bulk_refused);
  // Whether a flush would post bindings, WRITEs or READs, or wake those who wait for leases.
  bool moves() const {
    return leases_.work_due() || transfers_.waiting() || !lease_waiters_.empty();
  }
  // A link that moves payloads still sends frames: they keep some slots.
  uint32_t SlotsForTransfers() const { return queue_.FreeSlots(kSignalInterval); }
  // Posts the pending SENDs. False if that closes the link.
  [[gnu::noinline]] bool PostAhead(WrChain& ready);
  // Returns what the device answered: 0, or an errno. The last `kept` of the pending SENDs stay:
  // they leave later in this turn. Always inlined, which saves a call for each RPC.
  [[gnu::always_inline]] inline int PostPending(WrChain& ready, size_t kept = 0);
  // False if that closes the link.
  bool Ring(WrChain& ready);
  [[gnu::cold, gnu::noinline]] void PostFailed(int error);
  // A WR of the link has failed, and with it the queue pair.
  [[gnu::cold, gnu::noinline]] void EndLink(const ibv_wc& completion);
  // Names the constant of verbs, which users are not told.
  void LogFailure(const ibv_wc& completion);
  // A completion when the link is no longer open.
  [[gnu::cold, gnu::noinline]] void OnLateCompletion(const ibv_wc& completion);
  [[gnu::cold, gnu::noinline]] void CompletedUnposted(uint16_t position);

  Owner& owner_;
  LinkHost& host_;
  LinkSendQueue queue_;
  SendCredits credits_{0};
  IssuedCredits issued_;
  TransferQueue transfers_;
  LeaseTable leases_;
  WaiterQueue<LeaseWaiter> lease_waiters_;
  WaiterQueue<SendWaiter> writers_;
  IntrusiveList<PongWaiter> pong_waiters_;
  ControlFrames control_;
  bool padded_pings_ = false;
  State state_ = State::kClosed;
  bool flush_scheduled_ = false;
  bool flushing_ = false;    // WRs may have a position and not be posted yet
  bool lacks_room_ = false;  // since the last flush
  int refusal_ = 0;          // the errno of a post that could not close the link
  LinkStats stats_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_SENDER_H_
