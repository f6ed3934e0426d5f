#include "verbena/rpc/server_link.h"

#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/server_shard.h"
#include "verbena/rpc/status_codec.h"

namespace verbena {

ServerLink::ServerLink(ServerShard& shard, std::string peer, uint64_t number)
    : shard_(shard), peer_(std::move(peer)), number_(number), lender_(shard.granted_bytes()) {}

ServerLink::~ServerLink() = default;

absl::Status ServerLink::OnFrame(Link& link, const FrameHeader& frame, const char* body) {
  link_ = &link;
  if (frame.kind != FrameKind::kRequest) return OnOtherFrame(link, frame, body);
  if (!MayUseSlot(frame)) return SlotMisused(frame);
  return (frame.flags & kFrameHasBulk) != 0 ? OnBulkRequest(frame, body)
                                            : StartCall(frame, body, nullptr);
}

absl::Status ServerLink::OnOtherFrame(Link& link, const FrameHeader& frame, const char* body) {
  switch (frame.kind) {
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

// A slot is used again while its former call still runs here when that call was cancelled, but only
// with a later generation.
bool ServerLink::MayUseSlot(const FrameHeader& frame) {
  if (frame.call_slot >= by_slot_.size() && !AddSlots(frame.call_slot)) return false;
  const ServerCall* before = by_slot_[frame.call_slot];
  return before == nullptr ||
         static_cast<int32_t>(frame.call_generation - before->id().generation) > 0;
}

bool ServerLink::AddSlots(uint32_t slot) {
  if (slot >= ClientLink::kMaxCallsInFlight) return false;
  by_slot_.resize(slot + 1);
  return true;
}

absl::Status ServerLink::SlotMisused(const FrameHeader& frame) const {
  if (frame.call_slot >= by_slot_.size()) {
    return absl::InvalidArgumentError(fmt::format("a request in call slot {} of {}",
                                                  frame.call_slot, ClientLink::kMaxCallsInFlight));
  }
  return absl::InvalidArgumentError(
      fmt::format("request {} of call slot {}, in which {} is running", frame.call_generation,
                  frame.call_slot, by_slot_[frame.call_slot]->id().generation));
}

absl::Status ServerLink::OnBulkRequest(const FrameHeader& frame, const char* body) {
  absl::StatusOr<RequestBulk> parsed = ParseRequestBulk(body, frame.body_bytes);
  if (!parsed.ok()) return parsed.status();
  IncomingBulk bulk{*parsed, {}};
  if (bulk.request.grant != RequestBulk::kNoGrant) {
    absl::StatusOr<UsedLanding> landing =
        lender_.Use(bulk.request.grant, bulk.request.payload_bytes);
    if (!landing.ok()) return landing.status();
    bulk.landing = *std::move(landing);
    shard_.NotePayloadWritten();
  }
  return StartCall(frame, body, &bulk);
}

absl::Status ServerLink::StartCall(const FrameHeader& frame, const char* body, IncomingBulk* bulk) {
  ServerCall* call = shard_.Admit(frame.method_id);
  if (call == nullptr) return RefuseRequest(frame, bulk);
  by_slot_[frame.call_slot] = call;
  active_.PushBack(*call);
  call->Start(*this, {frame.call_slot, frame.call_generation}, frame, body, bulk);
  return absl::OkStatus();
}

absl::Status ServerLink::RefuseRequest(const FrameHeader& frame, IncomingBulk* bulk) {
  if (bulk != nullptr && bulk->landing.lease != nullptr) {
    link_->EndLease(*bulk->landing.lease, nullptr);
  }
  return Refuse({frame.call_slot, frame.call_generation}, shard_.Refusal(frame.method_id));
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
