#include "verbena/transport/link/link.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/device/verbs_status.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/send_buffers.h"
#include "verbena/transport/link/send_chain.h"
#include "verbena/transport/link/wr_chain.h"
#include "verbena/transport/log/check.h"
#include "verbena/transport/log/log.h"
#include "verbena/transport/log/mutant.h"

namespace verbena {
namespace {

constexpr uint32_t kControlSendBytes = sizeof(SendHeader) + ControlFrames::kKinds * FrameBytes(0);

}  // namespace

Link::Link(Endpoint& endpoint, LinkKey key, QpHandle qp, LinkListener& listener, PeerSource& source)
    : endpoint_(endpoint),
      listener_(&listener),
      source_(source),
      qp_(std::move(qp)),
      qpn_(qp_->qp_num),
      issued_(endpoint.credit_pool(), source.credits, endpoint.limits().initial_credits,
              endpoint.limits().max_credits),
      max_inline_bytes_(endpoint.max_inline_bytes()),
      slots_(key, endpoint.limits().send_queue_depth + kDrainMarkers),
      pending_(slots_.count()),
      transfers_(endpoint.transfers(), {.send_queue_slots = slots_.count(),
                                        .slice_bytes = endpoint.limits().bulk.slice_bytes,
                                        .bytes_ahead = endpoint.limits().bulk.bytes_ahead,
                                        .max_reads = 0,
                                        .words = endpoint.atomic_scratch().Of(key.slot)}),
      leases_(endpoint.device(), endpoint.pd(), endpoint.limits().leases) {}

Link::~Link() {
  for (const PendingSend& send : pending_) endpoint_.send_buffers().GiveBack(send.buffer);
}

void Link::SetIdentity(uint32_t psn) { terms_.identity = LinkTerms::IdentityOf(qpn_, psn); }

void Link::MarkOpen(const LinkParameters& parameters, uint32_t max_reads, const std::string& peer,
                    FirstSend first_send) {
  credits_ = SendCredits(parameters.initial_credits);
  transfers_.set_max_reads(max_reads);
  transfers_.set_fences_reads(qp_->context->device->transport_type == IBV_TRANSPORT_IWARP);
  terms_.send_bytes = std::min(parameters.eager_bytes, endpoint_.limits().eager_bytes);
  terms_.features = parameters.features;
  terms_.peer_identity =
      LinkTerms::IdentityOf(parameters.qp_number, parameters.packet_sequence_number);
  terms_.peer = peer;
  liveness_.Begin(endpoint_.executor().now());
  state_ = LinkState::kOpen;
  if (first_send == FirstSend::kAfterReady) held_back_ = HeldBack::kUntilReady;
  if (first_send == FirstSend::kPeers) held_back_ = HeldBack::kUntilHeard;
  // A channel may be quiet for long, and its peer could not even say that it goes away.
  if (first_send == FirstSend::kOurs) Ping();
}

bool Link::FitsPending(size_t body_bytes, uint32_t invalidated) const {
  if (pending_.empty()) return false;
  const PendingSend& send = pending_.back();
  // A SEND ends one key.
  return send.use == SendUse::kFrames && send.bytes + FrameBytes(body_bytes) <= terms_.send_bytes &&
         (invalidated == 0 || send.invalidated == 0);
}

char* Link::Append(const FrameHeader& header, size_t body_bytes, uint32_t invalidated) {
  VERBENA_CHECK(open()) << "a frame for " << peer() << ", state " << state_;
  VERBENA_CHECK(body_bytes <= max_body_bytes())
      << "a body of " << body_bytes << " bytes, at most " << max_body_bytes();
  if (!writers_.empty() && !serving_writer_) return nullptr;
  const bool ahead = pending_.is_group() && PostWritten();
  if (!ahead && !FitsPending(body_bytes, invalidated)) {
    if (!OpenSend()) return nullptr;
  }
  return Place(header, body_bytes, invalidated);
}

[[gnu::always_inline]] inline char* Link::Place(const FrameHeader& header, size_t body_bytes,
                                                uint32_t invalidated) {
  const size_t frame_bytes = FrameBytes(body_bytes);
  PendingSend& send = pending_.back();
  if (invalidated != 0) send.invalidated = invalidated;
  char* frame = endpoint_.send_buffers().data(send.buffer) + send.bytes;
  FrameHeader& stored = *reinterpret_cast<FrameHeader*>(frame);
  stored = header;
  stored.body_bytes = static_cast<uint32_t>(body_bytes);
  // Padding goes out with the frame: it must not be what the buffer held before.
  if (body_bytes % kFrameAlignment != 0 && !VERBENA_MUTANT(kPaddingNotCleared)) {
    std::memset(frame + frame_bytes - kFrameAlignment, 0, kFrameAlignment);
  }
  send.bytes += static_cast<uint32_t>(frame_bytes);
  pending_.CountFrame();
  ++stats_.frames_sent;
  return frame + sizeof(FrameHeader);
}

uint32_t Link::TakeBuffer(SendUse use) {
  if (!SlotsLeft()) return SendBuffers::kNone;
  SendBuffers& buffers = endpoint_.send_buffers();
  if (use != SendUse::kControl) {
    const uint32_t buffer = buffers.Take(held_, source_);
    if (buffer != SendBuffers::kNone || use == SendUse::kFrames) return buffer;
  }
  return kControlSendBytes <= max_inline_bytes_ ? buffers.TakeSpare() : SendBuffers::kNone;
}

bool Link::OpenSend(SendUse use) {
  // A client that never says Ready must not keep the buffers of all others.
  if (held_back_ == HeldBack::kUntilReady && !VERBENA_MUTANT(kBuffersWithoutReady)) [[unlikely]]
    return false;
  const uint32_t buffer = TakeBuffer(use);
  if (buffer == SendBuffers::kNone) {
    LackRoom();
    return false;
  }
  if (use == SendUse::kCredits ? !credits_.TrySpendReserve() : !credits_.TrySpend()) {
    endpoint_.send_buffers().GiveBack(buffer);
    return false;
  }
  ++held_;
  ++source_.held;
  pending_.Add({buffer, sizeof(SendHeader), 0, use, /*invalidated=*/0});
  ScheduleFlush();
  return true;
}

void Link::ScheduleFlush() {
  if (flush_scheduled_) return;
  flush_scheduled_ = true;
  if (!WatchedLink::linked()) endpoint_.WatchLiveness(*this);
  endpoint_.executor().FlushLater(*this, Executor::FlushPriority::kSends);
}

void Link::Flush() {
  if (held_back_ != HeldBack::kNo || refusal_ != 0) [[unlikely]] {
    flush_scheduled_ = false;
    if (refusal_ != 0) PostFailed(refusal_);
    return;
  }
  WrChain ready;
  flushing_ = true;
  lacks_room_ = false;
  const bool moves = this->moves();
  if (moves && open()) PrepareLeases(ready);
  if (open()) {
    AppendDue();
    const bool owes = issued_.ShouldAdvertise() || control_.answer;
    if (pending_.empty() && owes && OpenSend(SendUse::kCredits)) ++stats_.credit_sends;
  }
  if (moves && open()) PrepareTransfers(ready);
  // From here on what is opened or started leaves with another flush: posting gives room back, and
  // a writer that waited for it appends.
  flush_scheduled_ = false;
  if (open()) {
    if (pending_.empty()) {
      Ring(ready);
    } else if (const int error = PostPending(ready); error != 0) {
      // Slots were reserved before the WRs were made: the queue pair is broken.
      PostFailed(error);
    }
  }
  flushing_ = false;
  if (moves && open()) FinishMoves();
}

bool Link::PostAhead(WrChain& ready) {
  const int error = PostPending(ready);
  if (error != 0) PostFailed(error);
  return error == 0;
}

void Link::SendNow() {
  alone_ = false;
  const bool one_frame = pending_.size() == 1 && pending_.back().frames == 1;
  if (!one_frame || !open() || held_back_ != HeldBack::kNo || control_.any_due() || moves() ||
      !endpoint_.MaySendNow()) {
    return;
  }
  FlushHook::Unlink();
  flush_scheduled_ = false;
  WrChain ready;
  refusal_ = PostPending(ready);
  if (refusal_ != 0) ScheduleFlush();
}

// How many frames are worth a SEND of their own while the turn goes on: half of the calls in
// flight, so that each side works on one half, but kMaxEarlyFrames at most. The side that answers
// keeps groups as large as they come, to that bound.
uint32_t Link::EarlyFrames() const {
  const uint32_t calls = listener_->calls_in_flight();
  if (calls == 0) return kMaxEarlyFrames;
  return std::clamp(calls / 2, kMinEarlyFrames, kMaxEarlyFrames);
}

bool Link::IsGroup() {
  pending_.set_group(EarlyFrames());
  return pending_.is_group();
}

// Nothing else of this link is due before its SENDs, nobody waits for what they take, and the
// receives are posted whose credits they return. Not inside a flush: what it has prepared holds
// earlier positions of the send queue, and a completion of a later one would prove its end.
bool Link::MayPostEarly() {
  if (VERBENA_MUTANT(kConvoy)) return false;
  if (flushing_ && !VERBENA_MUTANT(kEarlySendOvertakes)) return false;
  return open() && held_back_ == HeldBack::kNo && refusal_ == 0 && !moves() &&
         endpoint_.PrepareEarlySend();
}

// Makes an empty SEND the last one and posts those before it, whose frames are all written by now.
// False when that must wait.
bool Link::PostWritten() {
  if (!IsGroup() || !MayPostEarly()) return false;
  const PendingSend& last = pending_.back();
  const bool is_empty = last.frames == 0 && last.use == SendUse::kFrames;
  if (!is_empty && !OpenSend()) return false;
  WrChain ready;
  refusal_ = PostPending(ready, /*kept=*/1);
  return true;
}

// Posts what is pending.
void Link::PostEarly() {
  if (!IsGroup() || !MayPostEarly()) return;
  WrChain ready;
  refusal_ = PostPending(ready);
}

bool Link::Ring(WrChain& ready) {
  if (ready.empty()) return true;
  const int error = ready.Post(qp_.get());
  ++stats_.doorbells;
  leases_.Posted();
  if (error != 0) PostFailed(error);
  return error == 0;
}

// Control frames pass frames that wait, and those that find no room stay due: they come before
// frames that wait when there is room, and the next turn in which something arrives tries again.
void Link::AppendDue() {
  if (control_.pong) AppendControl(FrameKind::kPong);
  if (control_.ping) AppendControl(FrameKind::kPing);
  if (control_.recall) AppendControl(FrameKind::kRecall);
}

void Link::AppendControl(FrameKind kind) {
  FrameHeader header;
  header.kind = kind;
  if (kind == FrameKind::kRecall) header.argument = issued_.recall_limit();
  const bool joins = !pending_.empty() && (pending_.back().use == SendUse::kControl ||
                                           FitsPending(0, /*invalidated=*/0));
  if (!joins && !OpenSend() && !OpenSend(SendUse::kControl)) return;
  Place(header, 0, /*invalidated=*/0);
  ++control_.count;
  if (kind == FrameKind::kPong) control_.pong = false;
  if (kind == FrameKind::kPing) control_.ping = false;
  if (kind == FrameKind::kRecall) {
    control_.recall = false;
    ++stats_.recalls;
  }
}

void Link::PrepareHeader(const PendingSend& send) {
  SendHeader header;
  header.credits_issued = issued_.total();
  header.credits_returned = credits_.returned();
  header.reserve_seen = issued_.reserve_seen();
  header.frame_count = send.frames;
  if (send.use == SendUse::kCredits) header.flags |= kSendSpendsReserve;
  // The SEND that spends the last credit says so too: without another credit, nothing could be said
  // later.
  if (!writers_.empty() || credits_.available() == 0) header.flags |= kSendStarved;
  std::memcpy(endpoint_.send_buffers().data(send.buffer), &header, sizeof(header));
}

int Link::PostPending(WrChain& ready, size_t kept) {
  issued_.Refill();
  issued_.MarkAdvertised();
  control_.answer = false;
  SendBuffers& buffers = endpoint_.send_buffers();
  SendChain& chain = endpoint_.send_chain();
  const size_t count = pending_.size() - kept;
  for (size_t i = 0; i < count; ++i) {
    const PendingSend& send = pending_[i];
    PrepareHeader(send);
    const bool is_inline = send.bytes <= max_inline_bytes_;
    const uint32_t position = slots_.posted() + static_cast<uint32_t>(i);
    slots_.Hold(position, is_inline ? SendBuffers::kNone : send.buffer);
    const bool last = i + 1 == count && kept == 0;
    const bool signal = slots_.CountSend(!is_inline, last, !writers_.empty() || lacks_room_);
    chain.Set(
        i, slots_.IdOf(position).Pack(), buffers.data(send.buffer), send.bytes,
        transfers_.fence() | (is_inline ? IBV_SEND_INLINE : 0) | (signal ? IBV_SEND_SIGNALED : 0),
        send.invalidated);
    stats_.bytes_sent += send.bytes;
  }
  const int error = chain.Post(qp_.get(), count, ready);
  leases_.Posted();
  stats_.sends += count;
  ++stats_.doorbells;
  // Counts a refused chain too: the device may have taken some of its WRs, and reads their buffers
  // until the queue pair has drained.
  slots_.Advance(static_cast<uint32_t>(count));
  uint32_t released = 0;
  for (size_t i = 0; i < count; ++i) {
    if (pending_[i].bytes > max_inline_bytes_) continue;
    buffers.GiveBack(pending_[i].buffer);
    ++released;
  }
  CountReleased(released);
  pending_.Clear(kept != 0);
  endpoint_.NoteSendRoom(source_);
  return error;
}

void Link::OnSend(const char* bytes, size_t size, uint32_t invalidated) {
  ++stats_.receives;
  stats_.bytes_received += size;
  liveness_.Hear();
  if (held_back_ == HeldBack::kUntilHeard) [[unlikely]] {
    held_back_ = HeldBack::kNo;
    ScheduleFlush();
  }
  if (invalidated != 0) leases_.OnInvalidated(invalidated);
  FrameParser parser(bytes, size);
  if (parser.fault() == WireFault::kNone) {
    if (absl::Status status = OnHeader(parser.header()); !status.ok()) {
      Close(status);
      return;
    }
  }
  while (open() && parser.Next()) {
    ++stats_.frames_received;
    const FrameHeader& frame = parser.frame();
    const bool is_control = frame.kind == FrameKind::kPing || frame.kind == FrameKind::kPong ||
                            frame.kind == FrameKind::kRecall;
    alone_ = parser.at_last() && endpoint_.handles_one_completion();
    absl::Status status =
        is_control ? OnControlFrame(frame) : listener_->OnFrame(*this, frame, parser.body());
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
  if (!writers_.empty()) WakeWriters();
  if (pending_.is_group() && endpoint_.handles_more_completions()) PostEarly();
  if (issued_.ShouldAdvertise() || control_.pong || control_.recall) ScheduleFlush();
}

absl::Status Link::OnHeader(const SendHeader& header) {
  absl::Status status = issued_.OnSend((header.flags & kSendSpendsReserve) != 0);
  if (!status.ok()) return status;
  const bool recalled = issued_.recalled();
  status = issued_.OnReturned(header.credits_returned);
  if (!status.ok()) return status;
  if (recalled && !issued_.recalled()) endpoint_.NoteRecallAnswered(*this);
  status = credits_.OnHeader(header.credits_issued, header.reserve_seen);
  if (!status.ok()) return status;
  if ((header.flags & kSendStarved) != 0) endpoint_.GrowWindow(*this);
  return status;
}

absl::Status Link::OnControlFrame(const FrameHeader& frame) {
  if (frame.body_bytes != 0) {
    return absl::InvalidArgumentError(
        fmt::format("the peer sent a control frame with {} bytes", frame.body_bytes));
  }
  ++control_.count;
  if (frame.kind == FrameKind::kPing) control_.pong = true;
  if (frame.kind == FrameKind::kRecall) credits_.GiveBackWithin(frame.argument);
  // The answer must travel now, since the credits count as free only when it has.
  if (frame.kind == FrameKind::kRecall) control_.answer = !VERBENA_MUTANT(kRecallAnswerForgotten);
  if (frame.kind != FrameKind::kPong) ScheduleFlush();
  return absl::OkStatus();
}

void Link::WakeWriters() {
  // Frames that wait may go on taking each credit that comes.
  if (control_.any_due() && !writers_.empty() && !serving_writer_ && open() &&
      !VERBENA_MUTANT(kWritersPassControl)) {
    AppendDue();
  }
  while (!writers_.empty() && open() && held_back_ != HeldBack::kUntilReady) {
    SendWaiter* waiter = writers_.Front();
    if (!FitsPending(waiter->body_bytes, waiter->invalidated) && !OpenSend()) {
      return;
    }
    waiter->IntrusiveNode<SendWaiter>::Unlink();
    serving_writer_ = true;  // the one frame that may pass those who still wait
    waiter->OnWritable(*this);
    serving_writer_ = false;
  }
}

void Link::OnSendCompletion(const ibv_wc& completion, uint16_t position) {
  if (!FreeSlots(position)) {
    CompletedUnposted(position);
    return;
  }
  if (state_ == LinkState::kDraining) {
    if (slots_.in_flight() == 0) drained_.Set();
    return;
  }
  if (completion.status != IBV_WC_SUCCESS) {
    Close(WcStatus(completion, peer()));
    return;
  }
  transfers_.Completed(slots_.completed());
  leases_.Completed(slots_.completed());
  if (!open()) return;
  WakeWriters();
  if (!lease_waiters_.empty()) WakeLeaseWaiters();
  if (transfers_.CanGo() || leases_.work_due() || lacks_room_) ScheduleFlush();
}

bool Link::FreeSlots(uint16_t position) {
  uint32_t released = 0;
  const bool is_posted = slots_.Complete(position, [this, &released](uint32_t buffer) {
    endpoint_.send_buffers().GiveBack(buffer);
    ++released;
  });
  if (released != 0) {
    CountReleased(released);
    endpoint_.NoteSendRoom(source_);
  }
  return is_posted;
}

void Link::PostDrainMarker() {
  ibv_send_wr marker = {};
  marker.wr_id = slots_.IdOf(slots_.posted()).Pack();
  marker.opcode = IBV_WR_SEND;
  marker.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* refused = nullptr;
  if (const int error = ibv_post_send(qp_.get(), &marker, &refused); error != 0) {
    Log(LogLevel::kWarning,
        ErrnoStatus(error, fmt::format("draining QPN {:#x}", qpn())).ToString());
    return;
  }
  slots_.Advance(1);
}

void Link::PostFailed(int error) {
  Close(ErrnoStatus(error, fmt::format("ibv_post_send to {}", peer())));
}

void Link::Misread(WireFault fault, size_t bytes) {
  Close(absl::InvalidArgumentError(
      fmt::format("the peer sent {} ({} bytes)", WireFaultName(fault), bytes)));
}

void Link::CompletedUnposted(uint16_t position) {
  Close(absl::InternalError(fmt::format("a completion for send {} of {}, which is not posted",
                                        position, slots_.posted())));
}

void Link::Close(const absl::Status& reason) {
  if (state_ != LinkState::kOpen && state_ != LinkState::kConnecting) return;
  const bool was_open = open();
  state_ = LinkState::kDraining;
  while (writers_.PopFront() != nullptr) {
  }
  for (const PendingSend& send : pending_) endpoint_.send_buffers().GiveBack(send.buffer);
  CountReleased(static_cast<uint32_t>(pending_.size()));
  pending_.Clear(/*kept=*/false);
  while (LeaseWaiter* waiter = lease_waiters_.PopFront()) waiter->OnLinkLost();
  leases_.Lose();
  if (was_open) listener_->OnLinkDown(*this, reason);
  endpoint_.StartTeardown(*this, reason);
  endpoint_.NoteSendRoom(source_);
}

}  // namespace verbena
