#include "verbena/transport/link/link.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/qp.h"
#include "verbena/transport/link/sender.h"

namespace verbena::internal {
namespace {

Task<absl::Status> WaitFor(Event& event) { co_return co_await event.Wait(); }

}  // namespace

// Link and its LinkSender: whether the peer is alive, answers recalls, and whether the link is
// used.

bool Link::CheckLiveness(TimePoint now) {
  if (!open()) return false;
  const bool heard = liveness_.Check(now);
  absl::Status status = sender_.leases().table().CheckGrace(now);
  if (status.ok()) status = sender_.CheckRecall();
  if (status.ok()) status = CheckAcknowledged();
  if (status.ok()) status = CheckTransfers();
  if (!status.ok()) {
    Close(status);
    return false;
  }
  if (leases().work_due()) sender_.ScheduleFlush();
  const Duration interval = endpoint_.limits().ping_interval;
  // One-sided operations on the peer's memory may wait for the peer as well, and coroutines for
  // them.
  const bool expects =
      listener_->ExpectsFrames() || sender_.transfers().outstanding() || KeepAliveDue(now);
  if (!expects || liveness_.Silence(now) < interval) {
    liveness_.ForgetSilence();
    return expects || heard || sender_.flush_scheduled() || issued().recalled() ||
           liveness_.awaits_acknowledgement() || leases().quarantined_bytes() != 0;
  }
  if (ping_is_held_up()) return true;
  if (liveness_.CountSilent()) {
    Close(absl::UnavailableError(fmt::format(
        "{} has not answered a PING for {} ms (process stopped, or host unreachable)", peer(),
        std::chrono::duration_cast<std::chrono::milliseconds>(liveness_.Silence(now)).count())));
    return false;
  }
  Ping();
  return true;
}

bool Link::KeepAliveDue(TimePoint now) const {
  const Duration interval = endpoint_.limits().keep_alive_interval;
  return interval != Duration::zero() && liveness_.Silence(now) >= interval;
}

void Link::CheckUnwatched(TimePoint now) {
  // A link that is watched is checked anyway.
  if (!open() || WatchedLink::linked()) return;
  // Sending begins the watch, but a call may wait for its client before it has sent anything.
  bool is_due = listener_->ExpectsFrames();
  if (endpoint_.limits().keep_alive_interval != Duration::zero()) {
    (void)liveness_.Check(now);
    is_due = is_due || KeepAliveDue(now);
  }
  if (is_due) endpoint_.WatchLiveness(*this);
}

void Link::CheckIdle(TimePoint now) {
  const Duration timeout = endpoint_.limits().idle_timeout;
  if (!open() || timeout == Duration::zero()) return;
  // Control frames are not use: the checks of either side could cause them for ever.
  const uint64_t control = sender_.control_count();
  const uint64_t traffic =
      stats().frames_sent + stats().frames_received - control + stats().transfers + stats().atomics;
  const bool in_use = sender_.transfers().outstanding() || listener_->InUse(*this);
  if (liveness_.IdleTime(now, traffic, in_use) < timeout) return;
  liveness_.RestartIdleTime(now);
  if (!listener_->OnIdle(*this)) return;
  Close(absl::CancelledError(
      fmt::format("nothing has travelled for {} s",
                  std::chrono::duration_cast<std::chrono::seconds>(timeout).count())));
}

absl::Status LinkSender::CheckRecall() {
  if (!issued_.recalled()) return absl::OkStatus();
  if (control_.recall && OthersHoldBuffers()) return absl::OkStatus();
  absl::Status status = issued_.CheckRecall(control_.recall);
  if (status.ok() && !issued_.recalled()) NoteRecallAnswered();
  return status;
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

void LinkSender::Recall() {
  issued_.Recall();
  control_.recall = true;
  ScheduleFlush();
}

// Link: its teardown, from the queue pair's move to ERR to its destruction. Each wait is bounded:
// some devices never flush, or never send the event.

Task<void> Link::Drain(DeviceContext& context, TurnPacer& pacer) {
  co_await qp_.MoveToError(context.control(), context.device());
  (void)co_await pacer.Pass();
  const TimePoint limit =
      SaturatingAdd(endpoint_.executor().now(), endpoint_.limits().teardown_timeout);
  LinkSendQueue& sends = sender_.queue();
  // A device that completes no marker in ERR (siw) flushed the posted WRs when the queue pair moved
  // there; destroying the queue pair ends the rest.
  if (sends.slots().in_flight() > 0 && context.device().capabilities().flushes_in_error) {
    sends.PostDrainMarker();
    absl::Status drained = co_await qp_.AwaitDrained(limit);
    if (!drained.ok()) {
      static thread_local ThrottledLog log({.lines = 1, .interval = std::chrono::seconds(10)});
      log.Write(LogLevel::kWarning, endpoint_.executor().now(),
                fmt::format("QPN {:#x}: {} of the posted WRs did not flush in time", qpn(),
                            sends.slots().in_flight()));
    }
  }
  if (context.device().capabilities().last_wqe_event) {
    context.PollEventsIfUnattended();
    // Early, late or never: when it does not come, polling the CQ empty around the destruction is
    // all there is.
    (void)co_await qp_.AwaitLastWqe(limit);
  }
}

Task<std::vector<BufferPin>> Link::Destroy(ControlPool& control) {
  LeaseTable::Remains remains = sender_.leases().table().TakeAll();
  co_await qp_.Destroy(control, std::move(remains.windows));
  state_ = LinkState::kClosed;
  co_return std::move(remains.pins);
}

Task<void> LinkQp::MoveToError(ControlPool& control, Device& device) {
  stream_.Close();
  ibv_qp* const qp = qp_.get();
  // Until the queue pair is in ERR, the peer may use up receives of the endpoint: so this goes
  // ahead of others' destructions.
  absl::Status status = co_await control.Finish(
      ControlKind::kToError, qp, [&device, qp] { return MoveQpToError(device, qp); });
  if (!status.ok()) Log(LogLevel::kWarning, status.ToString());
  co_await stream_.AwaitUnread();
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

Link::Link(Endpoint& endpoint, LinkKey key, QpHandle qp, LinkListener& listener, PeerSource& source)
    : endpoint_(endpoint),
      listener_(&listener),
      qp_(std::move(qp)),
      sender_(*this, endpoint, qp_.get(), key, source) {}

void Link::SetIdentity(uint32_t psn) { terms_.identity = LinkTerms::IdentityOf(qpn(), psn); }

void Link::MarkOpen(const LinkParameters& parameters, uint32_t max_reads, const std::string& peer,
                    FirstSend first_send) {
  sender_.Open(parameters.initial_credits,
               std::min(parameters.eager_bytes, endpoint_.limits().eager_bytes), first_send);
  sender_.transfers().set_max_reads(max_reads);
  sender_.transfers().set_fences_reads(qp_.is_iwarp());
  terms_.features = parameters.features;
  terms_.peer_identity =
      LinkTerms::IdentityOf(parameters.qp_number, parameters.packet_sequence_number);
  terms_.peer = peer;
  terms_.methods = parameters.methods;
  terms_.incarnation = parameters.incarnation;
  liveness_.Begin(endpoint_.executor().now());
  state_ = LinkState::kOpen;
  // A channel may be quiet for long, and its peer could not even say that it goes away.
  if (first_send == FirstSend::kOurs) Ping();
}

void Link::OnSend(const char* bytes, size_t size, uint32_t invalidated) {
  LinkStats& stats = sender_.stats();
  ++stats.receives;
  stats.bytes_received += size;
  liveness_.Hear();
  sender_.OnHeard();
  if (invalidated != 0) sender_.leases().table().OnInvalidated(invalidated);
  FrameParser parser(bytes, size);
  if (parser.fault() == WireFault::kNone) {
    if (absl::Status status = sender_.OnHeader(parser.header()); !status.ok()) {
      Close(status);
      return;
    }
  }
  while (open() && parser.Next()) {
    ++stats.frames_received;
    const FrameHeader& frame = parser.frame();
    const bool is_control = frame.kind == FrameKind::kPing || frame.kind == FrameKind::kPong ||
                            frame.kind == FrameKind::kRecall;
    alone_ = parser.at_last() && endpoint_.handles_one_completion();
    absl::Status status = is_control ? sender_.OnControlFrame(frame)
                                     : listener_->OnFrame(*this, frame, parser.body());
    alone_ = false;
    if (!status.ok()) {
      Close(status);
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
  Close(absl::InvalidArgumentError(
      fmt::format("the peer sent {} ({} bytes)", WireFaultName(fault), bytes)));
}

void Link::Close(const absl::Status& reason) {
  if (state_ != LinkState::kOpen && state_ != LinkState::kConnecting) return;
  const bool was_open = open();
  state_ = LinkState::kDraining;
  RecallableLink::Unlink();
  sender_.Close();
  if (was_open) listener_->OnLinkDown(*this, reason);
  WatchedLink::Unlink();
  endpoint_.StartTeardown(*this, reason);
  endpoint_.NoteSendRoom(source());
}

}  // namespace verbena::internal
