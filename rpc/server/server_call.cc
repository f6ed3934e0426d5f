#include "verbena/rpc/server/server_call.h"

#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/internal/allocate.h"
#include "verbena/rpc/internal/call_step.h"
#include "verbena/rpc/internal/message_hooks.h"
#include "verbena/rpc/internal/status_codec.h"
#include "verbena/rpc/server/server_session.h"
#include "verbena/rpc/server/server_shard.h"
#include "verbena/transport/coro/deadline.h"
#include "verbena/transport/coro/status_macros.h"
#include "verbena/transport/log/mutant.h"

namespace verbena::internal {
namespace {

// `left`, in microseconds, is what a peer claims.
TimePoint DeadlineIn(uint64_t left, TimePoint now) {
  const auto most = std::chrono::duration_cast<std::chrono::microseconds>(kNever - now);
  if (left >= static_cast<uint64_t>(most.count())) return kNever;
  return now + std::chrono::microseconds(left);
}

Task<absl::StatusOr<bool>> ReadRequest(StreamReceiver& receiver,
                                       google::protobuf::MessageLite& request) {
  co_return co_await StreamRead(receiver, request);
}

Task<absl::Status> WriteReply(StreamSender& sender, const google::protobuf::MessageLite& reply) {
  co_return co_await StreamWrite(sender, reply);
}

}  // namespace

ServerCall::ServerCall(ServerShard& shard, int method_index)
    : shard_(shard),
      entry_(shard.methods().entry(method_index)),
      messages_(*entry_.method),
      response_(shard, entry_.method->descriptor->full_name, messages_, *this) {}

ServerCall::~ServerCall() { StopTimer(); }

ServerBulk& ServerCall::Bulk() {
  if (bulk_.get() == nullptr) BeginBulk({}, {}, nullptr);
  return *bulk_.get();
}

void ServerCall::RespondUnlikeTheMethod() {
  Respond(absl::InvalidArgumentError(fmt::format(
              "{} takes no payload with its request, and was given one", method_name())),
          Outcome::kNotExecuted);
}

absl::Status ServerCall::NotParsed() const {
  return absl::InvalidArgumentError(fmt::format("the request of {} ({} bytes) does not parse as {}",
                                                method_name(), messages_.request_bytes(),
                                                messages_.request().GetTypeName()));
}

void ServerCall::BeginBulk(const RequestBulk& bulk, UsedGrant landing, const char* in_frame) {
  bulk_.Make().Begin(shard_, *session_, id_, deadline_, bulk, std::move(landing), in_frame);
}

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

void ServerCall::StartWithParts(const FrameHeader& frame, const char* body, IncomingBulk* bulk,
                                IncomingContext* context) {
  size_t request_bytes = frame.body_bytes;
  if (bulk != nullptr) {
    BeginBulk(bulk->request, std::move(bulk->landing), bulk->in_frame);
    body += bulk->request.frame_bytes();
    request_bytes -= bulk->request.frame_bytes();
  }
  if (context != nullptr) {
    carried_.SetIncoming(std::move(context->block));
    if (context->header.travels && bulk != nullptr) {
      bulk_.get()->set_context_bytes(context->header.block_bytes);
    }
  }
  messages_.NoteRequest(request_bytes);
  bool in_frame = bulk == nullptr || bulk->request.message_bytes == 0;
  if (frame.flags >= kFrameOpensStream) {
    BeginStream(frame);
    if (context != nullptr && context->header.travels) {
      stream_.get()->ExpectContext(session_->streams(), context->header.block_bytes);
    }
    in_frame = entry_.streams == Streams::kServer && (frame.flags & kFrameMessageApart) == 0;
    // Interceptors see it, and it is that of the call before.
    if (!in_frame) messages_.request().Clear();
  }
  if (in_frame && !messages_.request().ParseFromArray(body, static_cast<int>(request_bytes))) {
    Respond(NotParsed(), Outcome::kNotExecuted);
    return;
  }
  if (bulk != nullptr && bulk->request.has_payload &&
      !entry_.method->descriptor->request_payload()) {
    RespondUnlikeTheMethod();
    return;
  }
  BeginContext();
  if (context != nullptr) SetTrace();
  const bool apart = (frame.flags & kFrameMessageApart) != 0;
  if (shard_.admission() != nullptr) {
    AwaitTurn(apart);
  } else {
    Launch(apart);
  }
}

void ServerCall::Launch(bool apart) {
  if (bulk_.get() != nullptr && bulk_.get()->fetches()) {
    step_ = Step::kFetch;
    task_ = FetchAndRun();
    task_.Start(shard_.executor(), &*cancel_, this);
    return;
  }
  if (apart || (stream_.get() != nullptr && stream_.get()->expects_context())) {
    step_ = Step::kFetch;
    task_ = ReadAndRun(apart);
    task_.Start(shard_.executor(), &*cancel_, this);
    return;
  }
  RunHandler();
}

void ServerCall::BeginStream(const FrameHeader& frame) {
  ServedStream& stream = stream_.Make();
  stream.SetMemory(shard_, *session_, deadline_);
  stream.Begin(session_->streams(), id_, *entry_.method->descriptor,
               (frame.flags & kFrameMessageApart) != 0);
}

absl::Status ServerCall::OnStreamFrame(const FrameHeader& frame, const char* body) {
  ServedStream* stream = stream_.get();
  if (stream != nullptr) return stream->OnFrame(frame, body);
  return absl::InvalidArgumentError(
      fmt::format("a frame of a stream for a call of {}, which is none", method_name()));
}

absl::Status ServerCall::EndStream(const absl::Status& status) {
  if (stream_.get()->OnHandlerEnd() || !status.ok()) return status;
  if (cancel_.has_value() && cancel_->requested()) return cancel_->status();
  return absl::AbortedError(
      fmt::format("the handler of {} returned OK before its last Write had sent its message: "
                  "co_await each Write",
                  method_name()));
}

Task<absl::Status> ServerCall::ReadAndRun(bool request_apart) {
  ServedStream& stream = *stream_.get();
  const TimePoint limit = SaturatingAdd(shard_.executor().now(), kMaxLandingWait);
  if (stream.expects_context() && !VERBENA_MUTANT(kStreamContextUnawaited)) {
    VERBENA_CO_ASSIGN_OR_RETURN(const std::string block, co_await stream.TakeContext(limit));
    VERBENA_CO_RETURN_IF_ERROR(TakeContext(block));
  }
  if (!request_apart) co_return co_await RunFetched();
  StreamReceiver& receiver = stream.receiver();
  VERBENA_CO_ASSIGN_OR_RETURN(
      const bool read, co_await WithDeadline(ReadRequest(receiver, messages_.request()), limit));
  if (!read) co_return absl::InvalidArgumentError("the request has not come");
  receiver.End();
  messages_.NoteRequest(messages_.request().ByteSizeLong());
  co_return co_await RunFetched();
}

// The reply does not fit a frame, so it goes ahead of the response.
Task<absl::Status> ServerCall::SendReply() {
  const TimePoint limit = SaturatingAdd(shard_.executor().now(), kMaxLandingWait);
  co_return co_await WithDeadline(WriteReply(stream_.get()->sender(), messages_.reply()), limit);
}

Task<absl::Status> ServerCall::FetchAndRun() {
  ServerBulk& bulk = *bulk_.get();
  VERBENA_CO_RETURN_IF_ERROR(co_await bulk.Fetch());
  if (!bulk.context().empty()) VERBENA_CO_RETURN_IF_ERROR(TakeContext(bulk.context()));
  if (bulk.fetches_message()) {
    messages_.NoteRequest(bulk.message_bytes());
    if (!bulk.ParseMessage(messages_.request())) co_return NotParsed();
  }
  co_return co_await RunFetched();
}

Task<absl::Status> ServerCall::RunFetched() {
  if (cancel_->requested()) co_return cancel_->status();
  step_ = Step::kHandler;
  AtStep(CallStep::kHandlerStarts, session_->link());
  Task<absl::Status> handler = Invoke();
  if (!handler) co_return NoTask();
  co_return co_await std::move(handler);
}

class ServerCall::Chain final : public InterceptorChain<ServerInterceptor, ServerCallView> {
 public:
  Chain(ServerCall& call, ServerCallView& view)
      : InterceptorChain(call.shard_.limits().interceptors, view), call_(call) {}

 private:
  Task<absl::Status> Last() override {
    call_.step_ = Step::kHandler;
    Task<absl::Status> handler = call_.InvokeHandler();
    if (!handler) co_return call_.NoTask();
    co_return co_await std::move(handler);
  }

  ServerCall& call_;
};

Task<absl::Status> ServerCall::RunIntercepted() {
  ServerCallView view(*context_, carried_.incoming_metadata(), messages_.request(),
                      messages_.reply());
  Chain chain(*this, view);
  using Hooks = MessageHooks<ServerInterceptor, ServerCallView>;
  std::optional<Hooks> hooks;
  ServedStream* const stream = stream_.get();
  if (stream != nullptr && Hooks::AreWanted(shard_.limits().interceptors)) {
    hooks.emplace(shard_.limits().interceptors, view, Streams::kServer, stream->sender(),
                  stream->receiver());
  }
  co_return co_await chain.Run();
}

Task<absl::Status> ServerCall::InvokeHandler() {
  if (carried_.name() != nullptr) [[unlikely]]
    return RunOnce();
  return entry_.method->invoke(*entry_.service, *context_, messages_.request(), messages_.reply());
}

Task<absl::Status> ServerCall::Invoke() {
  if (shard_.limits().interceptors.empty()) [[likely]]
    return InvokeHandler();
  step_ = Step::kIntercept;
  return RunIntercepted();
}

absl::Status ServerCall::TakeContext(std::string_view block) {
  if (VERBENA_MUTANT(kBroughtContextUnread)) return absl::OkStatus();
  absl::StatusOr<CallContext> context = ParseContext(block.data(), block.size());
  if (!context.ok()) {
    if (Link* link = session_->link()) link->Close(context.status());
    return context.status();
  }
  if (context->metadata.bytes() > shard_.limits().max_metadata_bytes) {
    return shard_.RefusalStatus(RefusalReason::kTooMuchMetadata);
  }
  if (context->dedupe.has_value() && stream_.get() != nullptr) {
    absl::Status violation = NameOfStream();
    if (Link* link = session_->link()) link->Close(violation);
    return violation;
  }
  carried_.SetIncoming(*std::move(context));
  SetTrace();
  return absl::OkStatus();
}

void ServerCall::SetTrace() {
  const CallContext& context = *carried_.incoming();
  if (context.trace.has_value()) cancel_->set_trace(*context.trace);
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

// The exception's text goes to the log only: it may hold what the callers must not see.
absl::Status ServerCall::Thrown() const {
  try {
    throw;
  } catch (const std::exception& error) {
    shard_.LogThrown(method_name(), error.what());
  } catch (...) {
    shard_.LogThrown(method_name(), "something unknown");
  }
  return absl::InternalError(fmt::format(
      "the handler of {} threw an exception, which the server's log tells", method_name()));
}

absl::Status ServerCall::NoTask() const {
  return absl::InternalError(
      fmt::format("the handler of {} returned an empty Task: make the handler a coroutine "
                  "(co_return), or return a Task that has not been awaited or moved from",
                  method_name()));
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

void ServerCall::EndTask(const absl::Status& status, Outcome outcome) {
  if (context_->IsRefusal(status)) outcome = Outcome::kNotExecuted;
  const bool refused = (step_ == Step::kFetch && !VERBENA_MUTANT(kFetchedCallExecuted)) ||
                       (step_ == Step::kIntercept && !VERBENA_MUTANT(kInterceptedCallIsExecuted));
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
      StatusFits(status, link->max_body_bytes() - carried_.outgoing_bytes()) ||
      VERBENA_MUTANT(kLargeDetailsDropped)) {
    return false;
  }
  auto failure = std::make_unique<LargeFailure>(status, outcome, StatusBodyOf(status));
  if (!Bulk().PlanFailure(failure->body->ByteSizeLong()).ok()) return false;
  failure_ = std::move(failure);
  step_ = Step::kAskForLanding;
  task_ = bulk_.get()->AskForLanding(*failure_->body);
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
      Bulk().Plan(*entry_.method->descriptor, reply_bytes, carried_.outgoing_bytes());
  if (!planned.ok() || !bulk_.get()->needs_landing()) {
    Respond(planned, Outcome::kExecuted);
    return;
  }
  step_ = Step::kAskForLanding;
  task_ = bulk_.get()->AskForLanding(messages_.reply());
  task_.Start(shard_.executor(), &*cancel_, this);
}

absl::Status ServerCall::OnLanding(const RemoteRange& landing) {
  ServerBulk* bulk = bulk_.get();
  return bulk != nullptr ? bulk->OnLanding(landing) : absl::OkStatus();
}

void ServerCall::Cancel(absl::StatusCode reason) {
  if (step_ == Step::kQueued && !VERBENA_MUTANT(kQueuedCallIgnoresCancel)) {
    shard_.admission()->Leave(*this);
    step_ = Step::kHandler;
    Respond(CancelStatus(reason), Outcome::kNotExecuted);
    return;
  }
  if (step_ == Step::kAskForLanding && VERBENA_MUTANT(kLandingOutwaitsItsCall)) return;
  if (cancel_.has_value()) cancel_->Request(reason);
}

void ServerCall::GiveUp(absl::StatusCode reason) {
  // Another request may wait for the call's result.
  if (carried_.outlives_link() && reason == absl::StatusCode::kCancelled &&
      !VERBENA_MUTANT(kNamedCallEndsWithItsCaller)) {
    carried_.once().given_up = true;
    return;
  }
  if (cancel_.has_value() && stream_.get() != nullptr && !VERBENA_MUTANT(kShieldedWaitsForCaller)) {
    stream_.get()->OnGivenUp(reason);
  }
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
    if (carried_.outlives_link() && !VERBENA_MUTANT(kNamedCallEndsWithItsLink)) return;
    Cancel(absl::StatusCode::kCancelled);
  } else {
    Finish();
  }
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
  ServerBulk& bulk = *bulk_.get();
  bulk.DropRequest();
  if (const size_t bytes = bulk.earned_landing_bytes()) session_->OfferLanding(bytes);
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

}  // namespace verbena::internal
