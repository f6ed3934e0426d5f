#include "verbena/rpc/server/response.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/rpc/call/status_codec.h"
#include "verbena/transport/base/check.h"

namespace verbena::internal {

void CallMessages::DropRequestBeyond(size_t most) {
  if (request_bytes_ <= most) return;
  request_.reset(method_.request_prototype->New());
  request_bytes_ = 0;
}

void CallMessages::DropReplyBeyond(size_t most) {
  if (reply_bytes_ <= most) return;
  reply_.reset(method_.reply_prototype->New());
  reply_bytes_ = 0;
}

void ServerResponse::Begin(CallLink& call_link, CallId id, TimePoint deadline, ServerBulk* bulk,
                           const CallContext* context) {
  call_link_ = &call_link;
  deadline_ = deadline;
  frame_ = ResponseFrame(id);
  bulk_ = bulk;
  context_ = context;
  if (context != nullptr) [[unlikely]]
    frame_.flags = kFrameHasContext;
  if (bulk != nullptr) [[unlikely]]
    invalidated = bulk->response().FinalKey(*call_link.link());
}

bool ServerResponse::SendInFrame(CallLink& call_link, CallId id, TimePoint deadline,
                                 size_t reply_bytes) {
  Link& link = *call_link.link();
  char* body = link.Append(ResponseFrame(id), reply_bytes);
  if (body == nullptr) [[unlikely]] {
    AwaitRoomInFrame(call_link, id, deadline, reply_bytes);
    return false;
  }
  messages_.reply().SerializeWithCachedSizesToArray(reinterpret_cast<uint8_t*>(body));
  link.SendNowIfAlone();
  return true;
}

void ServerResponse::AwaitRoomInFrame(CallLink& call_link, CallId id, TimePoint deadline,
                                      size_t reply_bytes) {
  Begin(call_link, id, deadline, nullptr, nullptr);
  body_bytes = reply_bytes;
  AwaitRoom(*call_link.link());
}

bool ServerResponse::SendReply(size_t reply_bytes) {
  body_bytes = reply_bytes + context_bytes();
  if (bulk_ != nullptr && StartWrites()) return false;  // the response leaves behind the WRITEs
  return Append();
}

bool ServerResponse::SendFailure(const absl::Status& status, Outcome outcome) {
  SetFailure(status, outcome, call_link_->link()->max_body_bytes() - context_bytes());
  body_bytes += context_bytes();
  return Append();
}

bool ServerResponse::SendStreamFailure(const absl::Status& status, Outcome outcome) {
  const size_t room = call_link_->link()->max_body_bytes() - context_bytes();
  if (!StatusFits(status, room)) {
    auto beside = std::make_unique<BesideSender>(StatusBodyOf(status)->SerializeAsString());
    if (beside->size() <= kMaxFailureBytes && beside->CountIn(call_link_->client().streams())) {
      beside_ = std::move(beside);
    }
  }
  if (beside_ == nullptr) return SendFailure(status, outcome);
  frame_.flags |= kFrameMessageApart;
  frame_.status_code = static_cast<uint8_t>(status.code());
  frame_.outcome = static_cast<uint8_t>(outcome);
  failure_body_.clear();
  state_.NoteFailure();
  const TimePoint now = state_.executor().now();
  const TimePoint due = deadline_ == kNever ? now : std::max(now, deadline_);
  beside_until_ = SaturatingAdd(due, state_.limits().response_grace);
  return SendBeside();
}

bool ServerResponse::SendBeside() {
  Link& link = *call_link_->link();
  if (!beside_->Send(link, {frame_.call_slot, frame_.call_generation})) {
    body_bytes = beside_->next_bytes(link);
    AwaitRoom(link);
    return false;
  }
  beside_.reset();
  body_bytes = context_bytes();
  return Append();
}

bool ServerResponse::SendFailureInLanding(absl::StatusCode code, Outcome outcome) {
  frame_.status_code = static_cast<uint8_t>(code);
  frame_.outcome = static_cast<uint8_t>(outcome);
  failure_body_.clear();
  state_.NoteFailure();
  body_bytes = context_bytes();
  return !StartWrites() && Append();
}

bool ServerResponse::SendReplyApart() {
  frame_.flags |= kFrameMessageApart;
  body_bytes = context_bytes();
  return Append();
}

bool ServerResponse::StartWrites() {
  if (!bulk_->response().answers()) return false;
  const size_t reply_bytes = bulk_->response().reply_travels() ? 0 : body_bytes - context_bytes();
  frame_.flags |= kFrameHasBulk;
  body_bytes = prefix_bytes() + reply_bytes;
  return bulk_->response().StartWrites(*call_link_->link(), *this);
}

void ServerResponse::OnTransferPosted() {
  bulk_->response().ForgetWrites();
  CheckReply();
  if (Append()) listener_.OnResponseSent();
}

// Comes before OnTransferPosted() only if the link is lost, which the call has handled.
void ServerResponse::OnTransferDone(const absl::Status&) {}

bool ServerResponse::Append() {
  Link& link = *call_link_->link();
  char* body = link.Append(frame_, body_bytes, invalidated);
  if (body == nullptr) {
    AwaitRoom(link);
    return false;
  }
  Write(body);
  link.SendNowIfAlone();
  return true;
}

void ServerResponse::AwaitRoom(Link& link) {
  messages_.DropRequestBeyond(CallMessages::kMaxWaitingRequestBytes);
  if (reply_travels()) messages_.DropReplyBeyond(0);
  link.AwaitWritable(*this);
  call_link_->BeginWait();
  waits_ = true;
  const TimePoint until = SaturatingAdd(state_.executor().now(), state_.limits().response_grace);
  StartTimer(beside_ != nullptr ? std::min(until, beside_until_) : until);
}

void ServerResponse::StartTimer(TimePoint until) {
  frames_sent_ = call_link_->link()->stats().frames_sent;
  state_.executor().StartTimer(*this, until);
  timer_running_ = true;
}

void ServerResponse::StopTimer() {
  if (std::exchange(timer_running_, false)) state_.executor().StopTimer(*this);
}

void ServerResponse::OnTimer() {
  timer_running_ = false;
  Link& link = *call_link_->link();
  // A response waits its turn behind others, as long as the client takes those, but no longer than
  // the grace after its deadline.
  const TimePoint now = state_.executor().now();
  const Duration grace = state_.limits().response_grace;
  const TimePoint last = beside_ != nullptr ? beside_until_ : SaturatingAdd(deadline_, grace);
  if (link.stats().frames_sent != frames_sent_ && now < last) {
    StartTimer(std::min(last, SaturatingAdd(now, grace)));
    return;
  }
  link.Close(absl::DeadlineExceededError(fmt::format(
      "{} has not taken the response of {} for {} ms (ServerOptions::response_grace): it issues no "
      "credits",
      call_link_->peer(), method_,
      std::chrono::duration_cast<std::chrono::milliseconds>(grace).count())));
}

void ServerResponse::SetFailure(const absl::Status& status, Outcome outcome, size_t max_bytes) {
  frame_.status_code = static_cast<uint8_t>(status.code());
  frame_.outcome = static_cast<uint8_t>(outcome);
  failure_body_ = EncodeStatusBody(status, max_bytes);
  body_bytes = failure_body_.size();
  state_.NoteFailure();
}

// A handler that has ended may have left others access to the reply. The reply's size was cached
// when the handler ended, and serializing a larger reply would write past the frame. The failure
// takes no more room than the reply.
void ServerResponse::CheckReply() {
  const bool in_frame = frame_.status_code == 0 && !reply_travels();
  if (!in_frame) return;
  const size_t before = body_bytes - prefix_bytes();
  const size_t now = messages_.reply().ByteSizeLong();
  if (now == before) return;
  messages_.NoteReply(now);
  SetFailure(absl::InternalError(
                 fmt::format("the reply of {} had {} bytes when its handler ended, and has {} now",
                             method_, before, now)),
             Outcome::kExecuted, before);
  body_bytes += prefix_bytes();
}

void ServerResponse::OnWritable(Link& link) {
  EndWait();
  if (beside_ != nullptr) [[unlikely]] {
    if (SendBeside()) listener_.OnResponseSent();
    return;
  }
  CheckReply();
  Write(link.Append(frame_, body_bytes, invalidated));
  listener_.OnResponseSent();
}

void ServerResponse::Write(char* body) {
  if (frame_.flags != 0) [[unlikely]]
    body = WritePrefix(body);
  if (frame_.status_code != 0) {
    failure_body_.copy(body, failure_body_.size());
  } else if (frame_.flags == 0 || !reply_travels()) {
    messages_.reply().SerializeWithCachedSizesToArray(reinterpret_cast<uint8_t*>(body));
  }
}

char* ServerResponse::WritePrefix(char* body) {
  if (context_ != nullptr) {
    context_->Encode(body);
    body += context_bytes();
  }
  if (!has_bulk()) return body;
  VERBENA_CHECK(bulk_ != nullptr)
      << "a frame announces a bulk part that the response does not have";
  return bulk_->response().WriteTo(body);
}

void ServerResponse::EndWait() {
  StopTimer();
  if (std::exchange(waits_, false)) call_link_->EndWait();
}

void ServerResponse::ClearRest() {
  EndWait();
  bulk_ = nullptr;
  beside_.reset();
  invalidated = 0;
}

}  // namespace verbena::internal
