#include "verbena/rpc/server_link.h"

#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/server_shard.h"
#include "verbena/transport/log/check.h"
#include "verbena/transport/log/mutant.h"

namespace verbena {

ServerLink::ServerLink(ServerShard& shard, std::shared_ptr<ServerClient> client, std::string peer,
                       uint64_t number)
    : shard_(shard),
      client_(std::move(client)),
      peer_(std::move(peer)),
      number_(number),
      lender_(shard.granted_bytes(), *client_) {}

ServerLink::~ServerLink() {
  VERBENA_CHECK(active_.empty()) << "a call of " << peer_ << " still runs";
}

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
  ServerCall* call = shard_.Admit(frame.method_id, *client_);
  if (call == nullptr) return RefuseRequest(frame, bulk);
  by_slot_[frame.call_slot] = call;
  active_.PushBack(*call);
  call->Start(*this, {frame.call_slot, frame.call_generation}, frame, body, bulk);
  return absl::OkStatus();
}

absl::Status ServerLink::RefuseRequest(const FrameHeader& frame, IncomingBulk* bulk) {
  if (bulk != nullptr && bulk->landing.lease != nullptr) {
    link_->EndLease(*bulk->landing.lease, nullptr);
    client_->EndGrant(bulk->landing.bytes);
  }
  return Refuse({frame.call_slot, frame.call_generation},
                shard_.Refusal(frame.method_id, *client_));
}

void ServerLink::OnCancelFrame(const FrameHeader& frame) {
  // The frame may come after its call ended here, or name one that never was: then nothing is done.
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

absl::Status ServerLink::Refuse(CallId id, RefusalReason reason) {
  const size_t most = VERBENA_MUTANT(kRefusalsCloseTheLink) ? 4096 : kMaxQueuedRefusals;
  if (refusals_.size() >= most) {
    return absl::ResourceExhaustedError(
        fmt::format("the client gives up refused calls without taking their answers; {} wait",
                    refusals_.size()));
  }
  refusals_.push_back({id, reason});
  // A GOAWAY may wait already, which takes less room than the refusal that now goes first.
  body_bytes = RoomNeeded();
  if (!SendWaiter::linked()) AwaitRoom(*link_);
  return absl::OkStatus();
}

size_t ServerLink::RoomNeeded() const {
  return refusals_.empty() ? 0 : shard_.RefusalBody(refusals_.front().reason).size();
}

void ServerLink::AwaitRoom(Link& link) {
  body_bytes = RoomNeeded();
  link.AwaitWritable(*this);
}

void ServerLink::SendRefusal(Link& link) {
  const Refusal& refusal = refusals_.front();
  const std::string& body = shard_.RefusalBody(refusal.reason);
  FrameHeader frame;
  frame.kind = FrameKind::kResponse;
  frame.call_slot = refusal.id.slot;
  frame.call_generation = refusal.id.generation;
  frame.status_code = static_cast<uint8_t>(shard_.RefusalStatus(refusal.reason).code());
  frame.outcome = static_cast<uint8_t>(Outcome::kNotSent);
  char* room = link.Append(frame, body.size());
  if (room == nullptr) return;
  body.copy(room, body.size());
  refusals_.pop_front();
}

void ServerLink::OfferLanding(size_t bytes) {
  const size_t granted = shard_.granted_bytes();
  lender_.Offer(*link_, bytes);
  shard_.NoteLandingOffered(granted);
}

void ServerLink::ReclaimLandings() {
  if (link_ != nullptr) shard_.ReclaimLandings(link_->endpoint());
}

void ServerLink::ReclaimLandingsOfSource() { shard_.ReclaimLandings(client_->source()); }

void ServerLink::RevokeLandings() {
  if (link_ != nullptr && link_->open()) lender_.Revoke(*link_);
}

void ServerLink::SendGoAway() {
  if (link_ == nullptr || !link_->open()) return;
  FrameHeader frame;
  frame.kind = FrameKind::kGoAway;
  if (link_->Append(frame, 0) != nullptr) return;
  go_away_due_ = true;
  if (!SendWaiter::linked()) AwaitRoom(*link_);
}

void ServerLink::OnWritable(Link& link) {
  if (!refusals_.empty()) {
    SendRefusal(link);
  } else if (go_away_due_) {
    FrameHeader frame;
    frame.kind = FrameKind::kGoAway;
    go_away_due_ = link.Append(frame, 0) == nullptr;
  }
  if (!refusals_.empty() || go_away_due_) AwaitRoom(link);
}

void ServerLink::CancelAll() {
  // Cancelling only queues handlers, so the list stays as it is.
  ForEachCall([](ServerCall& call) { call.Cancel(absl::StatusCode::kCancelled); });
}

// `visit` ends no call.
template <typename Visit>
void ServerLink::ForEachCall(Visit visit) {
  IntrusiveList<ServerCall> calls;
  calls.Append(active_);
  while (ServerCall* call = calls.PopFront()) {
    active_.PushBack(*call);
    visit(*call);
  }
}

void ServerLink::CountRunning(RunningHandlers& running) {
  ForEachCall([&running](ServerCall& call) {
    if (call.running()) ++running[call.method_name()];
  });
}

void ServerLink::OnCallDone(ServerCall& call) {
  client_->RemoveCall();
  call.IntrusiveNode<ServerCall>::Unlink();
  const uint32_t slot = call.id().slot;
  VERBENA_CHECK(slot < by_slot_.size()) << "slot " << slot << " of " << by_slot_.size();
  if (by_slot_[slot] == &call) by_slot_[slot] = nullptr;
  const bool undecided = going_down_ && !VERBENA_MUTANT(kLinkFreedWithAHandlerLeft);
  if (link_ == nullptr && !undecided && active_.empty()) shard_.OnLinkIdle(*this);
}

bool ServerLink::ExpectsFrames() const {
  return (waits_ > 0 || SendWaiter::linked()) && !VERBENA_MUTANT(kSilentClientKept);
}

bool ServerLink::InUse(const Link& link) const {
  return !idle() || link.leases().granted() > lender_.lent();
}

bool ServerLink::OnIdle(Link&) {
  if (link_ == nullptr || std::exchange(told_idle_, true)) return true;
  SendGoAway();
  return false;
}

void ServerLink::OnLinkDown(Link&, const absl::Status&) {
  link_ = nullptr;
  SendWaiter::Unlink();
  refusals_.clear();
  lender_.OnLinkDown();
  // Calls that only wait to send their response end now, and leave the list while it is walked. So
  // the list says only at the end whether a call is left.
  going_down_ = true;
  IntrusiveList<ServerCall> calls;
  calls.Append(active_);
  while (ServerCall* call = calls.PopFront()) {
    active_.PushBack(*call);
    call->OnLinkDown();
  }
  going_down_ = false;
  shard_.OnLinkDown(*this);
}

}  // namespace verbena
