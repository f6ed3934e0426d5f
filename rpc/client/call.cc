#include "verbena/rpc/client/call.h"

#include <chrono>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/call/allocate.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/rpc/detail/message.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/status.h"

namespace verbena::internal {

void ClientCall::LeaveBulk() {
  if (active_) GiveUp(CancelStatus(absl::StatusCode::kCancelled));
  bulk_ = nullptr;
}

void ClientCall::AbandonUnended() { GiveUp(CancelStatus(absl::StatusCode::kCancelled)); }

bool ClientCall::Await(PromiseBase& caller) {
  if (Cancelled(caller)) {
    if (stage_ == Stage::kNew) {
      Refuse(Refusal());
    } else if (active_) {
      GiveUp(cancel_status());
    }
    return false;
  }
  if (stage_ == Stage::kNew && !Begin()) return false;
  // Something may have happened while nobody awaited it.
  if (stage_ == Stage::kEnded) return false;
  Suspend(caller);
  suspended_ = true;
  return true;
}

bool ClientCall::AwaitInFrame(PromiseBase& caller) {
  if (Cancelled(caller)) [[unlikely]] {
    Refuse(Refusal());
    return false;
  }
  Link& link = *session_.link();
  const TimePoint deadline = deadline_.when();
  const bool has_deadline = deadline != kNever;
  if (has_deadline || info_ != nullptr) {
    started_ = scheduler_.now();
    if (deadline <= started_) [[unlikely]] {
      Refuse(Refusal());
      return false;
    }
  }
  method_number_ = session_.NumberOf(method_);
  if (method_number_ == 0 || !session_.Register(*this, &id_)) [[unlikely]] {
    Refuse(Refusal());
    return false;
  }
  active_ = true;
  stage_ = Stage::kSent;
  if (session_.times_call()) [[unlikely]]
    TimeForTally();
  FrameHeader frame = RequestFrame(id_, method_number_);
  if (has_deadline) SetDeadlineOf(frame);
  if (char* body = link.Append(frame, request_bytes_)) [[likely]] {
    if (request_bytes_ > 0)
      request_.SerializeWithCachedSizesToArray(reinterpret_cast<uint8_t*>(body));
    sent_ = true;
  } else {
    body_bytes = request_bytes_;
    link.AwaitWritable(*this);
  }
  if (has_deadline) scheduler_.StartTimer(*this, deadline);
  if (stage_ == Stage::kEnded) [[unlikely]]
    return false;
  // Cancelled() has noted the caller.
  if (CancelScope* scope = caller.cancel) scope->Add(*this);
  suspended_ = true;
  return true;
}

bool ClientCall::Begin() {
  VERBENA_CHECK(session_.link() != nullptr) << method_.full_name;
  // Reading the clock costs as much as posting a WR: only calls that need times pay.
  if (deadline_.is_set() || info_ != nullptr) started_ = scheduler_.now();
  body_bytes = request_bytes_ + context_bytes_ + (bulk_ != nullptr ? bulk_->frame_bytes() : 0);
  // The link may have been replaced since the request was measured, and the new one may have
  // smaller frames.
  method_number_ = session_.NumberOf(method_);
  if (body_bytes > session_.max_body_bytes() || deadline_.when() <= started_ ||
      method_number_ == 0 || !session_.Register(*this, &id_)) {
    Refuse(Refusal());
    return false;
  }
  active_ = true;
  if (session_.times_call()) [[unlikely]]
    TimeForTally();
  stage_ = Stage::kSent;
  if (bulk_ == nullptr || !bulk_->StartWrite(session_, *this)) SendRequest();
  if (deadline_.is_set()) scheduler_.StartTimer(*this, deadline_.when());
  return true;
}

absl::Status ClientCall::Refusal() const {
  const bool is_late = cancel_reason() == absl::StatusCode::kDeadlineExceeded;
  if (!is_late && !cancel_status().ok()) return cancel_status();
  if (is_late || deadline_.when() <= started_) {
    return absl::DeadlineExceededError("the deadline passed before the call began");
  }
  if (body_bytes > session_.max_body_bytes()) {
    return absl::UnavailableError(
        fmt::format("the request to {} takes {} bytes, but a frame of this link {}: the link "
                    "changed while the call began; try again",
                    method_.full_name, body_bytes, session_.max_body_bytes()));
  }
  return method_number_ == 0 ? session_.NoSuchMethod(method_) : ClientSession::TooManyCalls();
}

void ClientCall::Refuse(absl::Status status) {
  if (bulk_ != nullptr) (void)bulk_->Abandon(session_, /*sent=*/false);
  stage_ = Stage::kEnded;
  status_ = WithOutcome(std::move(status), Outcome::kNotExecuted);
  // A call that was cancelled before it began has read no clock.
  if (started_ == TimePoint()) started_ = scheduler_.now();
  FillInfo();
}

void ClientCall::SendRequest() {
  Link& link = *session_.link();
  if (bulk_ != nullptr) invalidated = bulk_->RequestKey(link);
  if (char* body = link.Append(RequestHeader(), body_bytes, invalidated)) {
    WriteRequest(body);
  } else {
    link.AwaitWritable(*this);
  }
}

FrameHeader ClientCall::RequestHeader() const {
  FrameHeader frame = RequestFrame(id_, method_number_);
  if (bulk_ != nullptr) frame.flags = kFrameHasBulk;
  if (context_bytes_ != 0) frame.flags |= kFrameHasContext;
  if (deadline_.is_set()) SetDeadlineOf(frame);
  return frame;
}

void ClientCall::TimeForTally() {
  timed_ = true;
  if (!deadline_.is_set() && info_ == nullptr) started_ = scheduler_.now();
}

void ClientCall::SetDeadlineOf(FrameHeader& request) const {
  request.set_deadline(RemainingUs(deadline_.when(), scheduler_.now()));
}

void ClientCall::WriteRequest(char* body) {
  VERBENA_DCHECK(active_ && !sent_) << method_.full_name << " is sent twice, or has ended";
  if (context_bytes_ != 0) [[unlikely]]
    WriteContext(body);
  body += context_bytes_;
  if (bulk_ != nullptr) {
    body = bulk_->WriteTo(body);
    bulk_->OnRequestAppended(session_);
  }
  if (request_bytes_ > 0) {
    request_.SerializeWithCachedSizesToArray(reinterpret_cast<uint8_t*>(body));
  }
  sent_ = true;
}

void ClientCall::WriteContext(char* body) const {
  if (context_->sent_listener != nullptr) {
    context_->sent_listener->OnContextSent(session_.link()->incarnation());
  }
  if (context_travels_) {
    EncodeTravellingContext(context_->encoded_bytes(), body);
  } else {
    context_->Encode(body);
  }
}

void ClientCall::SendLanding(const RemoteRange& landing) {
  VERBENA_CHECK(landing_needed()) << method_.full_name;
  stage_ = Stage::kSent;
  status_ = absl::OkStatus();  // the await before has taken it
  landing_ = landing;
  body_bytes = kLandingBytes;
  invalidated = 0;
  LimitAnswer();
  if (char* body = link().Append(LandingFrame(id_), body_bytes)) {
    EncodeLanding(*landing_, body);
  } else {
    link().AwaitWritable(*this);
  }
}

void ClientCall::LimitAnswer() {
  const TimePoint limit = SaturatingAdd(scheduler_.now(), kMaxLandingWait);
  if (deadline_.when() <= limit) return;
  if (deadline_.is_set()) scheduler_.StopTimer(*this);
  deadline_ = limit;
  answer_limited_ = true;
  scheduler_.StartTimer(*this, limit);
}

void ClientCall::OnWritable(Link& link) {
  VERBENA_DCHECK(active_) << method_.full_name;
  if (sent_) {
    EncodeLanding(*landing_, link.Append(LandingFrame(id_), body_bytes));
    return;
  }
  if (RequestChanged()) {
    FailChanged();
    return;
  }
  WriteRequest(link.Append(RequestHeader(), body_bytes, invalidated));
}

void ClientCall::OnPayloadAhead() {
  if (RequestChanged()) {
    FailChanged();
  } else {
    SendRequest();
  }
}

// Whoever makes the call may still reach the request while it waits. Its size was cached when the
// call began, and serializing a larger request would write past the frame.
bool ClientCall::RequestChanged() const {
  return request_bytes_ > 0 && request_.ByteSizeLong() != request_bytes_;
}

void ClientCall::FailChanged() {
  GiveUp(ChangedRequest(method_, request_bytes_, request_.ByteSizeLong()));
  Wake();
}

absl::Status ChangedRequest(const MethodDescriptor& method, size_t before, size_t now) {
  return absl::FailedPreconditionError(
      fmt::format("the request of {} had {} bytes when its call began, and has {} now: it must "
                  "not change before the call has ended",
                  method.full_name, before, now));
}

absl::StatusOr<size_t> ClientCall::ReadPrefix(const FrameHeader& frame, const char* body) {
  size_t prefix = 0;
  if ((frame.flags & kFrameHasContext) != 0) {
    VERBENA_ASSIGN_OR_RETURN(prefix, ReadContext(frame, body));
  }
  if ((frame.flags & kFrameHasBulk) != 0) {
    VERBENA_ASSIGN_OR_RETURN(size_t bulk, ReadBulk(body + prefix, frame.body_bytes - prefix));
    prefix += bulk;
  }
  return prefix;
}

absl::StatusOr<size_t> ClientCall::ReadContext(const FrameHeader& frame, const char* body) {
  VERBENA_ASSIGN_OR_RETURN(ContextHeader header, ParseContextHeader(body, frame.body_bytes));
  VERBENA_ASSIGN_OR_RETURN(Metadata trailing, ParseTrailingMetadata(body, header.block_bytes));
  if (info_ != nullptr) info_->trailing_metadata = std::move(trailing);
  return header.block_bytes;
}

// Returns where in `body` the reply begins: behind the bulk header, and a payload in the frame.
absl::StatusOr<size_t> ClientCall::ReadBulk(const char* body, size_t bytes) {
  VERBENA_ASSIGN_OR_RETURN(ResponseBulk bulk, ParseResponseBulk(body, bytes));
  if (bulk_ == nullptr) {
    return absl::InvalidArgumentError("a response tells of bulk, for which nothing was leased");
  }
  if (bulk.has_payload && !method_.response_payload()) {
    return absl::InvalidArgumentError(
        fmt::format("a response of {}, which has no payloads, has one", method_.full_name));
  }
  VERBENA_RETURN_IF_ERROR(bulk_->OnResponse(session_, bulk, body + ResponseBulk::kEncodedBytes));
  return bulk.frame_bytes();
}

absl::Status ClientCall::Unasked(const FrameHeader& frame) const {
  return absl::InvalidArgumentError(
      fmt::format("a response to call {} of slot {}, whose request has not left yet",
                  frame.call_generation, frame.call_slot));
}

void ClientCall::SetUnparsed(size_t bytes) {
  status_ =
      WithOutcome(absl::InternalError(fmt::format("the reply of {} ({} bytes) does not parse as {}",
                                                  method_.full_name, bytes, TypeNameOf(reply_))),
                  Outcome::kExecuted);
}

void ClientCall::SetFailure(const FrameHeader& frame, const char* body, size_t skip) {
  status_ = FailureOf(frame, body + skip, frame.body_bytes - skip);
  // Until the lease of that memory has ended (ClientBulk::ReadFailure).
  if (bulk_ != nullptr && bulk_->has_message()) {
    status_ = Annotate(status_, "the server's message, which did not fit a frame, was lost");
    bulk_->NoteFailure();
  }
}

absl::Status ClientCall::OnResponse(const FrameHeader& frame, const char* body) {
  if (!sent_) [[unlikely]]
    return Unasked(frame);
  if (timed_) [[unlikely]]
    session_.tally()->OnTimed(scheduler_.now() - started_);
  size_t skip = 0;
  if (frame.flags != 0) {
    VERBENA_ASSIGN_OR_RETURN(skip, ReadPrefix(frame, body));
  }
  if (info_ != nullptr) info_->reply_bytes = frame.body_bytes - static_cast<uint32_t>(skip);
  // A reply that lies in a landing is parsed when the lease has ended.
  const bool in_frame = bulk_ == nullptr || !bulk_->has_message();
  if (frame.status_code != 0) {
    SetFailure(frame, body, skip);
  } else if (in_frame &&
             !reply_.ParseFromArray(body + skip, static_cast<int>(frame.body_bytes - skip))) {
    SetUnparsed(frame.body_bytes);
  }
  if (bulk_ != nullptr) bulk_->OnFinal(session_);
  session_.NoteAnswered();
  End();
  Wake();
  return absl::OkStatus();
}

absl::Status ClientCall::OnLandingNeeded(const LandingRequest& wanted) {
  if (!sent_ || landing_wanted_.has_value()) {
    return absl::InvalidArgumentError("a landing was asked for out of turn");
  }
  landing_wanted_ = wanted;
  stage_ = Stage::kLandingNeeded;
  OnLandingWanted();
  return absl::OkStatus();
}

absl::Status ClientCall::OnStreamFrame(const FrameHeader& frame, const char*) {
  return absl::InvalidArgumentError(
      fmt::format("a frame of a stream for call {} of slot {}, which is not a stream",
                  frame.call_generation, frame.call_slot));
}

void ClientCall::OnLinkDown(const absl::Status& reason) {
  if (bulk_ != nullptr) bulk_->OnLinkDown(sent_);
  status_ = WithOutcome(reason, sent_ ? Outcome::kMaybeExecuted : Outcome::kNotExecuted);
  End();
  lost_unsent_ = !sent_;
  if (lost_unsent_ && suspended_) {
    OnLostUnsent();
  } else {
    Wake();
  }
}

// The server may still write to the landing: its memory is safe once the link is down.
void ClientCall::CloseUnanswered() {
  Link& link = *session_.link();
  link.Close(absl::UnavailableError(
      fmt::format("{} asked for a landing of {} bytes for its response to {}, and has not answered "
                  "for {} s since it got one",
                  link.peer(), landing_->bytes, method_.full_name,
                  std::chrono::duration_cast<std::chrono::seconds>(kMaxLandingWait).count())));
}

void ClientCall::OnTimer() {
  if (answer_limited_) {
    CloseUnanswered();
    return;
  }
  GiveUp(DeadlinePassed());
  Wake();
}

absl::Status ClientCall::DeadlinePassed() {
  // Otherwise the server waits: for the request, or for a landing.
  const bool is_owed = sent_ && stage_ == Stage::kSent && !SendWaiter::linked();
  if (is_owed && session_.tally() != nullptr) session_.tally()->OnFailure();
  return session_.DeadlinePassed(method_);
}

void ClientCall::Wake() {
  if (std::exchange(suspended_, false)) Resume();
}

void ClientCall::Detach() {
  suspended_ = false;
  const bool is_late = cancel_reason() == absl::StatusCode::kDeadlineExceeded;
  GiveUp(is_late ? DeadlinePassed() : cancel_status());
}

void ClientCall::GiveUp(absl::Status status) {
  const CallId id = id_;
  const bool sent = sent_;
  if (bulk_ != nullptr) session_.Quarantine(id, bulk_->Abandon(session_, sent));
  status_ = WithOutcome(std::move(status), sent ? Outcome::kMaybeExecuted : Outcome::kNotExecuted);
  End();
  if (sent) session_.SendCancel(id);
}

void ClientCall::End() {
  VERBENA_DCHECK(active_ && stage_ != Stage::kEnded) << method_.full_name << " ends twice";
  active_ = false;
  stage_ = Stage::kEnded;
  SendWaiter::Unlink();
  if (deadline_.is_set()) scheduler_.StopTimer(*this);
  FillInfo();
  session_.Release(id_);
}

void ClientCall::FillInfo() {
  if (info_ == nullptr) return;
  info_->elapsed = scheduler_.now() - started_;
  info_->request_bytes = static_cast<uint32_t>(request_bytes_);
}

}  // namespace verbena::internal
