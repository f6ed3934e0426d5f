#include "verbena/transport/link/link.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/link/host.h"
#include "verbena/transport/link/qp.h"
#include "verbena/transport/link/sender.h"

namespace verbena::internal {
namespace {

// The queue pair's number is reused late, and its first packet number is random.
uint64_t IdentityOf(uint32_t qpn, uint32_t psn) { return uint64_t{qpn} << 24 | psn; }

}  // namespace

Task<absl::Status> LinkQp::MoveToError(ControlPool& control, Device& device,
                                       std::optional<uint64_t> marker) {
  stream_.Close();
  ibv_qp* const qp = qp_.get();
  // Until the queue pair is in ERR, the peer may use up receives of the endpoint: so this goes
  // ahead of others' destructions.
  absl::Status status =
      co_await control.Finish(ControlKind::kToError, qp, [&device, qp, marker]() -> absl::Status {
        absl::Status moved = MoveQpToError(device, qp);
        if (!moved.ok() || !marker.has_value()) return moved;
        return PostDrainMarker(qp, *marker);
      });
  if (!status.ok()) VERBENA_LOG_LINE(kLink, kWarning, status.ToString());
  co_await stream_.AwaitUnread();
  co_return status;
}

Task<absl::Status> LinkQp::AwaitDrained(TimePoint limit) {
  co_return co_await WithDeadline(WaitFor(drained_), limit);
}

Task<absl::Status> LinkQp::AwaitLastWqe(TimePoint limit) {
  co_return co_await WithDeadline(WaitFor(last_wqe_), limit);
}

Task<void> LinkQp::Destroy(ControlPool& control, std::vector<MwHandle> windows) {
  const void* const order = qp_.get();
  (void)co_await control.Finish(ControlKind::kTeardown, order,
                                [windows = std::move(windows), qp = std::move(qp_)]() mutable {
                                  windows.clear();
                                  qp.Reset();
                                  return absl::OkStatus();
                                });
}

Link::Link(LinkHost& host, LinkKey key, QpHandle qp, LinkListener& listener, PeerSource& source)
    : Owner(*this, listener),
      host_(host),
      qp_(std::move(qp)),
      sender_(*this, host, qp_.get(), key, source) {}

// --- how it begins

void Link::SetIdentity(uint32_t psn) { identity_ = IdentityOf(qpn(), psn); }

void Link::MarkOpen(const LinkParameters& parameters, uint32_t max_reads, uint32_t packet_bytes,
                    const std::string& peer, FirstSend first_send) {
  VERBENA_CHECK(state_ == LinkState::kConnecting) << "a link with " << peer << ", state " << state_;
  sender_.Open({.initial_credits = parameters.initial_credits,
                .send_bytes = std::min(parameters.eager_bytes, host_.limits().eager_bytes),
                .padded_pings = (parameters.features & kFeaturePaddedPing) != 0},
               first_send);
  sender_.transfers().set_max_reads(max_reads);
  sender_.transfers().set_fences_reads(qp_.is_iwarp());
  features_ = parameters.features;
  packet_bytes_ = packet_bytes;
  peer_identity_ = IdentityOf(parameters.qp_number, parameters.packet_sequence_number);
  peer_ = peer;
  methods_ = parameters.methods;
  incarnation_ = parameters.incarnation;
  peer_executor_ = parameters.executor_index;
  liveness_.Begin(host_.executor().now());
  state_ = LinkState::kOpen;
  listener().OnLinkOpen(*this);
  // A channel may be quiet for long, and its peer could not even say that it goes away.
  if (first_send == FirstSend::kOurs) Ping();
  host_.OnLinkOpened();
}

uint32_t Link::packet_padding() const {
  constexpr size_t kHeaders = sizeof(SendHeader) + sizeof(FrameHeader);
  return packet_bytes_ > kHeaders
             ? std::min(static_cast<uint32_t>(packet_bytes_ - kHeaders), sender_.padding_limit())
             : 0;
}

void Link::AddWindows(WindowBatch windows) {
  sender_.leases().Refill(std::move(windows));
  sender_.WakeLeaseWaiters();
}

// --- frames

void Link::OnSend(const char* bytes, size_t size, uint32_t invalidated) {
  LinkStats& stats = sender_.stats();
  ++stats.receives;
  stats.bytes_received += size;
  liveness_.Hear();
  sender_.OnHeard();
  if (invalidated != 0) sender_.leases().OnInvalidated(invalidated);
  FrameParser parser(bytes, size);
  if (parser.fault() == WireFault::kNone) {
    if (absl::Status status = sender_.OnHeader(parser.header()); !status.ok()) {
      CloseForViolation(status);
      return;
    }
  }
  while (open() && parser.Next()) {
    ++stats.frames_received;
    const FrameHeader& frame = parser.frame();
    const bool is_control = frame.kind == FrameKind::kPing || frame.kind == FrameKind::kPong ||
                            frame.kind == FrameKind::kRecall;
    alone_ = parser.at_last() && host_.handles_one_completion();
    absl::Status status = is_control ? sender_.OnControlFrame(frame)
                                     : listener().OnFrame(*this, frame, parser.body());
    alone_ = false;
    if (!status.ok()) {
      CloseForViolation(About(frame, status));
      return;
    }
  }
  if (!open()) return;
  if (parser.fault() != WireFault::kNone) {
    Misread(parser.fault(), size);
    return;
  }
  sender_.OnHandled();
}

void Link::Misread(WireFault fault, size_t bytes) {
  CloseForViolation(absl::InvalidArgumentError(
      fmt::format("the peer sent {} ({} bytes)", WireFaultName(fault), bytes)));
}

absl::Status Link::About(const FrameHeader& frame, const absl::Status& violation) const {
  const char* method = open() ? listener().MethodOf(frame) : nullptr;
  if (method == nullptr) return violation;
  return absl::Status(violation.code(),
                      fmt::format("a call of {}: {}", method, std::string(violation.message())));
}

void Link::CloseForViolation(const absl::Status& violation) {
  // A peer can cause these as often as it connects.
  static thread_local ThrottledLog log(LogComponent::kLink,
                                       {.lines = 4, .interval = std::chrono::seconds(10)});
  VERBENA_LOG_THROTTLED(log, kWarning, host_.executor().now(),
                        fmt::format("{} breaks the protocol, so its link (QPN {:#x}) closes: {}",
                                    peer(), qpn(), violation.ToString()),
                        {{"peer", peer()}, {"link", qpn()}});
  Close(violation);
}

// --- transfers and leases

Transfer& Link::StartTransfer(Transfer::Direction direction, absl::Span<const BufferView> local,
                              const RemoteRange& remote, TransferListener* listener) {
  VERBENA_CHECK(open()) << "a transfer with " << peer() << ", state " << state_;
  VERBENA_CHECK(!local.empty() && remote.bytes > 0) << "an empty transfer with " << peer();
  VERBENA_CHECK(direction == Transfer::Direction::kWrite || max_reads() > 0)
      << "a READ from " << peer() << ", which answers none";
  Transfer& transfer = host_.supplies().transfers().Take(direction, local, remote, listener);
  sender_.transfers().Add(transfer);
  ++sender_.stats().transfers;
  sender_.stats().transfer_bytes += remote.bytes;
  sender_.ScheduleFlush();
  return transfer;
}

Transfer& Link::StartAtomic(const AtomicOperation& operation, const RemoteRange& remote,
                            TransferListener* listener) {
  VERBENA_CHECK(open()) << "an atomic operation with " << peer() << ", state " << state_;
  VERBENA_CHECK(has_atomics() && max_reads() > 0) << "atomic operations with " << peer();
  VERBENA_CHECK(remote.bytes == 8 && remote.address % 8 == 0)
      << "an atomic operation on " << remote.bytes << " bytes at " << remote.address;
  Transfer& transfer = host_.supplies().transfers().TakeAtomic(operation, remote, listener);
  sender_.transfers().Add(transfer);
  ++sender_.stats().atomics;
  sender_.ScheduleFlush();
  return transfer;
}

absl::StatusOr<Lease*> Link::OpenLease(const BufferView& view, LeaseAccess access, LeaseUse use) {
  VERBENA_CHECK(open()) << "a lease for " << peer() << ", state " << state_;
  VERBENA_CHECK(!view.empty()) << "an empty lease for " << peer();
  RefillWindows(1);
  if (free_leases() == 0) return nullptr;
  LeaseTable& table = sender_.leases();
  absl::StatusOr<Lease*> lease = table.Open(view, access, use);
  if (lease.ok() && *lease != nullptr) ++sender_.stats().leases;
  if (table.bindings_due() > 0) sender_.ScheduleFlush();
  return lease;
}

bool Link::EndLease(Lease& lease, LeaseListener* listener) {
  VERBENA_CHECK(open()) << "the end of a lease of " << peer() << ", state " << state_;
  const bool is_over = sender_.leases().End(lease, listener);
  if (leases().work_due()) sender_.ScheduleFlush();
  sender_.WakeLeaseWaiters();
  return is_over;
}

void Link::AbandonLease(Lease& lease) {
  sender_.leases().Abandon(lease, host_.executor().now());
  // A liveness check ends the grace of the lease.
  if (!WatchedLink::linked()) host_.WatchLiveness(*this);
}

void Link::AwaitLeases(LeaseWaiter& waiter) {
  ++sender_.stats().lease_waits;
  RefillWindows(waiter.leases_wanted);
  sender_.AwaitLeases(waiter);
}

void Link::RefillWindows(uint32_t wanted) {
  LeaseTable& table = sender_.leases();
  const uint32_t count = table.BeginRefill(wanted);
  if (count != 0) host_.StartRefill(key(), qp_.get(), count, table.TakeWorn());
}

// --- whether the peer is alive, takes what it is sent, and uses the link

bool Link::CheckLiveness(TimePoint now) {
  if (!open()) return false;
  const bool heard = CheckHeard(now);
  absl::Status status = sender_.leases().CheckGrace(now);
  if (status.ok()) status = sender_.CheckRecall();
  if (!status.ok()) {
    Close(status);
    return false;
  }
  status = CheckAcknowledged();
  if (status.ok()) status = CheckTransfers();
  if (!status.ok()) {
    Break(status);
    return false;
  }
  if (leases().work_due()) sender_.ScheduleFlush();
  const Duration interval = host_.limits().ping_interval;
  // One-sided operations on the peer's memory may wait for the peer as well, and coroutines for
  // them.
  const bool expects =
      listener().ExpectsFrames() || sender_.transfers().outstanding() || KeepAliveDue(now);
  if (!expects || liveness_.Silence(now) < interval) {
    liveness_.ForgetSilence();
    return expects || heard || sender_.flush_scheduled() || issued().recalled() ||
           liveness_.awaits_acknowledgement() || leases().quarantined_bytes() != 0;
  }
  if (ping_is_held_up()) return true;
  if (liveness_.CountSilent()) {
    Break(absl::UnavailableError(fmt::format(
        "{} has not answered a PING for {} ms (process stopped, its executor held by a handler "
        "that blocks, or host unreachable)",
        peer(),
        std::chrono::duration_cast<std::chrono::milliseconds>(liveness_.Silence(now)).count())));
    return false;
  }
  Ping();
  return true;
}

bool Link::CheckHeard(TimePoint now) {
  const bool heard = liveness_.Check(now);
  if (RecallableLink::linked()) host_.credit_issuer().NoteChecked(*this, heard);
  return heard;
}

bool Link::KeepAliveDue(TimePoint now) const {
  const Duration interval = host_.limits().keep_alive_interval;
  return interval != Duration::zero() && liveness_.Silence(now) >= interval;
}

absl::Status Link::CheckAcknowledged() {
  const LinkSendQueue& sends = sender_.queue();
  const SendSlots& slots = sends.slots();
  const bool is_full = slots.in_flight() > 0 && !sender_.SlotsLeft();
  if (liveness_.CheckAcknowledged(slots, sends.holds_posted(), is_full)) return absl::OkStatus();
  return absl::UnavailableError(
      fmt::format("{} has not taken a SEND for 4 x LinkLimits::ping_interval; {} work requests are "
                  "under way: its process is stopped, the path to it is broken, or it posts fewer "
                  "receives than it issues credits",
                  peer(), slots.in_flight()));
}

absl::Status Link::CheckTransfers() {
  const TransferQueue& transfers = sender_.transfers();
  if (liveness_.CheckTransfers(transfers.outstanding(), transfers.ended())) return absl::OkStatus();
  return absl::UnavailableError(
      fmt::format("no READ, WRITE or atomic operation on memory of {} has ended for 4 x "
                  "LinkLimits::ping_interval, though {} bytes are under way: its process is "
                  "stopped, the path to it is broken, or it answers too slowly",
                  peer(), transfers.bytes_outstanding()));
}

void Link::CheckUnwatched(TimePoint now) {
  // A link that is watched is checked anyway.
  if (!open() || WatchedLink::linked()) return;
  // Sending begins the watch, but a call may wait for its client before it has sent anything.
  bool is_due = listener().ExpectsFrames();
  const bool keeps_alive = host_.limits().keep_alive_interval != Duration::zero();
  if (keeps_alive || RecallableLink::linked()) {
    (void)CheckHeard(now);
    is_due = is_due || KeepAliveDue(now);
  }
  if (is_due) host_.WatchLiveness(*this);
}

void Link::CheckIdle(TimePoint now) {
  const Duration timeout = host_.limits().idle_timeout;
  if (!open() || timeout == Duration::zero()) return;
  // Control frames are not use: the checks of either side could cause them for ever.
  const uint64_t control = sender_.control_count();
  const uint64_t traffic =
      stats().frames_sent + stats().frames_received - control + stats().transfers + stats().atomics;
  const bool in_use = sender_.transfers().outstanding() || listener().InUse(*this);
  if (liveness_.IdleTime(now, traffic, in_use) < timeout) return;
  liveness_.RestartIdleTime(now);
  if (!listener().OnIdle(*this)) return;
  Close(absl::CancelledError(
      fmt::format("nothing has travelled for {} s",
                  std::chrono::duration_cast<std::chrono::seconds>(timeout).count())));
}

// --- its end

void Link::Close(const absl::Status& reason) {
  if (state_ != LinkState::kOpen && state_ != LinkState::kConnecting) return;
  const bool was_open = open();
  state_ = LinkState::kDraining;
  RecallableLink::Unlink();
  sender_.Close(reason);
  if (was_open) listener().OnLinkDown(*this, reason);
  WatchedLink::Unlink();
  host_.StartTeardown(*this, reason);
  host_.supplies().room().Note(source());
}

// Each wait is bounded: some devices never flush, or never send the event.
Task<void> Link::Drain(TurnPacer& pacer) {
  DeviceContext& context = host_.context();
  LinkSendQueue& sends = sender_.queue();
  // A device that completes no marker in ERR (siw) flushed the posted WRs when the queue pair moved
  // there; destroying the queue pair ends the rest.
  std::optional<uint64_t> marker;
  if (sends.slots().in_flight() > 0 && context.device().capabilities().flushes_in_error) {
    marker = sends.ReserveDrainMarker();
  }
  const absl::Status moved = co_await qp_.MoveToError(context.control(), context.device(), marker);
  if (!moved.ok() && marker.has_value()) sends.ForgetDrainMarker();
  (void)co_await pacer.Pass();
  const TimePoint limit = SaturatingAdd(host_.executor().now(), host_.limits().teardown_timeout);
  if (marker.has_value() && sends.slots().in_flight() > 0) {
    absl::Status drained = co_await qp_.AwaitDrained(limit);
    if (!drained.ok()) {
      static thread_local ThrottledLog log(LogComponent::kLink,
                                           {.lines = 1, .interval = std::chrono::seconds(10)});
      VERBENA_LOG_THROTTLED(log, kWarning, host_.executor().now(),
                            fmt::format("QPN {:#x}: {} of the posted WRs did not flush in time",
                                        qpn(), sends.slots().in_flight()),
                            {{"peer", peer()}, {"link", qpn()}});
    }
  }
  if (context.device().capabilities().last_wqe_event) {
    context.PollEventsIfUnattended();
    // Early, late or never: when it does not come, polling the CQ empty around the destruction is
    // all there is.
    (void)co_await qp_.AwaitLastWqe(limit);
  }
}

Task<std::vector<BufferPin>> Link::Destroy() {
  LeaseTable::Remains remains = sender_.leases().TakeAll();
  co_await qp_.Destroy(host_.context().control(), std::move(remains.windows));
  state_ = LinkState::kClosed;
  co_return std::move(remains.pins);
}

}  // namespace verbena::internal
