#include "verbena/rpc/client/link_call.h"

#include <chrono>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/call/allocate.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/rpc/detail/message.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/cancel.h"

namespace verbena::internal {

void LinkCall::Abandon() { GiveUp(CancelStatus(absl::StatusCode::kCancelled)); }

bool LinkCall::Await(PromiseBase& caller) {
  if (Cancelled(caller)) {
    if (state_ == State::kNew) return Refuse(CancelledBefore());
    if (active()) GiveUp(cancel_status());
    return false;
  }
  if (state_ == State::kNew && !Begin()) return false;
  // Something may have happened while nobody awaited it.
  if (state_ == State::kEnded) return false;
  Suspend(caller);
  return true;
}

bool LinkCall::Begin() {
  VERBENA_CHECK(session_.link() != nullptr) << method_.full_name;
  // Reading the clock costs as much as posting a WR: only calls that need times pay.
  if (has_deadline() && deadline_ <= scheduler_.now()) return Refuse(TooLate());
  body_bytes = request_bytes_ + context_bytes_ + (bulk_ != nullptr ? bulk_->frame_bytes() : 0);
  // The link may have been replaced since the request was measured, and the new one may have
  // smaller frames.
  if (body_bytes > session_.max_body_bytes()) return Refuse(TooLargeForLink());
  method_number_ = session_.NumberOf(method_);
  if (method_number_ == 0) return Refuse(session_.NoSuchMethod(method_));
  if (!session_.Register(*this, &id_)) return Refuse(ClientSession::TooManyCalls());
  state_ = State::kQueued;
  if (session_.times_call()) [[unlikely]]
    TimeForTally();
  if (bulk_ == nullptr || !bulk_->StartWrite(session_, *this)) SendRequest();
  if (has_deadline()) scheduler_.StartTimer(*this, deadline_);
  return true;
}

absl::Status LinkCall::TooLargeForLink() const {
  return absl::UnavailableError(
      fmt::format("the request to {} takes {} bytes, but a frame of this link {}: the link "
                  "changed while the call began; try again",
                  method_.full_name, body_bytes, session_.max_body_bytes()));
}

bool LinkCall::Refuse(absl::Status status) {
  if (bulk_ != nullptr) (void)bulk_->Abandon(session_, /*sent=*/false);
  state_ = State::kEnded;
  status_ = WithOutcome(std::move(status), Outcome::kNotExecuted);
  return false;
}

void LinkCall::SendRequest() {
  Link& link = *session_.link();
  if (bulk_ != nullptr) invalidated = bulk_->RequestKey(link);
  if (char* body = link.Append(RequestHeader(), body_bytes, invalidated)) {
    WriteRequest(body);
  } else {
    link.AwaitWritable(*this);
  }
}

FrameHeader LinkCall::RequestHeader() const {
  FrameHeader frame = RequestFrame(id_, method_number_);
  if (bulk_ != nullptr) frame.flags = kFrameHasBulk;
  if (context_bytes_ != 0) frame.flags |= kFrameHasContext;
  if (has_deadline()) frame.set_deadline(RemainingUs(deadline_, scheduler_.now()));
  return frame;
}

void LinkCall::WriteRequest(char* body) {
  VERBENA_DCHECK(state_ == State::kQueued) << method_.full_name << " is sent twice, or has ended";
  if (context_bytes_ != 0) WriteContext(body);
  body += context_bytes_;
  if (bulk_ != nullptr) {
    body = bulk_->WriteTo(body);
    bulk_->OnRequestAppended(session_);
  }
  if (request_bytes_ > 0) {
    request_.SerializeWithCachedSizesToArray(reinterpret_cast<uint8_t*>(body));
  }
  state_ = State::kSent;
}

void LinkCall::WriteContext(char* body) const {
  if (context_->sent_listener != nullptr) {
    context_->sent_listener->OnContextSent(session_.link()->incarnation());
  }
  if (context_travels_) {
    EncodeTravellingContext(context_->encoded_bytes(), body);
  } else {
    context_->Encode(body);
  }
}

void LinkCall::SendLanding(const RemoteRange& landing) {
  VERBENA_CHECK(landing_needed()) << method_.full_name;
  state_ = State::kSent;
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

void LinkCall::LimitAnswer() {
  const TimePoint limit = SaturatingAdd(scheduler_.now(), kMaxLandingWait);
  if (deadline_ <= limit) return;
  if (has_deadline()) scheduler_.StopTimer(*this);
  deadline_ = limit;
  answer_limited_ = true;
  scheduler_.StartTimer(*this, limit);
}

void LinkCall::OnWritable(Link& link) {
  VERBENA_DCHECK(active()) << method_.full_name;
  if (state_ == State::kSent) {
    EncodeLanding(*landing_, link.Append(LandingFrame(id_), body_bytes));
    return;
  }
  if (RequestChanged()) {
    FailChanged();
    return;
  }
  WriteRequest(link.Append(RequestHeader(), body_bytes, invalidated));
}

void LinkCall::OnPayloadAhead() {
  if (RequestChanged()) {
    FailChanged();
  } else {
    SendRequest();
  }
}

absl::StatusOr<size_t> LinkCall::ReadPrefix(const FrameHeader& frame, const char* body) {
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

// Returns where in `body` the reply begins: behind the bulk header, and a payload in the frame.
absl::StatusOr<size_t> LinkCall::ReadBulk(const char* body, size_t bytes) {
  VERBENA_ASSIGN_OR_RETURN(ResponseBulk bulk, ParseResponseBulk(body, bytes));
  if (bulk_ == nullptr) return BulkForNothing();
  if (bulk.has_payload && !method_.response_payload()) {
    return absl::InvalidArgumentError(
        fmt::format("a response of {}, which has no payloads, has one", method_.full_name));
  }
  VERBENA_RETURN_IF_ERROR(bulk_->OnResponse(session_, bulk, body + ResponseBulk::kEncodedBytes));
  return bulk.frame_bytes();
}

void LinkCall::SetFailure(const FrameHeader& frame, const char* body, size_t skip) {
  status_ = FailureOf(frame, body + skip, frame.body_bytes - skip);
  // Until the lease of that memory has ended (ClientBulk::ReadFailure).
  if (bulk_ != nullptr && bulk_->has_message()) {
    status_ = Annotate(status_, "the server's message, which did not fit a frame, was lost");
    bulk_->NoteFailure();
  }
}

absl::Status LinkCall::OnResponse(const FrameHeader& frame, const char* body) {
  if (state_ == State::kQueued) [[unlikely]]
    return Unasked(frame);
  if (timed_) [[unlikely]]
    NoteTime();
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
  EndAndWake();
  return absl::OkStatus();
}

absl::Status LinkCall::OnLandingNeeded(const LandingRequest& wanted) {
  if (state_ != State::kSent || wanted_.has_value()) return LandingOutOfTurn();
  wanted_ = wanted;
  state_ = State::kLandingNeeded;
  Resume();
  return absl::OkStatus();
}

void LinkCall::OnLinkDown(const absl::Status& reason) {
  const bool waits = !landing_needed();
  if (bulk_ != nullptr) bulk_->OnLinkDown(/*sent=*/state_ != State::kQueued);
  lost_unsent_ = EndWithLink(reason);
  if (waits) Resume();
}

// The server may still write to the landing: its memory is safe once the link is down.
void LinkCall::CloseUnanswered() {
  Link& link = *session_.link();
  link.Close(absl::UnavailableError(
      fmt::format("{} asked for a landing of {} bytes for its response to {}, and has not answered "
                  "for {} s since it got one",
                  link.peer(), landing_->bytes, method_.full_name,
                  std::chrono::duration_cast<std::chrono::seconds>(kMaxLandingWait).count())));
}

void LinkCall::OnTimer() {
  if (answer_limited_) {
    CloseUnanswered();
  } else {
    CallInFlight::OnTimer();
  }
}

void LinkCall::LetGo(bool sent) {
  if (bulk_ != nullptr) session_.Quarantine(id_, bulk_->Abandon(session_, sent));
}

}  // namespace verbena::internal
