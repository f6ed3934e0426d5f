#include "verbena/transport/link/link.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/device/verbs_status.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/send_buffers.h"
#include "verbena/transport/link/send_chain.h"
#include "verbena/transport/link/wr_chain.h"
#include "verbena/transport/link/wr_id.h"
#include "verbena/transport/log/log.h"

namespace verbena {
namespace {

uint64_t IdentityOf(uint32_t qpn, uint32_t psn) { return uint64_t{qpn} << 24 | psn; }

}  // namespace

Link::Link(Endpoint& endpoint, LinkKey key, QpHandle qp, FrameSink& sink)
    : endpoint_(endpoint),
      key_(key),
      sink_(&sink),
      qp_(std::move(qp)),
      qpn_(qp_->qp_num),
      grants_(endpoint.credit_pool(), endpoint.limits().initial_credits,
              endpoint.limits().max_credits),
      max_inline_bytes_(endpoint.max_inline_bytes()),
      slot_count_(endpoint.limits().send_queue_depth + kDrainMarkers),
      pending_(slot_count_),
      slots_(std::bit_ceil(slot_count_), SendBuffers::kNone),
      one_sided_(endpoint.transfers(), {.send_queue_slots = slot_count_,
                                        .max_wr_bytes = endpoint.max_wr_bytes(),
                                        .max_reads = 0,
                                        .words = endpoint.atomic_landings().Of(key.slot)}),
      leases_(endpoint.device(), endpoint.pd(), endpoint.limits().leases) {}

Link::~Link() {
  for (const PendingSend& send : pending_) endpoint_.send_buffers().GiveBack(send.buffer);
}

void Link::SetIdentity(uint32_t psn) { identity_ = IdentityOf(qpn_, psn); }

void Link::MarkOpen(const LinkParameters& parameters, uint32_t max_reads, const std::string& peer,
                    FirstSend first_send) {
  credits_ = SendCredits(parameters.credit_grant);
  one_sided_.set_max_reads(max_reads);
  one_sided_.set_fences_reads(qp_->context->device->transport_type == IBV_TRANSPORT_IWARP);
  send_bytes_ = std::min(parameters.eager_bytes, endpoint_.limits().eager_bytes);
  features_ = parameters.features;
  peer_identity_ = IdentityOf(parameters.qp_number, parameters.packet_sequence_number);
  peer_ = peer;
  last_heard_ = endpoint_.executor().now();
  state_ = LinkState::kOpen;
  held_back_ = first_send == FirstSend::kPeers;
  if (first_send == FirstSend::kOurs) {
    // A channel may be quiet for long, and its peer could not even say that it goes away.
    ping_due_ = true;
    ScheduleFlush();
  }
}

bool Link::FitsPending(size_t body_bytes, uint32_t invalidated) const {
  if (pending_.empty()) return false;
  const PendingSend& send = pending_.back();
  // A SEND ends one key.
  return !send.spends_reserve && send.bytes + FrameBytes(body_bytes) <= send_bytes_ &&
         (invalidated == 0 || send.invalidated == 0);
}

char* Link::Append(const FrameHeader& header, size_t body_bytes, uint32_t invalidated) {
  if (!writers_.empty() && !serving_writer_) return nullptr;
  const size_t frame_bytes = FrameBytes(body_bytes);
  if (!FitsPending(body_bytes, invalidated)) {
    if (!OpenSend(/*spends_reserve=*/false)) return nullptr;
  }
  PendingSend& send = pending_.back();
  if (invalidated != 0) send.invalidated = invalidated;
  char* frame = endpoint_.send_buffers().data(send.buffer) + send.bytes;
  FrameHeader& stored = *reinterpret_cast<FrameHeader*>(frame);
  stored = header;
  stored.body_bytes = static_cast<uint32_t>(body_bytes);
  // Padding goes out with the frame: it must not be what the buffer held before.
  if (body_bytes % kFrameAlignment != 0) {
    std::memset(frame + frame_bytes - kFrameAlignment, 0, kFrameAlignment);
  }
  send.bytes += static_cast<uint32_t>(frame_bytes);
  ++send.frames;
  ++stats_.frames_sent;
  return frame + sizeof(FrameHeader);
}

void Link::AwaitWritable(SendWaiter& waiter) {
  if (writers_.empty()) {
    if (credits_.available() == 0) {
      ++stats_.credit_waits;
    } else {
      ++stats_.slot_waits;
      endpoint_.AwaitSendRoom(*this);
    }
  } else {
    ++stats_.credit_waits;
  }
  writers_.PushBack(waiter);
  ScheduleFlush();
}

bool Link::OpenSend(bool spends_reserve) {
  if (!SlotsLeft()) return false;
  const uint32_t buffer = endpoint_.send_buffers().Take();
  if (buffer == SendBuffers::kNone) return false;
  if (spends_reserve ? !credits_.TrySpendReserve() : !credits_.TrySpend()) {
    endpoint_.send_buffers().GiveBack(buffer);
    return false;
  }
  pending_.PushBack({buffer, sizeof(SendHeader), 0, spends_reserve, /*invalidated=*/0});
  ScheduleFlush();
  return true;
}

void Link::ScheduleFlush() {
  if (flush_scheduled_) return;
  flush_scheduled_ = true;
  endpoint_.executor().FlushLater(*this, Executor::FlushPriority::kSends);
}

void Link::Flush() {
  if (held_back_ || refusal_ != 0) [[unlikely]] {
    flush_scheduled_ = false;
    if (refusal_ != 0) PostFailed(refusal_);
    return;
  }
  WrChain ready;
  const bool moves = this->moves();
  if (moves && open()) PrepareLeases(ready);
  if (moves && open()) PrepareTransfers(ready);
  if (open()) {
    if (pong_due_) AppendControl(FrameKind::kPong);
    if (ping_due_) AppendControl(FrameKind::kPing);
    if (recall_due_) AppendControl(FrameKind::kRecall);
    if (pending_.empty() && grants_.ShouldAdvertise() && OpenSend(/*spends_reserve=*/true)) {
      ++stats_.credit_sends;
    }
  }
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
  if (moves && open()) FinishMoves();
}

void Link::SendNow() {
  alone_ = false;
  const bool one_frame = pending_.size() == 1 && pending_.back().frames == 1;
  const bool control_due = pong_due_ || ping_due_ || recall_due_;
  if (!one_frame || !open() || held_back_ || control_due || moves() || !endpoint_.MaySendNow()) {
    return;
  }
  FlushHook::Unlink();
  flush_scheduled_ = false;
  WrChain ready;
  refusal_ = PostPending(ready);
  if (refusal_ != 0) ScheduleFlush();
}

bool Link::Ring(WrChain& ready) {
  if (ready.empty()) return true;
  const int error = ready.Post(qp_.get());
  ++stats_.doorbells;
  leases_.Posted();
  if (error != 0) PostFailed(error);
  return error == 0;
}

// Control frames that find no room stay due: the next turn in which something arrives tries again.
void Link::AppendControl(FrameKind kind) {
  FrameHeader header;
  header.kind = kind;
  if (kind == FrameKind::kRecall) header.argument = grants_.surplus();
  if (Append(header, 0) == nullptr) return;
  if (kind == FrameKind::kPong) pong_due_ = false;
  if (kind == FrameKind::kPing) ping_due_ = false;
  if (kind == FrameKind::kRecall) {
    recall_due_ = false;
    ++stats_.recalls;
  }
}

void Link::PrepareHeader(const PendingSend& send) {
  SendHeader header;
  header.credits_granted = grants_.granted();
  header.credits_returned = credits_.returned();
  header.reserve_seen = grants_.reserve_seen();
  header.frame_count = send.frames;
  if (send.spends_reserve) header.flags |= kSendSpendsReserve;
  // Said with the last credit too: without another, nothing could be said later.
  if (!writers_.empty() || credits_.available() == 0) header.flags |= kSendStarved;
  std::memcpy(endpoint_.send_buffers().data(send.buffer), &header, sizeof(header));
}

int Link::PostPending(WrChain& ready) {
  grants_.Refill();
  grants_.MarkAdvertised();
  SendBuffers& buffers = endpoint_.send_buffers();
  SendChain& chain = endpoint_.send_chain();
  const size_t count = pending_.size();
  for (size_t i = 0; i < count; ++i) {
    const PendingSend& send = pending_[i];
    PrepareHeader(send);
    const bool is_inline = send.bytes <= max_inline_bytes_;
    const uint32_t position = posted_ + static_cast<uint32_t>(i);
    SlotAt(position) = is_inline ? SendBuffers::kNone : send.buffer;
    const bool signal =
        ++since_signal_ >= kSignalInterval || (i + 1 == count && (!is_inline || !writers_.empty()));
    if (signal) since_signal_ = 0;
    chain.Set(
        i, WrIdOf(position).Pack(), buffers.data(send.buffer), send.bytes,
        one_sided_.fence() | (is_inline ? IBV_SEND_INLINE : 0) | (signal ? IBV_SEND_SIGNALED : 0),
        send.invalidated);
    stats_.bytes_sent += send.bytes;
  }
  const int error = chain.Post(qp_.get(), count, ready);
  leases_.Posted();
  stats_.sends += count;
  ++stats_.doorbells;
  // Of a chain that was refused, too: the device may have taken some, and reads their buffers until
  // the queue pair has drained.
  posted_ += static_cast<uint32_t>(count);
  for (const PendingSend& send : pending_) {
    if (send.bytes <= max_inline_bytes_) buffers.GiveBack(send.buffer);
  }
  pending_.clear();
  endpoint_.NoteSendRoom();
  return error;
}

void Link::OnSend(const char* bytes, size_t size, uint32_t invalidated) {
  ++stats_.receives;
  stats_.bytes_received += size;
  heard_ = true;
  if (held_back_) {
    held_back_ = false;
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
        is_control ? OnControlFrame(frame) : sink_->OnFrame(*this, frame, parser.body());
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
  if (grants_.ShouldAdvertise() || pong_due_ || recall_due_) ScheduleFlush();
}

absl::Status Link::OnHeader(const SendHeader& header) {
  absl::Status status = grants_.OnSend((header.flags & kSendSpendsReserve) != 0);
  if (!status.ok()) return status;
  status = grants_.OnReturned(header.credits_returned);
  if (!status.ok()) return status;
  status = credits_.OnHeader(header.credits_granted, header.reserve_seen);
  if (!status.ok()) return status;
  if ((header.flags & kSendStarved) != 0) endpoint_.GrowWindow(grants_);
  return status;
}

absl::Status Link::OnControlFrame(const FrameHeader& frame) {
  if (frame.body_bytes != 0) {
    return absl::InvalidArgumentError(
        fmt::format("the peer sent a control frame with {} bytes", frame.body_bytes));
  }
  if (frame.kind == FrameKind::kPing) pong_due_ = true;
  if (frame.kind == FrameKind::kRecall) credits_.GiveBack(frame.argument);
  if (frame.kind == FrameKind::kRecall && pending_.empty()) {
    // The answer must travel now, since the credits count as free only when it has.
    if (OpenSend(/*spends_reserve=*/true)) ++stats_.credit_sends;
  }
  if (frame.kind != FrameKind::kPong) ScheduleFlush();
  return absl::OkStatus();
}

void Link::WakeWriters() {
  while (!writers_.empty() && open()) {
    SendWaiter* waiter = writers_.Front();
    if (!FitsPending(waiter->body_bytes, waiter->invalidated) &&
        !OpenSend(/*spends_reserve=*/false)) {
      if (credits_.available() != 0) endpoint_.AwaitSendRoom(*this);
      return;
    }
    waiter->IntrusiveNode<SendWaiter>::Unlink();
    serving_writer_ = true;  // the one frame that may pass those who still wait
    waiter->OnWritable(*this);
    serving_writer_ = false;
  }
}

void Link::OnSendCompletion(const ibv_wc& completion, uint16_t position) {
  if (!ReleasePosition(position)) {
    CompletedUnposted(position);
    return;
  }
  if (state_ == LinkState::kDraining) {
    if (InFlight() == 0) drained_.Set();
    return;
  }
  if (completion.status != IBV_WC_SUCCESS) {
    Close(WcStatus(completion, peer_));
    return;
  }
  one_sided_.Completed(completed_);
  leases_.Completed(completed_);
  if (!open()) return;
  WakeWriters();
  if (!lease_waiters_.empty()) WakeLeaseWaiters();
  if (one_sided_.CanGo() || leases_.work_due()) ScheduleFlush();
}

// Frees the send queue slots up to and including `position`. A completion proves all earlier ones:
// the QP's send queue completes in order (InfiniBand specification, volume 1, 10.8.5).
bool Link::ReleasePosition(uint16_t position) {
  const uint32_t ahead = (position - completed_) & WrId::kPositionMask;
  if (ahead >= InFlight()) return false;
  for (uint32_t i = 0; i <= ahead; ++i, ++completed_) {
    uint32_t& buffer = SlotAt(completed_);
    if (buffer != SendBuffers::kNone) {
      endpoint_.send_buffers().GiveBack(buffer);
      buffer = SendBuffers::kNone;
      endpoint_.NoteSendRoom();
    }
  }
  return true;
}

bool Link::IsQuieterThan(const Link& other) const {
  return heard_ != other.heard_ ? other.heard_ : last_heard_ < other.last_heard_;
}

void Link::CheckLiveness(TimePoint now) {
  if (!open()) return;
  if (heard_) {
    heard_ = false;
    last_heard_ = now;
  }
  if (absl::Status status = leases_.CheckGrace(now); !status.ok()) {
    Close(status);
    return;
  }
  if (leases_.work_due()) ScheduleFlush();
  const Duration interval = endpoint_.limits().ping_interval;
  // What is done to the peer's memory may wait for the peer as well, and coroutines for that.
  const bool expects = sink_->ExpectsFrames() || one_sided_.outstanding();
  if (!expects || now - last_heard_ < interval) {
    silent_checks_ = 0;
    return;
  }
  // Counted in checks, not in time alone: a host that was suspended itself must not blame its peer.
  if (++silent_checks_ > 6) {
    Close(absl::UnavailableError(fmt::format(
        "{} has not answered a PING for {} ms (process stopped, or host unreachable)", peer_,
        std::chrono::duration_cast<std::chrono::milliseconds>(now - last_heard_).count())));
    return;
  }
  ping_due_ = true;
  ScheduleFlush();
}

bool Link::Recall() {
  if (!open() || grants_.surplus() == 0 || recall_due_) return false;
  recall_due_ = true;
  ScheduleFlush();
  return true;
}

void Link::PostDrainMarker() {
  ibv_send_wr marker = {};
  marker.wr_id = WrIdOf(posted_).Pack();
  marker.opcode = IBV_WR_SEND;
  marker.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* refused = nullptr;
  if (const int error = ibv_post_send(qp_.get(), &marker, &refused); error != 0) {
    Log(LogLevel::kWarning,
        ErrnoStatus(error, fmt::format("draining QPN {:#x}", qpn())).ToString());
    return;
  }
  ++posted_;
}

void Link::PostFailed(int error) {
  Close(ErrnoStatus(error, fmt::format("ibv_post_send to {}", peer_)));
}

void Link::Misread(WireFault fault, size_t bytes) {
  Close(absl::InvalidArgumentError(
      fmt::format("the peer sent {} ({} bytes)", WireFaultName(fault), bytes)));
}

void Link::CompletedUnposted(uint16_t position) {
  Close(absl::InternalError(
      fmt::format("a completion for send {} of {}, which is not posted", position, posted_)));
}

void Link::Close(const absl::Status& reason) {
  if (state_ != LinkState::kOpen && state_ != LinkState::kConnecting) return;
  const bool was_open = open();
  state_ = LinkState::kDraining;
  while (writers_.PopFront() != nullptr) {
  }
  for (const PendingSend& send : pending_) endpoint_.send_buffers().GiveBack(send.buffer);
  pending_.clear();
  while (LeaseWaiter* waiter = lease_waiters_.PopFront()) waiter->OnLinkLost();
  leases_.Lose();
  if (was_open) sink_->OnLinkDown(*this, reason);
  endpoint_.StartTeardown(*this, reason);
}

}  // namespace verbena
