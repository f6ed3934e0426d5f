#include "verbena/rpc/client/plain_call.h"

#include <cstdint>
#include <utility>

#include "verbena/rpc/call/frames.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {

bool PlainCall::Begin(PromiseBase& caller) {
  if (Cancelled(caller)) [[unlikely]]
    return Refuse(CancelledBefore());
  // Reading the clock costs as much as posting a WR: only calls that need times pay.
  TimePoint now{};
  if (has_deadline()) {
    now = scheduler_.now();
    if (deadline_ <= now) [[unlikely]]
      return Refuse(TooLate());
  }
  ClientSession& session = *session_;
  method_number_ = session.NumberOf(method_);
  if (method_number_ == 0) [[unlikely]]
    return Refuse(session.NoSuchMethod(method_));
  if (!session.Register(*this, &id_)) [[unlikely]]
    return Refuse(ClientSession::TooManyCalls());
  if (session.times_call()) [[unlikely]]
    TimeForTally();
  FrameHeader frame = RequestFrame(id_, method_number_);
  if (has_deadline()) {
    frame.set_deadline(RemainingUs(deadline_, now));
    scheduler_.StartTimer(*this, deadline_);
  }
  Link& link = *session.link();
  if (char* body = link.Append(frame, request_bytes_)) [[likely]] {
    Write(body);
  } else {
    state_ = State::kQueued;
    body_bytes = request_bytes_;
    link.AwaitWritable(*this);
  }
  // Cancelled() has noted the caller.
  if (CancelScope* scope = caller.cancel) scope->Add(*this);
  return true;
}

bool PlainCall::Refuse(absl::Status status) {
  state_ = State::kEnded;
  status_ = WithOutcome(std::move(status), Outcome::kNotExecuted);
  return false;
}

void PlainCall::Write(char* body) {
  if (request_bytes_ > 0) {
    request_.SerializeWithCachedSizesToArray(reinterpret_cast<uint8_t*>(body));
  }
  state_ = State::kSent;
}

void PlainCall::OnWritable(Link& link) {
  VERBENA_DCHECK(state_ == State::kQueued) << method_.full_name;
  if (RequestChanged()) {
    FailChanged();
    return;
  }
  FrameHeader frame = RequestFrame(id_, method_number_);
  if (has_deadline()) frame.set_deadline(RemainingUs(deadline_, scheduler_.now()));
  Write(link.Append(frame, request_bytes_));
}

absl::StatusOr<size_t> PlainCall::ReadPrefix(const FrameHeader& frame, const char* body) {
  size_t prefix = 0;
  if ((frame.flags & kFrameHasContext) != 0) {
    VERBENA_ASSIGN_OR_RETURN(prefix, ReadContext(frame, body));
  }
  if ((frame.flags & kFrameHasBulk) != 0) {
    VERBENA_ASSIGN_OR_RETURN(size_t ahead, ReadUnleased(body + prefix, frame.body_bytes - prefix));
    prefix += ahead;
  }
  return prefix;
}

absl::Status PlainCall::OnResponse(const FrameHeader& frame, const char* body) {
  if (state_ == State::kQueued) [[unlikely]]
    return Unasked(frame);
  if (timed_) [[unlikely]]
    NoteTime();
  size_t skip = 0;
  if (frame.flags != 0) {
    VERBENA_ASSIGN_OR_RETURN(skip, ReadPrefix(frame, body));
  }
  const size_t bytes = frame.body_bytes - skip;
  if (info_ != nullptr) info_->reply_bytes = static_cast<uint32_t>(bytes);
  if (frame.status_code != 0) {
    status_ = FailureOf(frame, body + skip, bytes);
  } else if (!reply_.ParseFromArray(body + skip, static_cast<int>(bytes))) {
    SetUnparsed(frame.body_bytes);
  }
  session_->NoteAnswered();
  EndAndWake();
  return absl::OkStatus();
}

absl::Status PlainCall::OnLandingNeeded(const LandingRequest& wanted) {
  if (state_ != State::kSent) return LandingOutOfTurn();
  state_ = State::kLandingNeeded;
  OnLandingWanted(wanted);
  return absl::OkStatus();
}

void PlainCall::OnLinkDown(const absl::Status& reason) {
  const bool waits = !landing_needed();
  const bool unsent = EndWithLink(reason);
  if (unsent) {
    OnLostUnsent();
  } else if (waits) {
    Resume();
  }
}

}  // namespace verbena::internal
