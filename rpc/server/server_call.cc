#include "verbena/rpc/server/server_call.h"

#include <chrono>
#include <exception>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/call/call_step.h"
#include "verbena/rpc/server/admission.h"
#include "verbena/rpc/server/server_session.h"
#include "verbena/rpc/server/server_shard.h"
#include "verbena/transport/coro/deadline.h"

namespace verbena::internal {
namespace {

// `left`, in microseconds, is what a peer claims.
TimePoint DeadlineIn(uint64_t left, TimePoint now) {
  const auto most = std::chrono::duration_cast<std::chrono::microseconds>(kNever - now);
  if (left >= static_cast<uint64_t>(most.count())) return kNever;
  return now + std::chrono::microseconds(left);
}

}  // namespace

ServerCall::ServerCall(ServerShard& shard, int method_index)
    : shard_(shard),
      entry_(shard.methods().entry(method_index)),
      messages_(*entry_.method),
      response_(shard, entry_.method->descriptor->full_name, messages_, *this) {}

ServerCall::~ServerCall() { StopTimer(); }

void ServerCall::SetCall(ServerSession& session, CallId id, const FrameHeader& frame) {
  session_ = &session;
  id_ = id;
  AtStep(CallStep::kRequestArrived, session.link());
  deadline_ =
      frame.deadline() == 0 ? kNever : DeadlineIn(frame.deadline(), shard_.executor().now());
}

void ServerCall::Start(ServerSession& session, CallId id, const FrameHeader& frame,
                       const char* body, IncomingBulk* bulk, IncomingContext* context) {
  if (frame.flags != 0) {
    SetCall(session, id, frame);
    StartWithParts(frame, body, bulk, context);
  } else {
    StartInFrame(session, id, frame, body);
  }
}

void ServerCall::StartInFrame(ServerSession& session, CallId id, const FrameHeader& frame,
                              const char* body) {
  SetCall(session, id, frame);
  messages_.NoteRequest(frame.body_bytes);
  if (!messages_.request().ParseFromArray(body, static_cast<int>(frame.body_bytes))) {
    Respond(NotParsed(), Outcome::kNotExecuted);
    return;
  }
  BeginContext();
  if (shard_.admission() != nullptr) [[unlikely]] {
    AwaitTurn(false);
    return;
  }
  RunHandler();
}

void ServerCall::BeginContext() {
  cancel_.emplace();
  context_.emplace(ServerContext(*entry_.method->descriptor, *cancel_, session_->peer(), *this));
  if (deadline_ != kNever) StartTimer();
}

// A handler need not be a coroutine, so it may throw before there is a Task to hold what it threw.
void ServerCall::RunHandler() {
  AtStep(CallStep::kHandlerStarts, session_->link());
  try {
    task_ = Invoke();
  } catch (...) {
    EndTurn();
    Respond(Thrown(), Outcome::kMaybeExecuted);
    return;
  }
  if (!task_) {
    EndTurn();
    Respond(NoTask(), Outcome::kMaybeExecuted);
    return;
  }
  task_.Start(shard_.executor(), &*cancel_, this);
}

Task<absl::Status> ServerCall::Invoke() {
  if (shard_.limits().interceptors.empty()) [[likely]]
    return InvokeHandler();
  step_ = Step::kIntercept;
  return RunIntercepted();
}

Task<absl::Status> ServerCall::InvokeHandler() {
  if (carried_.name() != nullptr) [[unlikely]]
    return RunOnce();
  return entry_.method->invoke(*entry_.service, *context_, messages_.request(), messages_.reply());
}

absl::Status ServerCall::NotParsed() const {
  return absl::InvalidArgumentError(fmt::format("the request of {} ({} bytes) does not parse as {}",
                                                method_name(), messages_.request_bytes(),
                                                messages_.request().GetTypeName()));
}

absl::Status ServerCall::NoTask() const {
  return absl::InternalError(
      fmt::format("the handler of {} returned an empty Task: make the handler a coroutine "
                  "(co_return), or return a Task that has not been awaited or moved from",
                  method_name()));
}

// The exception's text goes to the log only: it may hold what the callers must not see.
absl::Status ServerCall::Thrown() const {
  try {
    throw;
  } catch (const std::exception& error) {
    shard_.LogThrown(method_name(), error.what());
  } catch (...) {
    shard_.LogThrown(method_name(), "something unknown");
  }
  return absl::InternalError(
      fmt::format("the handler of {} threw an exception: see the server's log", method_name()));
}

void ServerCall::OnTaskDone() {
  if (shard_.admission() != nullptr) [[unlikely]]
    EndTurn();
  AtStep(CallStep::kHandlerEnded, session_->link());
  absl::Status status;
  Outcome outcome = Outcome::kExecuted;
  try {
    status = task_.TakeResult();
  } catch (...) {
    status = Thrown();
    outcome = Outcome::kMaybeExecuted;
  }
  task_ = {};
  if (status.ok() && step_ == Step::kHandler) [[likely]] {
    Complete();
  } else {
    EndTask(status, outcome);
  }
}

void ServerCall::Complete() {
  const size_t reply_bytes = messages_.reply().ByteSizeLong();
  messages_.NoteReply(reply_bytes);
  const Link* link = session_->link();
  if (!has_parts() && (link == nullptr || reply_bytes <= link->max_body_bytes())) [[likely]] {
    ReplyInFrame(reply_bytes);
  } else {
    CompleteWithParts(reply_bytes);
  }
}

void ServerCall::ReplyInFrame(size_t reply_bytes) {
  if (!EndHandler()) return;
  if (response_.SendInFrame(*session_, id_, deadline_, reply_bytes)) [[likely]]
    FinishReplied();
}

bool ServerCall::EndHandler() {
  StopTimer();
  context_.reset();
  cancel_.reset();
  const Link* link = session_->link();
  if (link != nullptr && link->open()) [[likely]]
    return true;
  Finish();
  return false;
}

void ServerCall::Finish() {
  response_.Clear();
  if (has_parts()) ClearParts();
  step_ = Step::kHandler;
  FinishReplied();
}

void ServerCall::FinishReplied() {
  messages_.Clear();
  std::exchange(session_, nullptr)->OnCallDone(*this);
  shard_.Recycle(*this);
}

void ServerCall::ClearParts() {
  bulk_.Clear();
  carried_.Clear();
  stream_.Clear();
}

void ServerCall::Cancel(absl::StatusCode reason) {
  if (step_ == Step::kQueued) {
    shard_.admission()->Leave(*this);
    step_ = Step::kHandler;
    Respond(CancelStatus(reason), Outcome::kNotExecuted);
    return;
  }
  if (cancel_.has_value()) cancel_->Request(reason);
}

void ServerCall::GiveUp(absl::StatusCode reason) {
  // Another request may wait for the call's result.
  if (carried_.outlives_link() && reason == absl::StatusCode::kCancelled) {
    carried_.once().given_up = true;
    return;
  }
  if (cancel_.has_value() && stream_.get() != nullptr) stream_.get()->OnGivenUp(reason);
  Cancel(reason);
}

void ServerCall::StartTimer() {
  context_->deadline_ = Deadline(deadline_);
  cancel_->LimitDeadline(deadline_);
  shard_.executor().StartTimer(*this, deadline_);
  timer_running_ = true;
}

void ServerCall::StopTimer() {
  if (std::exchange(timer_running_, false)) shard_.executor().StopTimer(*this);
}

void ServerCall::OnTimer() {
  timer_running_ = false;
  GiveUp(absl::StatusCode::kDeadlineExceeded);
}

void ServerCall::OnLinkDown() {
  if (cancel_.has_value()) {
    if (carried_.outlives_link()) return;
    Cancel(absl::StatusCode::kCancelled);
  } else {
    Finish();
  }
}

}  // namespace verbena::internal
