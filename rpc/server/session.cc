#include "verbena/rpc/server/session.h"

#include <chrono>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/status.h"

namespace verbena::internal {

ServerSession::ServerSession(Owner& owner, ServerState& state, CallPool& calls,
                             std::shared_ptr<ServerClient> client, std::string peer,
                             uint64_t number)
    : CallLink(std::move(client), std::move(peer), state.limits().response_grace),
      owner_(owner),
      state_(state),
      calls_(calls),
      number_(number),
      grants_(state.shared_receive_holders(), *client_) {}

ServerSession::~ServerSession() {
  VERBENA_CHECK(active_.empty()) << "a call of " << peer_ << " still runs";
  VERBENA_CHECK(waits_ == 0) << waits_ << " calls still wait for " << peer_;
  StopRefusalTimer();
}

absl::Status ServerSession::OnFrame(Link& link, const FrameHeader& frame, const char* body) {
  link_ = &link;
  if (frame.kind != FrameKind::kRequest) return OnOtherFrame(link, frame, body);
  if (frame.flags != 0 || by_slot_.Find(frame.call_slot) != nullptr) [[unlikely]]
    return OnRequest(frame, body);
  ServerCall* call = calls_.Admit(frame.method, Streams::kNone, *client_);
  if (call == nullptr) [[unlikely]]
    return OnRequest(frame, body);
  AddCall(frame.call_slot, *call);
  call->StartInFrame(*this, frame, body);
  return absl::OkStatus();
}

absl::Status ServerSession::OnRequest(const FrameHeader& frame, const char* body) {
  if (!MayUseSlot(frame)) return SlotMisused(frame);
  IncomingRequest request;
  VERBENA_RETURN_IF_ERROR(
      ParseRequest(frame, body, {.max_body_bytes = link_->max_body_bytes()}, request));
  UsedGrant landing;
  if (request.bulk.has_value() && request.bulk->grant != RequestBulk::kNoGrant) {
    VERBENA_ASSIGN_OR_RETURN(landing,
                             grants_.Use(request.bulk->grant, request.bulk->payload_bytes));
    state_.NotePayloadWritten();
  }
  if (request.streams != Streams::kNone) streams_.Attach(*link_, client_->streams());
  RefusalReason reason{};
  ServerCall* call = Admit(request, reason);
  if (call == nullptr) return RefuseRequest(request.id, std::move(landing), reason);
  AddCall(request.id.slot, *call);
  call->Start(*this, request, landing);
  return absl::OkStatus();
}

ServerCall* ServerSession::Admit(const IncomingRequest& request, RefusalReason& reason) {
  if (!TakesMetadata(request)) {
    reason = state_.CountRefusal(RefusalReason::kTooMuchMetadata);
    return nullptr;
  }
  CallOffer offer{.method = request.method,
                  .streams = request.streams,
                  // A context block that travels is here only when the call runs.
                  .priority = request.context.priority};
  if (request.bulk.has_value() && state_.admission() != nullptr) {
    const RequestBulk& bulk = *request.bulk;
    // A request of a wrong size fails as soon as it begins. So its bytes do not count: a refusal
    // because of bytes would tell the client to come back later.
    const bool is_taken =
        CheckRequestSize(bulk, request.traveling_context_bytes(), link_->endpoint().limits()).ok();
    if (is_taken) offer.pinned_bytes = bulk.payload_bytes + bulk.message_bytes;
  }
  return calls_.Admit(offer, *client_, reason);
}

absl::Status ServerSession::OnStreamFrame(Link& link, const FrameHeader& frame, const char* body) {
  streams_.Attach(link, client_->streams());
  if ((frame.flags & kFrameOfLink) != 0) return streams_.OnWindow(frame);
  const bool is_message = frame.kind == FrameKind::kStreamMessage;
  if (is_message) VERBENA_RETURN_IF_ERROR(streams_.OnReceived(frame));
  ServerCall* call = by_slot_.Find(frame.call_slot);
  if (call != nullptr && call->id().generation == frame.call_generation) {
    return call->OnStreamFrame(frame, body);
  }
  // Its stream was refused, or has ended.
  if (is_message) streams_.Drop(frame);
  return absl::OkStatus();
}

absl::Status ServerSession::OnOtherFrame(Link& link, const FrameHeader& frame, const char* body) {
  switch (frame.kind) {
    case FrameKind::kLanding:
      return OnLandingFrame(frame, body);
    case FrameKind::kCancel:
      OnCancelFrame(frame);
      return absl::OkStatus();
    case FrameKind::kStreamMessage:
    case FrameKind::kStreamWindow:
    case FrameKind::kStreamEnd:
      return OnStreamFrame(link, frame, body);
    case FrameKind::kReturn:
      return grants_.OnReturn(link, frame.argument);
    default:
      return absl::InvalidArgumentError(
          fmt::format("a client sent a frame of kind {}", static_cast<int>(frame.kind)));
  }
}

// A client may use a slot again while the former call still runs here, if it gave up that call; but
// only with a later generation. The former call's CANCEL may be late, or have found no room.
bool ServerSession::MayUseSlot(const FrameHeader& frame) {
  ServerCall* before = by_slot_.Find(frame.call_slot);
  if (before == nullptr) return true;
  if (static_cast<int32_t>(frame.call_generation - before->id().generation) <= 0) return false;
  before->GiveUp(absl::StatusCode::kCancelled);
  return true;
}

absl::Status ServerSession::SlotMisused(const FrameHeader& frame) const {
  const ServerCall* before = by_slot_.Find(frame.call_slot);
  return absl::InvalidArgumentError(
      fmt::format("request {} of call slot {}, in which {} is running", frame.call_generation,
                  frame.call_slot, before->id().generation));
}

// The exact bound of a block that travels is checked when it is here.
bool ServerSession::TakesMetadata(const IncomingRequest& request) const {
  const size_t most = state_.limits().max_metadata_bytes;
  return request.context_header.travels
             ? request.context_header.block_bytes <= most + kMaxContextFixedBytes
             : request.context.metadata.bytes() <= most;
}

absl::Status ServerSession::RefuseRequest(CallId id, UsedGrant landing, RefusalReason reason) {
  if (landing.lease != nullptr) {
    link_->EndLease(*landing.lease, nullptr);
    ReturnWithMemory(std::move(landing.buffer), std::move(landing.hold), *client_, nullptr);
  }
  return Refuse(id, reason);
}

void ServerSession::OnCancelFrame(const FrameHeader& frame) {
  // The frame may come after its call ended here, or name one that never was: then nothing is done.
  ServerCall* call = by_slot_.Find(frame.call_slot);
  if (call == nullptr || call->id().generation != frame.call_generation) return;
  call->GiveUp(absl::StatusCode::kCancelled);
}

absl::Status ServerSession::OnLandingFrame(const FrameHeader& frame, const char* body) {
  VERBENA_ASSIGN_OR_RETURN(RemoteRange landing, ParseLanding(body, frame.body_bytes));
  // The call may have ended meanwhile, as with a cancellation.
  ServerCall* call = by_slot_.Find(frame.call_slot);
  if (call == nullptr || call->id().generation != frame.call_generation) return absl::OkStatus();
  return call->OnLanding(landing);
}

absl::Status ServerSession::Refuse(CallId id, RefusalReason reason) {
  if (refusals_.size() >= kMaxQueuedRefusals) {
    return absl::ResourceExhaustedError(
        fmt::format("the client gives up refused calls without taking their answers; {} wait",
                    refusals_.size()));
  }
  if (refusals_.size() >= kOwnQueuedRefusals && !client_->source().refusals().TryTake(1)) {
    return absl::ResourceExhaustedError(
        fmt::format("clients of one address give up refused calls without taking their answers; {} "
                    "wait here, {} in all beyond {} for each link",
                    refusals_.size(), ServerSource::kMaxQueuedRefusals, kOwnQueuedRefusals));
  }
  const bool waits = SendWaiter::linked();
  refusals_.PushBack({id, reason});
  // Send it now if there is room: a queued call may be refused while no frame arrives, and then
  // nothing else would send the refusal.
  if (!waits) SendRefusal(*link_);
  if (refusals_.empty()) return absl::OkStatus();
  // A GOAWAY may wait already, which takes less room than the refusal that now goes first.
  body_bytes = RoomNeeded();
  if (!waits) AwaitRoom(*link_);
  if (!timer_running_) StartRefusalTimer();
  return absl::OkStatus();
}

void ServerSession::RefuseQueued(CallId id, RefusalReason reason) {
  if (link_ == nullptr) return;
  Link& link = *link_;
  if (absl::Status refused = Refuse(id, reason); !refused.ok()) link.Close(refused);
}

void ServerSession::StartRefusalTimer() {
  refusals_due_ = refusals_.queued();
  Executor& executor = state_.executor();
  executor.StartTimer(*this, SaturatingAdd(executor.now(), state_.limits().response_grace));
  timer_running_ = true;
}

void ServerSession::StopRefusalTimer() {
  if (std::exchange(timer_running_, false)) state_.executor().StopTimer(*this);
}

void ServerSession::OnTimer() {
  timer_running_ = false;
  if (refusals_.left() >= refusals_due_) {
    StartRefusalTimer();
    return;
  }
  link_->Close(absl::DeadlineExceededError(fmt::format(
      "{} has not taken the refusals of its calls for {} ms (ServerOptions::response_grace), of "
      "which {} wait: it issues no credits",
      peer_,
      std::chrono::duration_cast<std::chrono::milliseconds>(state_.limits().response_grace).count(),
      refusals_.size())));
}

size_t ServerSession::RoomNeeded() const {
  return refusals_.empty() ? 0 : state_.RefusalBody(refusals_.front().reason).size();
}

void ServerSession::AwaitRoom(Link& link) {
  body_bytes = RoomNeeded();
  link.AwaitWritable(*this);
}

void ServerSession::SendRefusal(Link& link) {
  const Refusal& refusal = refusals_.front();
  const std::string& body = state_.RefusalBody(refusal.reason);
  const FrameHeader frame =
      FailureFrame({refusal.slot, refusal.generation}, state_.RefusalStatus(refusal.reason).code(),
                   Outcome::kNotExecuted);
  char* room = link.Append(frame, body.size());
  if (room == nullptr) return;
  body.copy(room, body.size());
  if (refusals_.size() > kOwnQueuedRefusals) client_->source().refusals().Give(1);
  refusals_.PopFront();
  if (refusals_.empty()) StopRefusalTimer();
}

void ServerSession::OfferLanding(size_t bytes) {
  const size_t granted = state_.granted_bytes();
  grants_.Offer(*link_, bytes);
  if (state_.granted_bytes() > granted) [[unlikely]]
    owner_.OnGrant();
}

void ServerSession::OnQuotaShort(const Quota& quota) {
  ServerSource& source = client_->source();
  if (&quota == &source.requests()) owner_.ReclaimGrants(source);
}

void ServerSession::OnPoolShort() {
  if (link_ != nullptr) owner_.ReclaimGrants(link_->endpoint());
}

void ServerSession::RevokeGrants() {
  if (link_ != nullptr && link_->open()) grants_.Revoke(*link_);
}

void ServerSession::SendGoAway() {
  if (link_ == nullptr || !link_->open()) return;
  if (link_->Append(GoAwayFrame(), 0) != nullptr) return;
  go_away_due_ = true;
  if (!SendWaiter::linked()) AwaitRoom(*link_);
}

void ServerSession::OnWritable(Link& link) {
  if (!refusals_.empty()) {
    SendRefusal(link);
  } else if (go_away_due_) {
    go_away_due_ = link.Append(GoAwayFrame(), 0) == nullptr;
  }
  if (!refusals_.empty() || go_away_due_) AwaitRoom(link);
}

void ServerSession::CancelAll() {
  // Cancelling only queues handlers, so the list stays as it is.
  ForEachCall([](ServerCall& call) { call.Cancel(absl::StatusCode::kCancelled); });
}

// `visit` ends no call.
template <typename Visit>
void ServerSession::ForEachCall(Visit visit) {
  IntrusiveList<ServerCall> calls;
  calls.Append(active_);
  while (ServerCall* call = calls.PopFront()) {
    active_.PushBack(*call);
    visit(*call);
  }
}

void ServerSession::CountRunning(RunningHandlers& running) {
  ForEachCall([&running](ServerCall& call) {
    if (call.running()) ++running[call.method_name()];
  });
}

void ServerSession::OnCallEndedWithoutLink() {
  if (!going_down_ && active_.empty()) owner_.OnSessionIdle(*this);
}

bool ServerSession::ExpectsFrames() const {
  return waits_ > 0 || SendWaiter::linked() || streams_.has_waits();
}

bool ServerSession::InUse(const Link& link) const {
  return !idle() || link.leases().count() > grants_.count();
}

bool ServerSession::OnIdle(Link&) {
  if (link_ == nullptr || std::exchange(told_idle_, true)) return true;
  SendGoAway();
  return false;
}

void ServerSession::OnLinkDown(Link&, const absl::Status&) {
  link_ = nullptr;
  SendWaiter::Unlink();
  StopRefusalTimer();
  if (refusals_.size() > kOwnQueuedRefusals) {
    client_->source().refusals().Give(refusals_.size() - kOwnQueuedRefusals);
  }
  refusals_.Clear();
  grants_.OnLinkDown();
  // Calls that only wait to send their response end now, and leave the list while it is walked. So
  // the list says only at the end whether a call is left.
  going_down_ = true;
  IntrusiveList<ServerCall> calls;
  calls.Append(active_);
  while (ServerCall* call = calls.PopFront()) {
    active_.PushBack(*call);
    call->OnLinkDown();
  }
  streams_.OnLinkDown();
  going_down_ = false;
  owner_.OnSessionDown(*this);
}

}  // namespace verbena::internal
