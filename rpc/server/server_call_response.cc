// The part of a ServerCall for responses that are more than one frame with a reply: failures, large
// replies, payloads, trailing metadata and the ends of streams.

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "verbena/rpc/call/allocate.h"
#include "verbena/rpc/call/status_codec.h"
#include "verbena/rpc/outcome.h"
#include "verbena/rpc/server/server_call.h"
#include "verbena/rpc/server/server_session.h"
#include "verbena/rpc/server/server_shard.h"
#include "verbena/transport/coro/deadline.h"

namespace verbena::internal {
namespace {

Task<absl::Status> WriteReply(StreamSender& sender, const google::protobuf::MessageLite& reply) {
  co_return co_await StreamWrite(sender, reply);
}

}  // namespace

void ServerCall::EndTask(const absl::Status& status, Outcome outcome) {
  outcome = context_->OutcomeGiven(status).value_or(outcome);
  const bool refused = step_ == Step::kFetch || step_ == Step::kIntercept;
  if (refused) outcome = Outcome::kNotExecuted;
  outcome = carried_.OutcomeOr(outcome);
  if (failure_ != nullptr) {
    RespondLargeFailure(status);
  } else if (status.ok() && step_ != Step::kAskForLanding && step_ != Step::kSendReply) {
    Complete();
  } else if (status.ok() || !AskForFailure(status, outcome)) {
    Respond(status, outcome);
  }
}

bool ServerCall::AskForFailure(const absl::Status& status, Outcome outcome) {
  const Link* link = session_->link();
  if (stream_.get() != nullptr || step_ == Step::kAskForLanding || link == nullptr ||
      !link->open() || cancel_->requested() ||
      StatusFits(status, link->max_body_bytes() - carried_.outgoing_bytes())) {
    return false;
  }
  auto failure = std::make_unique<LargeFailure>(status, outcome, StatusBodyOf(status));
  if (!Bulk().response().PlanFailure(failure->body->ByteSizeLong()).ok()) return false;
  failure_ = std::move(failure);
  step_ = Step::kAskForLanding;
  task_ = bulk_.get()->response().AskForLanding(*failure_->body);
  task_.Start(shard_.executor(), &*cancel_, this);
  return true;
}

void ServerCall::RespondLargeFailure(const absl::Status& asked) {
  const std::unique_ptr<LargeFailure> failure = std::move(failure_);
  if (!asked.ok()) {
    Respond(failure->status, failure->outcome);
    return;
  }
  DropFailedReply();
  if (!BeginResponse()) return;
  if (response_.SendFailureInLanding(failure->status.code(), failure->outcome)) Finish();
}

void ServerCall::CompleteWithParts(size_t reply_bytes) {
  const Link* link = session_->link();
  const bool large =
      link != nullptr && reply_bytes + carried_.outgoing_bytes() > link->max_body_bytes();
  if (large && stream_.get() != nullptr) {
    step_ = Step::kSendReply;
    task_ = SendReply();
    task_.Start(shard_.executor(), &*cancel_, this);
  } else if (bulk_.get() != nullptr || large) {
    CompleteWithBulk(reply_bytes);
  } else {
    Respond(absl::OkStatus(), Outcome::kExecuted);
  }
}

void ServerCall::CompleteWithBulk(size_t reply_bytes) {
  absl::Status planned =
      Bulk().response().Plan(*entry_.method->descriptor, reply_bytes, carried_.outgoing_bytes());
  if (!planned.ok() || !bulk_.get()->response().needs_landing()) {
    Respond(planned, Outcome::kExecuted);
    return;
  }
  step_ = Step::kAskForLanding;
  task_ = bulk_.get()->response().AskForLanding(messages_.reply());
  task_.Start(shard_.executor(), &*cancel_, this);
}

// The reply does not fit a frame, so it goes ahead of the response.
Task<absl::Status> ServerCall::SendReply() {
  const TimePoint limit = SaturatingAdd(shard_.executor().now(), kMaxLandingWait);
  co_return co_await WithDeadline(WriteReply(stream_.get()->sender(), messages_.reply()), limit);
}

ServerBulk& ServerCall::Bulk() {
  if (bulk_.get() == nullptr) BeginBulk({}, {}, nullptr);
  return *bulk_.get();
}

absl::Status ServerCall::OnLanding(const RemoteRange& landing) {
  ServerBulk* bulk = bulk_.get();
  return bulk != nullptr ? bulk->response().OnLanding(landing) : absl::OkStatus();
}

absl::Status ServerCall::EndStream(const absl::Status& status) {
  if (stream_.get()->OnHandlerEnd() || !status.ok()) return status;
  if (cancel_.has_value() && cancel_->requested()) return cancel_->status();
  return absl::AbortedError(
      fmt::format("the handler of {} returned OK before its last Write had sent its message: "
                  "co_await each Write",
                  method_name()));
}

void ServerCall::Respond(const absl::Status& status, Outcome outcome) {
  if (has_parts()) {
    RespondWithParts(status, outcome);
  } else {
    RespondPlainly(status, outcome);
  }
}

void ServerCall::RespondPlainly(const absl::Status& status, Outcome outcome) {
  if (!status.ok()) DropFailedReply();
  if (!EndHandler()) return;
  response_.Begin(*session_, id_, deadline_, nullptr, nullptr);
  const bool sent = status.ok() ? response_.SendReply(messages_.reply_bytes())
                                : response_.SendFailure(status, outcome);
  if (sent) Finish();
}

void ServerCall::RespondWithParts(const absl::Status& handlers, Outcome outcome) {
  const bool is_stream = stream_.get() != nullptr;
  // A client that has given up reads no details.
  const bool is_heard = cancel_.has_value() && !cancel_->requested();
  const absl::Status ended = is_stream ? EndStream(handlers) : absl::OkStatus();
  const absl::Status& status = is_stream ? ended : handlers;
  if (!status.ok()) DropFailedReply();
  if (!BeginResponse()) return;
  const bool in_full = is_stream && is_heard;
  const bool sent = !status.ok() ? (in_full ? response_.SendStreamFailure(status, outcome)
                                            : response_.SendFailure(status, outcome))
                    : step_ == Step::kSendReply ? response_.SendReplyApart()
                                                : response_.SendReply(messages_.reply_bytes());
  if (sent) Finish();
}

bool ServerCall::BeginResponse() {
  carried_.DropIncoming();
  if (!EndHandler()) return false;
  response_.Begin(*session_, id_, deadline_, bulk_.get(), carried_.outgoing());
  if (bulk_.get() != nullptr) EndBulkRequest();
  return true;
}

// The handler may have made a large reply before it failed.
void ServerCall::DropFailedReply() {
  messages_.NoteReply(messages_.reply().ByteSizeLong());
  messages_.DropReplyBeyond(CallMessages::kMaxPooledBytes);
}

// The shares that DropRequest() gives back count the request's message, too, so a large message is
// freed with them.
void ServerCall::EndBulkRequest() {
  messages_.DropRequestBeyond(CallMessages::kMaxPooledBytes);
  FetchedRequest& request = bulk_.get()->request();
  request.Drop();
  if (const size_t bytes = request.earned_landing_bytes()) session_->OfferLanding(bytes);
}

}  // namespace verbena::internal
