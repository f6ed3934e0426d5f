// Link, the connection of one executor here with one executor there.
//
// Liveness, WatchedStream and LinkQp are parts of a Link; sender.h has its sending half. An
// Endpoint owns its links, on its executor's thread. LinkLimits bounds them.

#ifndef VERBENA_TRANSPORT_LINK_LINK_H_
#define VERBENA_TRANSPORT_LINK_LINK_H_

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/connect/handshake.h"
#include "verbena/transport/connect/qp_connector.h"
#include "verbena/transport/coro/sync.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/device/control_pool.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/executor/turn_pacer.h"
#include "verbena/transport/link/credits.h"
#include "verbena/transport/link/device_context.h"
#include "verbena/transport/link/host.h"
#include "verbena/transport/link/ids.h"
#include "verbena/transport/link/leases.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/listener.h"
#include "verbena/transport/link/peer_source.h"
#include "verbena/transport/link/send_queue.h"
#include "verbena/transport/link/sender.h"
#include "verbena/transport/link/stats.h"
#include "verbena/transport/link/transfers.h"
#include "verbena/transport/link/wire_format.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

// Liveness: what a link's checks know of its peer: how long it has been silent, whether it takes
// what it is sent, and how long nothing has travelled.
//
// The link asks; this remembers and counts. Checks come every ping_interval / 2, and count: a host
// that was suspended itself must not blame its peers for the time. Part of a Link, on its
// executor's thread.
//
//   liveness.Hear();                           // a SEND has come
//   const bool heard = liveness.Check(now);    // every half ping_interval
//   if (liveness.Silence(now) >= interval && liveness.CountSilent()) Close(...);
class Liveness {
 public:
  // The link opens.
  void Begin(TimePoint now) {
    last_heard_ = now;
    idle_since_ = now;
  }

  // --- silence

  // A SEND has come. Reads no clock: that costs as much as posting a WR.
  void Hear() { heard_ = true; }
  // Whether one has come since the last check.
  bool heard() const { return heard_; }
  // Begins a check. True if a SEND has come since the last one.
  bool Check(TimePoint now) {
    const bool heard = std::exchange(heard_, false);
    if (heard) last_heard_ = now;
    return heard;
  }
  // For how long nothing has come, to within a check.
  Duration Silence(TimePoint now) const { return now - last_heard_; }
  // Counts a check that found the peer silent when it should not be. True if that was once too
  // often.
  bool CountSilent() { return ++silent_checks_ > kMaxSilentChecks; }
  void ForgetSilence() { silent_checks_ = 0; }

  // --- what the peer takes

  // Waits for the latest WR that holds a buffer: once that one has ended, all earlier ones have. (A
  // peer that posts a receive now and then has each SEND retried for long, and all of them
  // succeed.) False when the peer has not taken it for kMaxUnacknowledgedChecks checks. `holds`: a
  // WR in the send queue holds a buffer. SENDs that are copied inline hold none, and may be
  // unsignalled. They are waited for only while they fill the send queue (`is_full`; one is then
  // signalled), and then for the first of them.
  bool CheckAcknowledged(const SendSlots& slots, bool holds, bool is_full) {
    const bool waits =
        checks_in_vain_ != 0 && static_cast<int32_t>(slots.completed() - awaited_) <= 0;
    if (!waits) {
      checks_in_vain_ = 0;
      if (!holds && !is_full) return true;
      awaited_ = holds ? slots.LastHolder() : slots.completed();
    }
    return ++checks_in_vain_ <= kMaxUnacknowledgedChecks;
  }
  bool awaits_acknowledgement() const { return checks_in_vain_ != 0; }
  // Whether slices of transfers move. `outstanding`: the send queue holds one; `ended` counts those
  // that have ended. False when none has ended for kMaxUnacknowledgedChecks checks.
  bool CheckTransfers(bool outstanding, uint32_t ended) {
    if (!outstanding || ended != slices_ended_) checks_of_slice_ = 0;
    slices_ended_ = ended;
    return !outstanding || ++checks_of_slice_ <= kMaxUnacknowledgedChecks;
  }

  // --- use

  // For how long the link has been idle. `traffic` counts what has travelled; `in_use`: it is not
  // idle though nothing travels.
  Duration IdleTime(TimePoint now, uint64_t traffic, bool in_use) {
    if (traffic != idle_traffic_ || in_use) {
      idle_traffic_ = traffic;
      idle_since_ = now;
    }
    return now - idle_since_;
  }
  // Counts idle time from now on.
  void RestartIdleTime(TimePoint now) { idle_since_ = now; }

 private:
  bool heard_ = false;
  TimePoint last_heard_{};
  uint32_t silent_checks_ = 0;
  uint32_t awaited_ = 0;          // the position of the WR that checks wait for
  uint32_t checks_in_vain_ = 0;   // how many have waited for it; 0: none is waited for
  uint32_t slices_ended_ = 0;     // at the last check
  uint32_t checks_of_slice_ = 0;  // that found none ended since the one before
  TimePoint idle_since_{};        // the last check that found the link in use
  uint64_t idle_traffic_ = 0;     // at that check
};

// WatchedStream: the bootstrap connection of a link, which stays open as long as the link does.
//
// Nothing is sent on it after the handshake. Anything that comes out of it means that the peer is
// going. A coroutine reads it until then; the link's teardown closes it, and waits for that
// coroutine before it frees the link. Part of a LinkQp, on its executor's thread.
class WatchedStream {
 public:
  // Keeps `stream` until the link is freed; nobody reads it.
  void Keep(std::unique_ptr<MessageStream> stream) {
    stream_ = std::move(stream);
    unread_.Set();
  }
  // Keeps `stream`, which one coroutine reads from now on: Receive(), and then EndReading().
  void KeepAndRead(std::unique_ptr<MessageStream> stream) {
    stream_ = std::move(stream);
    unread_.Reset();
  }
  // Only after KeepAndRead().
  [[nodiscard]] VERBENA_CORO_WRAPPER Task<absl::StatusOr<std::string>> Receive() {
    return stream_->Receive();
  }
  void EndReading() { unread_.Set(); }

  // Does nothing while there is no stream.
  void Close() {
    if (stream_ != nullptr) stream_->Close();
  }
  // Until nobody reads the stream. Only after Close().
  [[nodiscard]] Task<void> AwaitUnread() {
    if (stream_ != nullptr) (void)co_await unread_.Wait();
  }

 private:
  std::unique_ptr<MessageStream> stream_;  // null until the handshake has ended
  Event unread_;
};

// LinkQp: the queue pair of a link, the connections that live as long as it does, and what the
// device tells of its end.
//
// Posted requests must end before the queue pair is destroyed, and the queue pair must be destroyed
// before its connection manager's connection. Part of a Link, which orders the steps of its
// teardown, on its executor's thread. Control threads run the verbs.
class LinkQp {
 public:
  explicit LinkQp(QpHandle qp) : qp_(std::move(qp)), qpn_(qp_->qp_num) {}

  // nullptr once Destroy() has begun.
  ibv_qp* get() const { return qp_.get(); }
  // Also valid when the queue pair is gone.
  uint32_t qpn() const { return qpn_; }
  bool is_iwarp() const { return qp_->context->device->transport_type == IBV_TRANSPORT_IWARP; }

  // null without a connection manager.
  const std::shared_ptr<QpConnection>& connection() const { return connection_; }
  void set_connection(std::shared_ptr<QpConnection> connection) {
    connection_ = std::move(connection);
  }
  WatchedStream& stream() { return stream_; }

  // --- teardown

  // Moves the queue pair to ERR, posts the drain marker of that wr_id there, and waits until nobody
  // reads the bootstrap connection. Not OK: the marker was not posted.
  Task<absl::Status> MoveToError(ControlPool& control, Device& device,
                                 std::optional<uint64_t> marker);
  // The last posted WR has completed.
  void OnDrained() { drained_.Set(); }
  Task<absl::Status> AwaitDrained(TimePoint limit);
  // The device says that no receive of the shared queue is with this queue pair any more.
  void OnLastWqe() { last_wqe_.Set(); }
  bool told_of_last() const { return last_wqe_.is_set(); }
  Task<absl::Status> AwaitLastWqe(TimePoint limit);
  // Destroys `windows` and then the queue pair: the other way round takes some devices a minute
  // (rxe 6.1).
  Task<void> Destroy(ControlPool& control, std::vector<MwHandle> windows);

 private:
  std::shared_ptr<QpConnection> connection_;  // outlives qp_
  QpHandle qp_;
  const uint32_t qpn_;
  WatchedStream stream_;
  Event drained_;
  Event last_wqe_;
};

// Link: one RC queue pair between one executor here and one executor there, with its credits.
//
// The link hears its peer's frames, checks that the peer is alive, and ends. Its parts do the rest:
// LinkSender decides when frames, leases and transfers are posted, Liveness counts the checks that
// its peer fails, and LinkQp has the queue pair until it has drained.
//
// Owned by its Endpoint; lives on that endpoint's executor thread. A LinkListener hears its frames
// and its end; after OnLinkDown() the pointer is dead to everybody else. Destroyed by the endpoint
// once the queue pair has drained.
//
//   char* body = link.Append(header, body_bytes);
//   if (body == nullptr) link.AwaitWritable(waiter);   // its OnWritable() appends
//   else message.SerializeWithCachedSizesToArray(body);
class Link final : public LinkSender::Owner {
 public:
  // By the endpoint only: `qp` is connected later, and `source` is that of its peer.
  Link(LinkHost& host, LinkKey key, QpHandle qp, LinkListener& listener, PeerSource& source);

  // Appends a frame to the SENDs of this turn, and returns the place of its body, `body_bytes`
  // long. Write the body before the next Append() and before control returns to the executor:
  // earlier frames may leave then. Returns nullptr if something is exhausted, or if others wait
  // already. Preconditions: open(), and body_bytes ≤ max_body_bytes(). `invalidated` is the key of
  // a peer's lease that the SEND also ends, if the peer reports_invalidation(); 0 for none. Pass it
  // with the frame after which nothing is written to that lease.
  char* Append(const FrameHeader& header, size_t body_bytes, uint32_t invalidated = 0) {
    return sender_.Append(header, body_bytes, invalidated);
  }

  // Call this inside OnFrame(), after appending the answer to a frame and writing its body. Posts
  // the answer now if that frame is all that this turn brought, so that it travels while the call
  // is cleaned up. Otherwise the answer leaves at the turn's end, with whatever joins it till then.
  // Never closes the link: if the device refuses, the turn's end does.
  void SendNowIfAlone() {
    if (!alone_) return;
    alone_ = false;
    sender_.SendNow();
  }

  // Queues `waiter` behind those that wait already. Precondition: open().
  void AwaitWritable(SendWaiter& waiter) { sender_.AwaitWritable(waiter); }

  // Starts to move `local` to (kWrite) or from (kRead) `remote`, which is as long. `local` is not
  // empty, and is registered with this link's device. The listener, who may be null, hears how the
  // transfer ends. The transfer leaves in slices, from the turn's end on. Preconditions: open(),
  // and for READs, max_reads() is not 0.
  Transfer& StartTransfer(Transfer::Direction direction, absl::Span<const BufferView> local,
                          const RemoteRange& remote, TransferListener* listener);
  // For a starter that has no more use for the transfer: posts no more of it, and its listener
  // hears nothing. Frames that are appended from now on arrive after the last byte that it moves.
  void AbandonTransfer(Transfer& transfer) { sender_.transfers().Abandon(transfer); }
  // For a starter that waits for the part in the send queue: posts no more of the transfer. False
  // if no part is there: then the transfer is gone, and its listener hears nothing.
  bool CancelTransfer(Transfer& transfer) { return sender_.transfers().Cancel(transfer); }
  uint32_t max_reads() const { return sender_.transfers().max_reads(); }
  // The same for an atomic operation on `remote`, 8 bytes at a multiple of 8. Its listener hears
  // the former value. Precondition: has_atomics(), and max_reads() is not 0.
  Transfer& StartAtomic(const AtomicOperation& operation, const RemoteRange& remote,
                        TransferListener* listener);
  bool has_atomics() const { return sender_.transfers().has_atomics(); }

  // Leases `view`, which is not empty, to the peer (leases.h). Frames that are appended from now on
  // may tell the peer of the lease. nullptr if free_leases() is 0; errors as LeaseTable::Open().
  // Precondition: open().
  absl::StatusOr<Lease*> OpenLease(const BufferView& view, LeaseAccess access,
                                   LeaseUse use = LeaseUse::kCall);
  // The peer has said that it is done with the lease, or has never heard of it; `listener` hears
  // when its end is proven. Returns whether that is so already. Precondition: open().
  bool EndLease(Lease& lease, LeaseListener* listener);
  // Nobody waits for the peer's word any more. EndLease() is still called when it comes.
  void AbandonLease(Lease& lease);
  uint32_t free_leases() const { return sender_.free_leases(); }
  void AwaitLeases(LeaseWaiter& waiter);
  const LeaseTable& leases() const { return sender_.leases(); }

  // The features that the handshake agreed on.
  bool reports_invalidation() const { return (features_ & kFeatureInvalidation) != 0; }
  bool checks_payloads() const { return (features_ & kFeatureChecksum) != 0; }
  bool has_grants() const { return (features_ & kFeatureGrants) != 0; }
  bool names_attempts() const { return (features_ & kFeatureEarlierAttempts) != 0; }
  bool tells_highest_number() const { return (features_ & kFeatureHighestNumber) != 0; }

  // Ends the link. OnLinkDown() is called before this returns; teardown goes on by itself. Does
  // nothing if the link has already ended.
  void Close(const absl::Status& reason) override;

  bool open() const { return state_ == LinkState::kOpen; }
  LinkState state() const override { return state_; }
  // The largest body that one frame can carry to this peer.
  size_t max_body_bytes() const { return sender_.max_body_bytes(); }
  const std::string& peer() const override { return peer_; }
  const LinkStats& stats() const { return sender_.stats(); }
  // Also valid when the queue pair is gone.
  uint32_t qpn() const { return qp_.qpn(); }
  // Numbers that tell this end of the link, and the peer's end, from every other. Valid once
  // open().
  uint64_t identity() const { return identity_; }
  uint64_t peer_identity() const { return peer_identity_; }
  // The server's methods, in the order of their numbers; on its client's side.
  const std::vector<OfferedMethod>& methods() const { return methods_; }
  // The server's incarnation, on its client's side; 0 if it told none.
  uint64_t incarnation() const { return incarnation_; }
  // The peer's executor, by its number there; on its client's side.
  uint32_t peer_executor() const { return peer_executor_; }
  Endpoint& endpoint() const { return host_.endpoint(); }
  // The device that it is on, and the protection domain of memory that it moves.
  Device& device() const { return host_.device(); }
  ibv_pd* pd() const { return host_.pd(); }
  LinkKey key() const { return sender_.queue().slots().key(); }
  uint32_t send_credits() const { return sender_.credits().available(); }
  // The most receives of ours that the queue pair may have taken without our having seen it.
  uint32_t receives_held() const { return sender_.issued().outstanding() + kReserveCredits; }
  // Whether SENDs can leave, now or as soon as there is room. Only on a link that is open().
  bool may_send() const { return sender_.may_send(); }
  // Asks the peer to say something, as long as `padding`. Only while open().
  void Ping(uint32_t padding = 0) { sender_.Ping(padding); }
  // `waiter` hears of each PONG until it is destroyed, or the link is lost. Only while open().
  void AwaitPongs(PongWaiter& waiter) { sender_.AwaitPongs(waiter); }
  // The padding with which a PING fills a packet of the path, or the longest SEND if that is
  // shorter; 0 if the peer takes none. Valid once open().
  uint32_t packet_padding() const;
  // The largest packet of the path, in bytes.
  uint32_t packet_bytes() const { return packet_bytes_; }
  // Whether a PING is held up here because other links hold all send buffers. If so, the peer's
  // silence is not its fault.
  bool ping_is_held_up() const { return sender_.ping_is_held_up(); }

  // --- For its endpoint: how the link begins.

  LinkQp& qp() { return qp_; }
  const LinkQp& qp() const { return qp_; }
  void SetIdentity(uint32_t psn);
  // `packet_bytes` is what both sides' paths take.
  void MarkOpen(const LinkParameters& parameters, uint32_t max_reads, uint32_t packet_bytes,
                const std::string& peer, FirstSend first_send);
  // The queue pair of a link that was opened with kAfterReady has reached RTS.
  void AllowSends() { sender_.AllowSends(); }
  // Memory windows that were allocated for this link, at first or because RefillWindows() asked.
  void AddWindows(WindowBatch windows);

  // --- For its endpoint: completions. Each may close the link.

  // `invalidated` is the key that the SEND ended, 0 for none.
  void OnSend(const char* bytes, size_t size, uint32_t invalidated);
  void OnFailedReceive(const ibv_wc& completion) { sender_.OnFailedReceive(completion); }
  void OnSendCompletion(const ibv_wc& completion, uint16_t position) {
    sender_.OnCompletion(completion, position);
  }

  // --- For its endpoint: credits and checks.

  PeerSource& source() const { return sender_.queue().source(); }
  IssuedCredits& issued() override { return sender_.issued(); }
  void Recall(uint32_t count) override { sender_.Recall(count); }
  bool heard() const override { return liveness_.heard(); }
  // Has the next liveness check look at a link that has sent nothing since the last one, if its
  // listener waits for frames, or its peer has been silent for LinkLimits::keep_alive_interval.
  // Tells the CreditIssuer whether a peer that has borrowed credits is quiet.
  void CheckUnwatched(TimePoint now);
  // Closes it, or lets its listener do so, if it has been idle for too long.
  void CheckIdle(TimePoint now);
  // Sends a PING, or closes a link whose peer has been silent, or has kept credits that it was
  // asked for. `now` ticks every ping_interval / 2. False if nothing is left to be watched.
  bool CheckLiveness(TimePoint now);

  // --- For its endpoint: teardown, in this order. Precondition: !open().

  // Until nothing is posted any more, as far as the device tells in teardown_timeout.
  Task<void> Drain(TurnPacer& pacer);
  // Has a control thread destroy the windows and then the queue pair. Returns the memory that the
  // peer had leases on.
  Task<std::vector<BufferPin>> Destroy();
  // No completion is left: transfers fail, and send buffers are free.
  void Release() { sender_.Release(); }

 private:
  // Ordered by the queue pair, so that no refill is under way when the queue pair is destroyed.
  void RefillWindows(uint32_t wanted) override;
  void OnSendsDrained() override { qp_.OnDrained(); }

  // Whether a SEND has come since the last check. Tells the CreditIssuer, too.
  bool CheckHeard(TimePoint now);
  bool KeepAliveDue(TimePoint now) const;
  // Whether the peer acknowledges what it is sent. A failed Status closes the link.
  absl::Status CheckAcknowledged();
  // Whether one-sided operations on the peer's memory make progress. A failed Status closes the
  // link.
  absl::Status CheckTransfers();
  [[gnu::cold, gnu::noinline]] void Misread(WireFault fault, size_t bytes);
  // Names the method of the call that a frame which breaks the protocol is for.
  [[gnu::cold, gnu::noinline]] absl::Status About(const FrameHeader& frame,
                                                  const absl::Status& violation) const;
  // The peer breaks the protocol: says so in the log, and closes the link.
  [[gnu::cold, gnu::noinline]] void CloseForViolation(const absl::Status& violation);

  LinkHost& host_;
  LinkQp qp_;
  LinkState state_ = LinkState::kConnecting;
  bool alone_ = false;  // the frame that the listener handles is all that this turn brought
  // The terms of the link: both ends know them since the handshake, and they stay while it is open.
  std::string peer_;       // by the name that its bootstrap connection has
  uint64_t features_ = 0;  // that both have
  uint32_t packet_bytes_ = 0;
  uint64_t identity_ = 0;
  uint64_t peer_identity_ = 0;
  std::vector<OfferedMethod> methods_;
  uint64_t incarnation_ = 0;
  uint32_t peer_executor_ = 0;
  LinkSender sender_;
  Liveness liveness_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_LINK_H_
