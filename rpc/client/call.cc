#include "verbena/rpc/client/call.h"

#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/call/bulk_format.h"
#include "verbena/rpc/call/context_block.h"
#include "verbena/rpc/call/method_shape.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/cancel.h"

namespace verbena::internal {

absl::Status ChangedRequest(const MethodDescriptor& method, size_t before, size_t now) {
  return absl::FailedPreconditionError(
      fmt::format("the request of {} had {} bytes when its call began, and has {} now: it must "
                  "not change before the call has ended",
                  method.full_name, before, now));
}

CallInFlight::CallInFlight(CallInFlight& other)
    : session_(other.session_),
      scheduler_(other.scheduler_),
      method_(other.method_),
      request_(other.request_),
      reply_(other.reply_),
      deadline_(other.deadline_),
      info_(other.info_),
      id_(other.id_),
      request_bytes_(other.request_bytes_),
      method_number_(other.method_number_),
      state_(std::exchange(other.state_, State::kEnded)),
      timed_(other.timed_),
      sent_at_(other.sent_at_) {
  VERBENA_CHECK(landing_needed()) << method_.full_name;
  session_->HandOver(id_, *this);
  if (!has_deadline()) return;
  scheduler_.StopTimer(other);
  scheduler_.StartTimer(*this, deadline_);
}

bool CallInFlight::RequestChanged() const {
  return request_bytes_ > 0 && request_.ByteSizeLong() != request_bytes_;
}

void CallInFlight::FailChanged() {
  GiveUpAndWake(ChangedRequest(method_, request_bytes_, request_.ByteSizeLong()));
}

absl::Status CallInFlight::Unasked(const FrameHeader& frame) const {
  return absl::InvalidArgumentError(
      fmt::format("a response to call {} of slot {}, whose request has not left yet",
                  frame.call_generation, frame.call_slot));
}

absl::Status CallInFlight::BulkForNothing() {
  return absl::InvalidArgumentError("a response tells of bulk, for which nothing was leased");
}

absl::StatusOr<size_t> CallInFlight::ReadUnleased(const char* body, size_t bytes) {
  VERBENA_ASSIGN_OR_RETURN(ResponseBulk bulk, ParseResponseBulk(body, bytes));
  const size_t ahead = bulk.frame_bytes();
  if (!bulk.has_payload || bulk.message_bytes > 0) return BulkForNothing();
  VERBENA_RETURN_IF_ERROR(DropPayload(bulk));
  return ahead;
}

absl::Status CallInFlight::DropPayload(ResponseBulk& bulk) {
  if (bulk.payload_bytes > 0 && !bulk.payload_in_frame) return BulkForNothing();
  bulk.has_payload = bulk.payload_in_frame = bulk.payload_in_asked = false;
  bulk.payload_bytes = 0;
  status_ = WithOutcome(UnknownPayload(), Outcome::kExecuted);
  return absl::OkStatus();
}

absl::Status CallInFlight::UnknownPayload() const {
  return absl::UnimplementedError(
      fmt::format("the responses of {} have payloads at the server and none at the client; {}",
                  method_.full_name, kFitProtos));
}

absl::Status CallInFlight::LandingOutOfTurn() {
  return absl::InvalidArgumentError("a landing was asked for out of turn");
}

absl::StatusOr<size_t> CallInFlight::ReadContext(const FrameHeader& frame, const char* body) {
  VERBENA_ASSIGN_OR_RETURN(ContextHeader header, ParseContextHeader(body, frame.body_bytes));
  VERBENA_ASSIGN_OR_RETURN(Metadata trailing, ParseTrailingMetadata(body, header.block_bytes));
  if (info_ != nullptr) info_->trailing_metadata = std::move(trailing);
  return header.block_bytes;
}

void CallInFlight::SetUnparsed(size_t bytes) {
  status_ =
      WithOutcome(absl::InternalError(fmt::format("the reply of {} ({} bytes) does not parse as {}",
                                                  method_.full_name, bytes, TypeNameOf(reply_))),
                  Outcome::kExecuted);
}

absl::Status CallInFlight::CancelledBefore() const {
  const bool is_late = cancel_reason() == absl::StatusCode::kDeadlineExceeded;
  return is_late ? TooLate() : cancel_status();
}

absl::Status CallInFlight::TooLate() {
  return absl::DeadlineExceededError("the deadline passed before the call began");
}

absl::Status CallInFlight::DeadlinePassed() {
  // Otherwise the server waits: for the request, or for a landing.
  const bool is_owed = state_ == State::kSent && !SendWaiter::linked();
  if (is_owed && session_->tally() != nullptr) session_->tally()->OnFailure();
  return session_->DeadlinePassed(method_);
}

void CallInFlight::GiveUp(absl::Status status) {
  const CallId id = id_;
  const bool sent = state_ > State::kQueued;
  const bool keeps_slot = LetGo(sent);
  status_ = WithOutcome(std::move(status), sent ? Outcome::kMaybeExecuted : Outcome::kNotExecuted);
  EndWithoutSlot();
  if (!keeps_slot) session_->Release(id);
  if (sent) session_->SendCancel(id);
}

void CallInFlight::GiveUpAndWake(absl::Status status) {
  const bool waits = !landing_needed();
  GiveUp(std::move(status));
  if (waits) Resume();
}

void CallInFlight::Abandon() { GiveUp(CancelStatus(absl::StatusCode::kCancelled)); }

bool CallInFlight::EndWithLink(const absl::Status& reason) {
  const bool sent = state_ > State::kQueued;
  status_ = WithOutcome(reason, sent ? Outcome::kMaybeExecuted : Outcome::kNotExecuted);
  End();
  return !sent;
}

absl::Status CallInFlight::OnStreamFrame(const FrameHeader& frame, const char*) {
  return NotAStream(frame);
}

void CallInFlight::OnTimer() { GiveUpAndWake(DeadlinePassed()); }

void CallInFlight::Detach() {
  const bool is_late = cancel_reason() == absl::StatusCode::kDeadlineExceeded;
  GiveUp(is_late ? DeadlinePassed() : cancel_status());
}

}  // namespace verbena::internal
