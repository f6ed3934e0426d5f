#include "verbena/rpc/server/session.h"

#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/server/request.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/link/endpoint.h"

namespace verbena::internal {

ServerSession::ServerSession(Owner& owner, ServerState& state, CallPool& calls,
                             std::shared_ptr<ServerClient> client, std::string peer,
                             uint64_t number)
    : CallLink(std::move(client), std::move(peer), state.limits().response_grace),
      owner_(owner),
      state_(state),
      calls_(calls),
      number_(number),
      refusals_(state, client_->source(), peer_),
      grants_(state.shared_receive_holders(), *client_) {}

ServerSession::~ServerSession() {
  VERBENA_CHECK(active_.empty()) << "a call of " << peer_ << " still runs";
  VERBENA_CHECK(waits_ == 0) << waits_ << " calls still wait for " << peer_;
}

void ServerSession::OnLinkOpen(Link& link) {
  link_ = &link;
  context_features_ = {.names_attempts = link.names_attempts(),
                       .tells_highest = link.tells_highest_number()};
  owner_.OnSessionOpen(*this);
}

absl::Status ServerSession::OnFrame(Link& link, const FrameHeader& frame, const char* body) {
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

const char* ServerSession::MethodOf(const FrameHeader& frame) const {
  if (frame.kind == FrameKind::kRequest) {
    const int index = state_.methods().IndexOf(frame.method);
    return index < 0 ? nullptr : state_.methods().entry(index).method->descriptor->full_name;
  }
  const ServerCall* call = by_slot_.Find(frame.call_slot);
  const bool is_its = call != nullptr && call->id().generation == frame.call_generation;
  return is_its ? call->method_name() : nullptr;
}

absl::Status ServerSession::OnRequest(const FrameHeader& frame, const char* body) {
  // A client may use a slot again while the former call still runs here, if it gave up that call;
  // but only with a later generation. The former call's CANCEL may be late, or have found no room.
  if (ServerCall* before = by_slot_.Find(frame.call_slot)) {
    if (static_cast<int32_t>(frame.call_generation - before->id().generation) <= 0) {
      return absl::InvalidArgumentError(
          fmt::format("request {} of call slot {}, in which {} is running", frame.call_generation,
                      frame.call_slot, before->id().generation));
    }
    before->GiveUp(absl::StatusCode::kCancelled);
  }
  IncomingRequest request;
  const RequestRules rules{.max_body_bytes = link_->max_body_bytes(),
                           .context_features = context_features_};
  VERBENA_RETURN_IF_ERROR(ParseRequest(frame, body, rules, request));
  UsedGrant landing;
  if (request.bulk.has_value() && request.bulk->grant != RequestBulk::kNoGrant) {
    VERBENA_ASSIGN_OR_RETURN(landing,
                             grants_.Use(request.bulk->grant, request.bulk->payload_bytes));
    state_.NotePayloadWritten();
  }
  if (request.streams != Streams::kNone) streams_.Attach(*link_, client_->streams());
  RefusalReason reason{};
  ServerCall* call = calls_.Admit(request, link_->endpoint().limits(), *client_, reason);
  if (call == nullptr) {
    ReturnUnused(std::move(landing), *link_, *client_);
    return refusals_.Refuse(*link_, request.id, reason);
  }
  AddCall(request.id.slot, *call);
  call->Start(*this, request, landing);
  return absl::OkStatus();
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

void ServerSession::RefuseQueued(CallId id, RefusalReason reason) {
  if (link_ == nullptr) return;
  Link& link = *link_;
  if (absl::Status refused = refusals_.Refuse(link, id, reason); !refused.ok()) {
    link.Close(refused);
  }
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
  if (!SendWaiter::linked()) link_->AwaitWritable(*this);
}

void ServerSession::OnWritable(Link& link) { (void)link.Append(GoAwayFrame(), 0); }

void ServerSession::CancelAll() {
  ForEachCall([](ServerCall& call) { call.Cancel(absl::StatusCode::kCancelled); });
}

// `visit` may end the call that it gets, which is in active_ again by then.
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
  return waits_ > 0 || SendWaiter::linked() || refusals_.wait() || streams_.has_waits();
}

bool ServerSession::InUse(const Link& link) const {
  return !idle() || link.leases().count() > grants_.count();
}

bool ServerSession::OnIdle(Link&) {
  if (link_ == nullptr || std::exchange(told_idle_, true)) return true;
  SendGoAway();
  return false;
}

void ServerSession::OnLinkDown(Link& link, const absl::Status&) {
  link_ = nullptr;
  lost_link_ = link.identity();
  SendWaiter::Unlink();
  refusals_.OnLinkDown();
  grants_.OnLinkDown();
  // Calls that only wait to send their response end now, and leave the list while it is walked. So
  // the list says only at the end whether a call is left.
  going_down_ = true;
  ForEachCall([](ServerCall& call) { call.OnLinkDown(); });
  streams_.OnLinkDown();
  going_down_ = false;
  owner_.OnSessionDown(*this);
}

}  // namespace verbena::internal
