#include "verbena/rpc/server_link.h"

#include <optional>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/server_shard.h"
#include "verbena/rpc/status_codec.h"

namespace verbena {

ServerLink::ServerLink(ServerShard& shard, std::string peer)
    : shard_(shard), peer_(std::move(peer)), lender_(shard.granted_bytes()) {}

ServerLink::~ServerLink() = default;

absl::Status ServerLink::OnFrame(Link& link, const FrameHeader& frame, const char* body) {
  link_ = &link;
  switch (frame.kind) {
    case FrameKind::kRequest:
      return OnRequest(link, frame, body);
    case FrameKind::kLanding:
      return OnLandingFrame(frame, body);
    case FrameKind::kCancel:
      OnCancelFrame(frame);
      return absl::OkStatus();
    case FrameKind::kReturn:
      return lender_.OnReturn(link, frame.argument);
    default:
      return absl::InvalidArgumentError(
          fmt::format("a client sent a frame of kind {}", static_cast<int>(frame.kind)));
  }
}

absl::StatusOr<UsedLanding> ServerLink::LandingOf(const RequestBulk& bulk) {
  if (bulk.grant == RequestBulk::kNoGrant) return UsedLanding();
  return lender_.Use(bulk.grant, bulk.payload_bytes);
}

absl::Status ServerLink::OnRequest(Link& link, const FrameHeader& frame, const char* body) {
  const CallId id{frame.call_slot, frame.call_generation};
  if (id.slot >= ClientLink::kMaxCallsInFlight) {
    return absl::InvalidArgumentError(
        fmt::format("a request in call slot {} of {}", id.slot, ClientLink::kMaxCallsInFlight));
  }
  if (id.slot >= by_slot_.size()) by_slot_.resize(id.slot + 1);
  const ServerCall* before = by_slot_[id.slot];
  // A slot is used again while its former call still runs here when that call was cancelled, but
  // only with a later generation.
  if (before != nullptr && static_cast<int32_t>(id.generation - before->id().generation) <= 0) {
    return absl::InvalidArgumentError(
        fmt::format("request {} of call slot {}, in which {} is running", id.generation, id.slot,
                    before->id().generation));
  }
  std::optional<RequestBulk> bulk;
  UsedLanding used;
  if ((frame.flags & kFrameHasBulk) != 0) {
    absl::StatusOr<RequestBulk> parsed = ParseRequestBulk(body, frame.body_bytes);
    if (!parsed.ok()) return parsed.status();
    bulk = *parsed;
    absl::StatusOr<UsedLanding> landing = LandingOf(*bulk);
    if (!landing.ok()) return landing.status();
    used = *std::move(landing);
    if (used.lease != nullptr) shard_.NotePayloadWritten();
  }
  absl::StatusOr<ServerCall*> call = shard_.Admit(frame.method_id);
  if (!call.ok()) {
    if (used.lease != nullptr) link.EndLease(*used.lease, nullptr);
    return Refuse(id, call.status());
  }
  by_slot_[id.slot] = *call;
  active_.PushBack(**call);
  (*call)->Start(*this, id, frame, body, bulk.has_value() ? &*bulk : nullptr, std::move(used));
  return absl::OkStatus();
}

void ServerLink::OnCancelFrame(const FrameHeader& frame) {
  // It may come after its call ended here, or name one that never was: nothing is to be done then.
  if (frame.call_slot >= by_slot_.size()) return;
  ServerCall* call = by_slot_[frame.call_slot];
  if (call == nullptr || call->id().generation != frame.call_generation) return;
  call->Cancel(absl::StatusCode::kCancelled);
}

absl::Status ServerLink::OnLandingFrame(const FrameHeader& frame, const char* body) {
  absl::StatusOr<RemoteRange> landing = ParseLanding(body, frame.body_bytes);
  if (!landing.ok()) return landing.status();
  // The call may have ended meanwhile, as with a cancellation.
  if (frame.call_slot >= by_slot_.size()) return absl::OkStatus();
  ServerCall* call = by_slot_[frame.call_slot];
  if (call == nullptr || call->id().generation != frame.call_generation) return absl::OkStatus();
  return call->OnLanding(*landing);
}

absl::Status ServerLink::Refuse(CallId id, const absl::Status& status) {
  if (refusals_.size() >= kMaxQueuedRefusals) {
    return absl::ResourceExhaustedError("the client does not take the refusals of its requests");
  }
  refusals_.push_back(
      {id, static_cast<uint8_t>(status.code()), EncodeStatusBody(status, link_->max_body_bytes())});
  body_bytes = refusals_.front().body.size();
  if (!SendWaiter::linked()) link_->AwaitWritable(*this);
  return absl::OkStatus();
}

void ServerLink::ReclaimLandings() {
  if (link_ != nullptr) shard_.ReclaimLandings(link_->endpoint());
}

void ServerLink::RevokeLandings() {
  if (link_ != nullptr && link_->open()) lender_.Revoke(*link_);
}

void ServerLink::SendGoAway() {
  if (link_ == nullptr || !link_->open()) return;
  FrameHeader frame;
  frame.kind = FrameKind::kGoAway;
  if (link_->Append(frame, 0) != nullptr) return;
  go_away_due_ = true;
  if (!SendWaiter::linked()) link_->AwaitWritable(*this);
}

void ServerLink::OnWritable(Link& link) {
  if (!refusals_.empty()) {
    const Refusal refusal = std::move(refusals_.front());
    refusals_.pop_front();
    FrameHeader frame;
    frame.kind = FrameKind::kResponse;
    frame.call_slot = refusal.id.slot;
    frame.call_generation = refusal.id.generation;
    frame.status_code = refusal.code;
    frame.outcome = static_cast<uint8_t>(Outcome::kNotSent);
    refusal.body.copy(link.Append(frame, refusal.body.size()), refusal.body.size());
  } else if (go_away_due_) {
    go_away_due_ = false;
    FrameHeader frame;
    frame.kind = FrameKind::kGoAway;
    link.Append(frame, 0);
  }
  if (refusals_.empty() && !go_away_due_) return;
  body_bytes = refusals_.empty() ? 0 : refusals_.front().body.size();
  link.AwaitWritable(*this);
}

void ServerLink::CancelAll() {
  // Cancelling only queues handlers, so the list stays as it is.
  for (ServerCall* call : by_slot_) {
    if (call != nullptr) call->Cancel(absl::StatusCode::kCancelled);
  }
}

void ServerLink::OnCallDone(ServerCall& call) {
  call.IntrusiveNode<ServerCall>::Unlink();
  const uint32_t slot = call.id().slot;
  if (by_slot_[slot] == &call) by_slot_[slot] = nullptr;
  if (link_ == nullptr && active_.empty()) shard_.OnLinkIdle(*this);
}

void ServerLink::OnLinkDown(Link&, const absl::Status&) {
  link_ = nullptr;
  SendWaiter::Unlink();
  refusals_.clear();
  lender_.OnLinkDown();
  // Calls that only wait to send their response end now, and leave the list while it is walked.
  IntrusiveList<ServerCall> calls;
  calls.Append(active_);
  while (ServerCall* call = calls.PopFront()) {
    active_.PushBack(*call);
    call->OnLinkDown();
  }
  shard_.OnLinkDown(*this);
}

}  // namespace verbena
