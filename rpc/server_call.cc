#include "verbena/rpc/server_call.h"

#include <exception>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/server_link.h"
#include "verbena/rpc/server_shard.h"
#include "verbena/rpc/status_codec.h"

namespace verbena {

ServerCall::ServerCall(ServerShard& shard, int method_index)
    : shard_(shard),
      method_index_(method_index),
      entry_(shard.methods().entry(method_index)),
      request_(entry_.method->request_prototype->New()),
      reply_(entry_.method->reply_prototype->New()) {}

ServerCall::~ServerCall() {
  if (timer_running_) shard_.executor().StopTimer(*this);
}

void ServerCall::Start(ServerLink& link, CallId id, const FrameHeader& frame, const char* body) {
  link_ = &link;
  id_ = id;
  request_bytes_ = frame.body_bytes;
  if (!request_->ParseFromArray(body, static_cast<int>(frame.body_bytes))) {
    Respond(absl::InvalidArgumentError(fmt::format(
                "the request of {} ({} bytes) does not parse as {}",
                entry_.method->descriptor->full_name, frame.body_bytes, request_->GetTypeName())),
            Outcome::kNotSent);
    return;
  }
  cancel_.emplace();
  context_.emplace(ServerContext(*entry_.method->descriptor, *cancel_, link.peer()));
  if (frame.deadline_us != 0) {
    const TimePoint when = shard_.executor().now() + std::chrono::microseconds(frame.deadline_us);
    context_->deadline_ = Deadline(when);
    shard_.executor().StartTimer(*this, when);
    timer_running_ = true;
  }
  absl::Status thrown = RunHandler();
  if (!thrown.ok()) Respond(std::move(thrown), Outcome::kMaybeExecuted);
}

// A handler need not be a coroutine, so it may throw before there is a Task to hold what it threw.
absl::Status ServerCall::RunHandler() {
  try {
    task_ = entry_.method->invoke(*entry_.service, *context_, *request_, *reply_);
  } catch (const std::exception& error) {
    return absl::InternalError(fmt::format("the handler of {} threw: {}",
                                           entry_.method->descriptor->full_name, error.what()));
  } catch (...) {
    return absl::InternalError(fmt::format("the handler of {} threw something unknown",
                                           entry_.method->descriptor->full_name));
  }
  if (!task_) {
    return absl::InternalError(fmt::format("the handler of {} returned an empty Task",
                                           entry_.method->descriptor->full_name));
  }
  task_.Start(shard_.executor(), &*cancel_, this);
  return absl::OkStatus();
}

void ServerCall::OnTaskDone() {
  absl::Status status;
  Outcome outcome = Outcome::kExecuted;
  try {
    status = task_.TakeResult();
  } catch (const std::exception& error) {
    status = absl::InternalError(fmt::format("the handler of {} threw: {}",
                                             entry_.method->descriptor->full_name, error.what()));
    outcome = Outcome::kMaybeExecuted;
  } catch (...) {
    status = absl::InternalError(fmt::format("the handler of {} threw something unknown",
                                             entry_.method->descriptor->full_name));
    outcome = Outcome::kMaybeExecuted;
  }
  task_ = {};
  Respond(std::move(status), outcome);
}

void ServerCall::Cancel(absl::StatusCode reason) {
  if (cancel_.has_value()) cancel_->Request(reason);
}

void ServerCall::OnTimer() {
  timer_running_ = false;
  Cancel(absl::StatusCode::kDeadlineExceeded);
}

void ServerCall::OnLinkDown() {
  if (cancel_.has_value()) {
    Cancel(absl::StatusCode::kCancelled);
  } else {
    Finish();
  }
}

void ServerCall::Respond(absl::Status status, Outcome outcome) {
  if (timer_running_) {
    shard_.executor().StopTimer(*this);
    timer_running_ = false;
  }
  context_.reset();
  cancel_.reset();
  Link* link = link_->link();
  if (link == nullptr || !link->open()) {
    Finish();
    return;
  }
  response_ = {};
  response_.kind = FrameKind::kResponse;
  response_.call_slot = id_.slot;
  response_.call_generation = id_.generation;
  if (status.ok()) {
    body_bytes = reply_->ByteSizeLong();
    if (body_bytes > link->max_body_bytes()) {
      status = absl::ResourceExhaustedError(
          fmt::format("the reply of {} takes {} bytes, but a frame of this link carries at most {}",
                      entry_.method->descriptor->full_name, body_bytes, link->max_body_bytes()));
    }
  }
  if (!status.ok()) SetFailure(status, outcome, link->max_body_bytes());
  if (char* body = link->Append(response_, body_bytes)) {
    WriteResponse(body);
  } else {
    link->AwaitWritable(*this);
  }
}

void ServerCall::SetFailure(const absl::Status& status, Outcome outcome, size_t max_bytes) {
  response_.status_code = static_cast<uint8_t>(status.code());
  response_.outcome = static_cast<uint8_t>(outcome);
  failure_body_ = EncodeStatusBody(status, max_bytes);
  body_bytes = failure_body_.size();
  shard_.NoteFailure();
}

void ServerCall::OnWritable(Link& link) { WriteResponse(link.Append(response_, body_bytes)); }

void ServerCall::WriteResponse(char* body) {
  if (response_.status_code == 0) {
    reply_->SerializeWithCachedSizesToArray(reinterpret_cast<uint8_t*>(body));
  } else {
    failure_body_.copy(body, body_bytes);
  }
  Finish();
}

void ServerCall::Finish() {
  SendWaiter::Unlink();
  std::exchange(link_, nullptr)->OnCallDone(*this);
  if (request_bytes_ > kMaxPooledMessageBytes) {
    request_.reset(entry_.method->request_prototype->New());
  }
  if (body_bytes > kMaxPooledMessageBytes) {
    reply_.reset(entry_.method->reply_prototype->New());
  } else {
    reply_->Clear();
  }
  shard_.Recycle(*this);
}

}  // namespace verbena
