#include "verbena/rpc/client/session.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "fmt/format.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/rpc/call/method_shape.h"
#include "verbena/rpc/call/status_codec.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {
namespace {

uint64_t KeyOf(uint32_t slot, uint32_t generation) {
  return static_cast<uint64_t>(slot) << 32 | generation;
}

// nullptr if none has the id.
const OfferedMethod* FindMethod(const std::vector<OfferedMethod>& offered, uint64_t id) {
  const auto found = std::find_if(offered.begin(), offered.end(),
                                  [id](const OfferedMethod& method) { return method.id == id; });
  return found == offered.end() ? nullptr : &*found;
}

// Empty if a client can call `mine` at a server that has it as `theirs`, or tells no shapes.
std::string ConflictOf(const MethodDescriptor& mine, const OfferedMethod& theirs) {
  return theirs.shape == OfferedMethod::kShapeUntold ? ""
                                                     : ShapeConflict(ShapeOf(mine), theirs.shape);
}

// `status` as that of calls which one lost link has ended. Call it once for a link.
absl::Status OfOneLostLink(absl::Status status) {
  static constinit std::atomic<uint64_t> lost_links{0};
  const std::string number =
      fmt::format("{}", lost_links.fetch_add(1, std::memory_order_relaxed) + 1);
  status.SetPayload(kLostLinkPayloadUrl, absl::Cord(number));
  return status;
}

}  // namespace

uint16_t MethodNumbers::Of(const MethodDescriptor& method,
                           const std::vector<OfferedMethod>& offered) {
  if (const uint16_t known = Known(method); known != kUnasked) return known;
  const uint32_t index = method.index.value();
  if (index >= numbers_.size()) numbers_.resize(index + 1, kUnasked);
  const OfferedMethod* found = FindMethod(offered, method.id);
  const bool callable = found != nullptr && ConflictOf(method, *found).empty();
  numbers_[index] = callable ? static_cast<uint16_t>(found - offered.data() + 1) : 0;
  return numbers_[index];
}

absl::Status NotAStream(const FrameHeader& frame) {
  return absl::InvalidArgumentError(
      fmt::format("a frame of a stream for call {} of slot {}, which is not a stream",
                  frame.call_generation, frame.call_slot));
}

ClientSession::~ClientSession() {
  VERBENA_CHECK(in_flight_ == 0 && settling_ == 0)
      << in_flight_ << " calls in flight, " << settling_ << " settling";
}

void ClientSession::Attach(Link& link) {
  VERBENA_DCHECK(link.open()) << "a session of a link that is lost, to " << link.peer();
  link_ = &link;
  streams_.Attach(link, stream_share_);
}

void ClientSession::CloseLink(const absl::Status& reason) {
  if (link_ != nullptr) link_->Close(reason);
}

uint16_t ClientSession::LookUpNumber(const MethodDescriptor& method) {
  return numbers_.Of(method, link_->methods());
}

bool ClientSession::Register(RegisteredCall& call, CallId* id) {
  uint32_t index;
  if (!free_.empty()) {
    index = free_.PopBack();
  } else if (slots_.size() < kMaxCallsInFlight) {
    index = AddSlot();
  } else {
    return false;
  }
  Slot& slot = slots_[index];
  VERBENA_DCHECK(slot.call == nullptr) << "slot " << index << " is taken";
  slot.call = &call;
  *id = {index, slot.generation};
  ++in_flight_;
  ++stats_.calls;
  return true;
}

void ClientSession::HandOver(CallId id, RegisteredCall& to) {
  Slot& slot = slots_[id.slot];
  VERBENA_CHECK(slot.call != nullptr && slot.generation == id.generation)
      << "slot " << id.slot << ", generation " << id.generation << " of " << slot.generation;
  slot.call = &to;
}

absl::Status ClientSession::NoSuchMethod(const MethodDescriptor& method) const {
  if (const OfferedMethod* found = FindMethod(link_->methods(), method.id)) {
    return absl::UnimplementedError(fmt::format("{} has another {} than this client: {}; {}",
                                                link_->peer(), method.full_name,
                                                ConflictOf(method, *found), kFitProtos));
  }
  return absl::UnimplementedError(
      fmt::format("{} has no method {}: give its service to Server::Start(), or build both sides "
                  "from one .proto",
                  link_->peer(), method.full_name));
}

absl::Status ClientSession::DeadlinePassed(const MethodDescriptor& method) const {
  return absl::DeadlineExceededError(
      fmt::format("the deadline of {} passed before {} answered", method.full_name, link_->peer()));
}

absl::Status ClientSession::TooManyCalls() {
  return absl::ResourceExhaustedError(
      fmt::format("{} calls are in flight on this link, the most that it takes: bound them, for "
                  "example with a Semaphore",
                  kMaxCallsInFlight));
}

uint32_t ClientSession::AddSlot() {
  slots_.emplace_back();
  free_.Reserve(slots_.size());
  return static_cast<uint32_t>(slots_.size() - 1);
}

void ClientSession::Release(CallId id) {
  Slot& slot = slots_[id.slot];
  VERBENA_CHECK(slot.call != nullptr && slot.generation == id.generation)
      << "slot " << id.slot << ", generation " << id.generation << " of " << slot.generation;
  VERBENA_DCHECK(in_flight_ > 0) << "slot " << id.slot;
  slot.call = nullptr;
  ++slot.generation;
  free_.PushBack(id.slot);
  --in_flight_;
  CheckDrained();
}

void ClientSession::ReleaseLate(CallId id, const FrameHeader& frame) {
  ++stats_.late_responses;
  if (!quarantine_.empty()) EndQuarantine(frame);
  Release(id);
}

void ClientSession::Drain() {
  if (draining_) return;
  draining_ = true;
  listener_.OnSessionDraining(*this);
}

bool ClientSession::idle() const { return in_flight_ == 0 && settling_ == 0; }

void ClientSession::EndSettling() {
  VERBENA_CHECK(settling_ > 0) << "calls in flight " << in_flight_;
  --settling_;
  CheckDrained();
}

void ClientSession::CheckDrained() {
  if (draining_ && link_ != nullptr && link_->open() && idle()) listener_.OnSessionIdle(*this);
}

absl::Status ClientSession::OnFrame(Link& link, const FrameHeader& frame, const char* body) {
  return frame.kind == FrameKind::kResponse ? OnResponse(frame, body)
                                            : OnOtherFrame(link, frame, body);
}

const char* ClientSession::MethodOf(const FrameHeader& frame) const {
  const RegisteredCall* call = InFlight(frame);
  return call == nullptr ? nullptr : call->method_name();
}

absl::Status ClientSession::OnOtherFrame(Link& link, const FrameHeader& frame, const char* body) {
  switch (frame.kind) {
    case FrameKind::kLandingNeeded:
      return OnLandingNeeded(frame, body);
    case FrameKind::kGrant:
      return grants_.OnGrant(link, frame, body);
    case FrameKind::kRevoke:
      return grants_.OnRevoke(link, frame);
    case FrameKind::kStreamMessage:
    case FrameKind::kStreamWindow:
    case FrameKind::kStreamEnd:
      return OnStreamFrame(frame, body);
    case FrameKind::kGoAway:
      // This frame may come before whoever connects has the link.
      if (link_ == nullptr) Attach(link);
      Drain();
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError(
          fmt::format("a server sent a frame of kind {}", static_cast<int>(frame.kind)));
  }
}

inline RegisteredCall* ClientSession::InFlight(const FrameHeader& frame) const {
  if (frame.call_slot >= slots_.size()) return nullptr;
  const Slot& slot = slots_[frame.call_slot];
  return slot.generation == frame.call_generation ? slot.call : nullptr;
}

absl::StatusOr<RegisteredCall*> ClientSession::Find(const FrameHeader& frame) const {
  if (frame.call_slot >= slots_.size()) {
    return absl::InvalidArgumentError(
        fmt::format("a response to call slot {} of {}", frame.call_slot, slots_.size()));
  }
  const Slot& slot = slots_[frame.call_slot];
  // Generations wrap around, so "later" is a signed difference. One that equals a free slot's was
  // not issued yet.
  const auto ahead = static_cast<int32_t>(frame.call_generation - slot.generation);
  if (ahead > 0 || (ahead == 0 && slot.call == nullptr)) {
    return absl::InvalidArgumentError(
        fmt::format("a response to call {} of slot {}, which is at {}", frame.call_generation,
                    frame.call_slot, slot.generation));
  }
  return ahead < 0 ? nullptr : slot.call;
}

absl::Status ClientSession::OnResponse(const FrameHeader& frame, const char* body) {
  RegisteredCall* const call = InFlight(frame);
  if (call == nullptr) [[unlikely]]
    return OnLateResponse(frame);
  if (tally_ != nullptr) [[unlikely]]
    return OnTalliedResponse(*call, frame, body);
  return call->OnResponse(frame, body);
}

absl::Status ClientSession::OnTalliedResponse(RegisteredCall& call, const FrameHeader& frame,
                                              const char* body) {
  if (!call.is_given_up()) tally_->OnResponse(frame.status_code, frame.outcome);
  return call.OnResponse(frame, body);
}

absl::Status ClientSession::OnStreamFrame(const FrameHeader& frame, const char* body) {
  if ((frame.flags & kFrameOfLink) != 0) return streams_.OnWindow(frame);
  const bool is_message = frame.kind == FrameKind::kStreamMessage;
  if (is_message) VERBENA_RETURN_IF_ERROR(streams_.OnReceived(frame));
  if (RegisteredCall* call = InFlight(frame)) {
    VERBENA_RETURN_IF_ERROR(call->OnStreamFrame(frame, body));
    answered_ = true;
    return absl::OkStatus();
  }
  VERBENA_RETURN_IF_ERROR(Find(frame).status());
  // Its stream was given up, or has ended.
  if (is_message) streams_.Drop(frame);
  return absl::OkStatus();
}

absl::Status ClientSession::OnLateResponse(const FrameHeader& frame) {
  VERBENA_RETURN_IF_ERROR(Find(frame).status());
  ++stats_.late_responses;
  if (!quarantine_.empty()) EndQuarantine(frame);
  return absl::OkStatus();
}

absl::Status ClientSession::OnLandingNeeded(const FrameHeader& frame, const char* body) {
  VERBENA_ASSIGN_OR_RETURN(LandingRequest wanted, ParseLandingRequest(body, frame.body_bytes));
  VERBENA_ASSIGN_OR_RETURN(RegisteredCall * call, Find(frame));
  // A call that was given up gets no landing: its CANCEL tells the server so.
  return call != nullptr ? call->OnLandingNeeded(wanted) : absl::OkStatus();
}

void ClientSession::Quarantine(CallId id, const LeaseList& leases) {
  if (!leases.empty()) quarantine_.emplace(KeyOf(id.slot, id.generation), leases);
}

void ClientSession::EndQuarantine(const FrameHeader& frame) {
  auto found = quarantine_.find(KeyOf(frame.call_slot, frame.call_generation));
  if (found == quarantine_.end()) return;
  const LeaseList leases = std::move(found->second);
  quarantine_.erase(found);
  for (Lease* lease : leases) link_->EndLease(*lease, nullptr);
}

bool ClientSession::InUse(const Link& link) const {
  return ExpectsFrames() || reaches_memory_ || link.leases().count() > 0;
}

void ClientSession::OnLinkDown(Link& link, const absl::Status& reason) {
  // The reason's own code would mislead: that a peer broke the protocol is not the caller's
  // INVALID_ARGUMENT.
  const absl::Status lost = OfOneLostLink(absl::UnavailableError(
      fmt::format("the link to {} was lost: {}", link.peer(), std::string(reason.message()))));
  // One for all: a server that restarts is not the worse for it.
  if (tally_ != nullptr && in_flight_ > 0) tally_->OnFailure();
  broken_ = link.broken();
  link_ = nullptr;
  SendWaiter::Unlink();
  cancelled_slots_.clear();
  cancelled_generations_.clear();
  quarantine_.clear();
  grants_.OnLinkDown();
  for (const Slot& slot : slots_) {
    if (slot.call != nullptr) slot.call->OnLinkDown(lost);
  }
  streams_.OnLinkDown();
  listener_.OnSessionDown(*this, reason);
}

void ClientSession::SendCancel(CallId id) {
  if (link_ == nullptr || !link_->open()) return;
  if (link_->Append(CancelFrame(id), 0) != nullptr) return;
  if (cancelled_generations_.insert_or_assign(id.slot, id.generation).second) {
    cancelled_slots_.push_back(id.slot);
  }
  if (!SendWaiter::linked()) link_->AwaitWritable(*this);
}

void ClientSession::OnWritable(Link& link) {
  VERBENA_CHECK(!cancelled_slots_.empty() &&
                cancelled_slots_.size() == cancelled_generations_.size())
      << cancelled_slots_.size() << " slots, " << cancelled_generations_.size() << " generations";
  const uint16_t slot = cancelled_slots_.front();
  cancelled_slots_.pop_front();
  const auto generation = cancelled_generations_.find(slot);
  link.Append(CancelFrame({slot, generation->second}), 0);
  cancelled_generations_.erase(generation);
  if (!cancelled_slots_.empty()) link.AwaitWritable(*this);
}

}  // namespace verbena::internal
