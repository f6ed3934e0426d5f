#include "verbena/rpc/client_call.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/status_codec.h"
#include "verbena/transport/log/mutant.h"

namespace verbena {
namespace {

// What is left until `deadline`, as it travels: at least 1, since 0 means that there is none.
uint32_t RemainingUs(TimePoint deadline, TimePoint now) {
  if (deadline == kNever) return 0;
  const int64_t left =
      std::chrono::duration_cast<std::chrono::microseconds>(deadline - now).count();
  return static_cast<uint32_t>(std::clamp<int64_t>(left, 1, std::numeric_limits<uint32_t>::max()));
}

}  // namespace

ClientCall::ClientCall(ClientLink& link, Scheduler& scheduler, const MethodDescriptor& method,
                       const google::protobuf::MessageLite& request,
                       google::protobuf::MessageLite& reply, const CallOptions& options)
    : link_(link),
      scheduler_(scheduler),
      method_(method),
      request_(request),
      reply_(reply),
      options_(options) {}

ClientCall::~ClientCall() {
  if (active_) GiveUp(absl::StatusCode::kCancelled);
}

bool ClientCall::Begin() {
  // Reading the clock costs as much as posting a WR: only who asks for times pays.
  if (options_.deadline.is_set() || options_.info != nullptr) started_ = scheduler_.now();
  if (options_.deadline.when() <= started_) {
    status_ = WithOutcome(absl::DeadlineExceededError("the deadline passed before the call began"),
                          Outcome::kNotSent);
    return false;
  }
  if (!Fits()) return false;
  if (!link_.Register(*this, &id_)) {
    status_ = WithOutcome(absl::ResourceExhaustedError(fmt::format(
                              "{} calls are in flight on this link, the most that it takes",
                              ClientLink::kMaxCallsInFlight)),
                          Outcome::kNotSent);
    return false;
  }
  active_ = true;
  Link& link = *link_.link();
  if (char* body = link.Append(RequestHeader(), body_bytes)) {
    WriteRequest(body);
  } else {
    link.AwaitWritable(*this);
  }
  if (options_.deadline.is_set()) scheduler_.StartTimer(*this, options_.deadline.when());
  return true;
}

bool ClientCall::Fits() {
  body_bytes = request_.ByteSizeLong();
  const size_t limit = link_.link()->max_body_bytes();
  if (body_bytes <= limit) return true;
  status_ = WithOutcome(
      absl::ResourceExhaustedError(fmt::format(
          "the request to {} takes {} bytes, but a frame of this link carries at most {}",
          method_.full_name, body_bytes, limit)),
      Outcome::kNotSent);
  return false;
}

FrameHeader ClientCall::RequestHeader() const {
  FrameHeader frame;
  frame.kind = FrameKind::kRequest;
  frame.call_slot = id_.slot;
  frame.call_generation = id_.generation;
  frame.method_id = method_.id;
  if (!VERBENA_MUTANT(kDeadlineNotCarried)) {
    frame.deadline_us = RemainingUs(options_.deadline.when(), scheduler_.now());
  }
  return frame;
}

void ClientCall::WriteRequest(char* body) {
  request_.SerializeWithCachedSizesToArray(reinterpret_cast<uint8_t*>(body));
  sent_ = true;
}

void ClientCall::OnWritable(Link& link) {
  char* body = link.Append(RequestHeader(), body_bytes);
  // The size was cached when the call began; the request is borrowed, so nobody changes it.
  WriteRequest(body);
}

void ClientCall::OnResponse(const FrameHeader& frame, const char* body) {
  if (options_.info != nullptr) options_.info->reply_bytes = frame.body_bytes;
  absl::Status status;
  if (frame.status_code != 0) {
    const bool known = frame.outcome >= static_cast<uint8_t>(Outcome::kNotSent) &&
                       frame.outcome <= static_cast<uint8_t>(Outcome::kMaybeExecuted);
    status = WithOutcome(DecodeStatus(frame.status_code, body, frame.body_bytes),
                         known ? static_cast<Outcome>(frame.outcome) : Outcome::kMaybeExecuted);
  } else if (!reply_.ParseFromArray(body, static_cast<int>(frame.body_bytes))) {
    status = WithOutcome(
        absl::InternalError(fmt::format("the reply of {} ({} bytes) does not parse as {}",
                                        method_.full_name, frame.body_bytes, reply_.GetTypeName())),
        Outcome::kExecuted);
  }
  End(std::move(status));
  Resume();
}

void ClientCall::OnLinkDown(const absl::Status& reason) {
  // The reason's own code would mislead: that a peer broke the protocol is not the caller's
  // INVALID_ARGUMENT.
  absl::Status status =
      absl::UnavailableError(fmt::format("the link was lost: {}", std::string(reason.message())));
  End(WithOutcome(std::move(status), sent_ ? Outcome::kMaybeExecuted : Outcome::kNotSent));
  Resume();
}

void ClientCall::OnTimer() {
  GiveUp(absl::StatusCode::kDeadlineExceeded);
  Resume();
}

void ClientCall::Detach() { GiveUp(cancel_reason()); }

void ClientCall::GiveUp(absl::StatusCode reason) {
  const CallId id = id_;
  const bool sent = sent_;
  End(WithOutcome(CancelStatus(reason), sent ? Outcome::kMaybeExecuted : Outcome::kNotSent));
  if (sent) link_.SendCancel(id);
}

void ClientCall::End(absl::Status status) {
  active_ = false;
  status_ = std::move(status);
  SendWaiter::Unlink();
  if (options_.deadline.is_set()) scheduler_.StopTimer(*this);
  if (options_.info != nullptr) {
    options_.info->elapsed = scheduler_.now() - started_;
    options_.info->request_bytes = static_cast<uint32_t>(body_bytes);
  }
  link_.Release(id_);
}

}  // namespace verbena
