#include "verbena/rpc/server/response.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/call/context_block.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/rpc/call/status_codec.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {

void CallMessages::DropRequestBeyond(size_t most) {
  if (request_bytes_ <= most) return;
  request_.reset(method_.request_prototype->New());
}

void CallMessages::DropReplyBeyond(size_t most) {
  if (reply_bytes_ <= most) return;
  reply_.reset(method_.reply_prototype->New());
}

void CallMessages::DropFailedReply() {
  NoteReply();
  DropReplyBeyond(kMaxPooledBytes);
}

void ServerResponse::Begin() {
  begun_ = true;
  frame_ = ResponseFrame(parts_.id);
  if (parts_.carried.outgoing() != nullptr) [[unlikely]]
    frame_.flags = kFrameHasContext;
  if (parts_.bulk.get() != nullptr) [[unlikely]]
    invalidated = bulk().FinalKey(*parts_.link->link());
}

bool ServerResponse::SendInFrame(Link& link, size_t reply_bytes) {
  char* body = link.Append(ResponseFrame(parts_.id), reply_bytes);
  if (body == nullptr) [[unlikely]] {
    AwaitRoomInFrame();
    return false;
  }
  messages_.reply().SerializeWithCachedSizesToArray(reinterpret_cast<uint8_t*>(body));
  link.SendNowIfAlone();
  return true;
}

void ServerResponse::AwaitRoomInFrame() {
  Begin();
  body_bytes = messages_.reply_bytes();
  AwaitRoom(*parts_.link->link());
}

bool ServerResponse::Send(const CallEnding& ending) {
  Begin();
  if (!ending.status.ok()) return SendFailure(ending);
  body_bytes = parts_.carried.outgoing_bytes();
  if (ending.way == CallEnding::Way::kAhead) {
    frame_.flags |= kFrameMessageApart;
    return Append();
  }
  body_bytes += messages_.reply_bytes();
  if (parts_.bulk.get() != nullptr && StartWrites()) return false;  // leaves behind the WRITEs
  return Append();
}

bool ServerResponse::SendFailure(const CallEnding& ending) {
  const absl::Status& status = ending.status;
  const size_t context_bytes = parts_.carried.outgoing_bytes();
  const size_t room = parts_.link->link()->max_body_bytes() - context_bytes;
  body_bytes = context_bytes;
  if (ending.way == CallEnding::Way::kInLanding) {
    SetFailure(status.code(), ending.outcome, {});
    return !StartWrites() && Append();
  }
  if (ending.way == CallEnding::Way::kBeside && !StatusFits(status, room)) {
    auto beside = std::make_unique<BesideSender>(StatusBodyOf(status)->SerializeAsString());
    if (beside->size() <= kMaxFailureBytes && beside->CountIn(parts_.link->client().streams())) {
      beside_ = std::move(beside);
    }
  }
  if (beside_ == nullptr) {
    SetFailure(status.code(), ending.outcome, EncodeStatusBody(status, room));
    body_bytes += failure_body_.size();
    return Append();
  }
  frame_.flags |= kFrameMessageApart;
  SetFailure(status.code(), ending.outcome, {});
  const TimePoint now = parts_.state.executor().now();
  const TimePoint due = parts_.deadline == kNever ? now : std::max(now, parts_.deadline);
  beside_until_ = SaturatingAdd(due, parts_.state.limits().response_grace);
  return SendBeside();
}

void ServerResponse::SetFailure(absl::StatusCode code, Outcome outcome, std::string body) {
  frame_.status_code = static_cast<uint8_t>(code);
  frame_.outcome = static_cast<uint8_t>(outcome);
  failure_body_ = std::move(body);
  parts_.NoteFailure(code, outcome);
  parts_.state.NoteFailure();
}

bool ServerResponse::SendBeside() {
  Link& link = *parts_.link->link();
  if (!beside_->Send(link, {frame_.call_slot, frame_.call_generation})) {
    body_bytes = beside_->next_bytes(link);
    AwaitRoom(link);
    return false;
  }
  beside_.reset();
  body_bytes = parts_.carried.outgoing_bytes();
  return Append();
}

bool ServerResponse::StartWrites() {
  WrittenResponse& writes = bulk();
  if (!writes.answers()) return false;
  const size_t context_bytes = parts_.carried.outgoing_bytes();
  const size_t reply_bytes = writes.reply_travels() ? 0 : body_bytes - context_bytes;
  frame_.flags |= kFrameHasBulk;
  body_bytes = prefix_bytes() + reply_bytes;
  return writes.StartWrites(*parts_.link->link(), *this);
}

void ServerResponse::OnTransferPosted() {
  bulk().ForgetWrites();
  CheckReply();
  if (Append()) listener_.OnResponseSent();
}

// Comes before OnTransferPosted() only if the link is lost, which the call has handled.
void ServerResponse::OnTransferDone(const absl::Status&) {}

bool ServerResponse::Append() {
  Link& link = *parts_.link->link();
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
  parts_.link->BeginWait();
  waits_ = true;
  const TimePoint until =
      SaturatingAdd(parts_.state.executor().now(), parts_.state.limits().response_grace);
  StartTimer(beside_ != nullptr ? std::min(until, beside_until_) : until);
}

void ServerResponse::StartTimer(TimePoint until) {
  frames_sent_ = parts_.link->link()->stats().frames_sent;
  parts_.state.executor().StartTimer(*this, until);
  timer_running_ = true;
}

void ServerResponse::StopTimer() {
  if (std::exchange(timer_running_, false)) parts_.state.executor().StopTimer(*this);
}

void ServerResponse::OnTimer() {
  timer_running_ = false;
  Link& link = *parts_.link->link();
  // A response waits its turn behind others, as long as the client takes those, but no longer than
  // the grace after its deadline.
  const TimePoint now = parts_.state.executor().now();
  const Duration grace = parts_.state.limits().response_grace;
  const TimePoint last = beside_ != nullptr ? beside_until_ : SaturatingAdd(parts_.deadline, grace);
  if (link.stats().frames_sent != frames_sent_ && now < last) {
    StartTimer(std::min(last, SaturatingAdd(now, grace)));
    return;
  }
  link.Close(absl::DeadlineExceededError(fmt::format(
      "{} has not taken the response of {} for {} ms (ServerOptions::response_grace): it issues no "
      "credits",
      parts_.link->peer(), method_,
      std::chrono::duration_cast<std::chrono::milliseconds>(grace).count())));
}

// A handler that has ended may have left others access to the reply. The reply's size was cached
// when the handler ended, and serializing a larger reply would write past the frame. The failure
// takes no more room than the reply.
void ServerResponse::CheckReply() {
  const bool in_frame = frame_.status_code == 0 && !reply_travels();
  if (!in_frame) return;
  const size_t before = body_bytes - prefix_bytes();
  const size_t now = messages_.NoteReply();
  if (now == before) return;
  const absl::Status changed = absl::InternalError(fmt::format(
      "the reply of {} had {} bytes when its handler ended, and has {} now", method_, before, now));
  SetFailure(changed.code(), parts_.carried.OutcomeOr(Outcome::kExecuted),
             EncodeStatusBody(changed, before));
  body_bytes = prefix_bytes() + failure_body_.size();
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
  if (const CallContext* context = parts_.carried.outgoing()) {
    context->Encode(body);
    body += context->encoded_bytes();
  }
  if (!has_bulk()) return body;
  VERBENA_CHECK(parts_.bulk.get() != nullptr)
      << "a frame announces a bulk part that the response does not have";
  return bulk().WriteTo(body);
}

void ServerResponse::EndWait() {
  StopTimer();
  if (std::exchange(waits_, false)) parts_.link->EndWait();
}

void ServerResponse::End() {
  SendWaiter::Unlink();
  EndWait();
  beside_.reset();
  invalidated = 0;
  begun_ = false;
}

}  // namespace verbena::internal
