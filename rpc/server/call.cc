#include "verbena/rpc/server/call.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fmt/format.h"
#include "verbena/rpc/call/allocate.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/rpc/call/status_codec.h"
#include "verbena/rpc/detail/message.h"
#include "verbena/rpc/server/admission.h"
#include "verbena/rpc/server/context.h"
#include "verbena/rpc/server/named_run.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/stream/receiver.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/sleep.h"

namespace verbena::internal {

namespace {

Task<absl::StatusOr<bool>> ReadRequest(StreamReceiver& receiver, MessageLite& request) {
  co_return co_await StreamRead(receiver, request);
}

Task<absl::Status> WriteReply(StreamSender& sender, const MessageLite& reply) {
  co_return co_await StreamWrite(sender, reply);
}

// `left`, in microseconds, is what a peer claims.
TimePoint DeadlineIn(uint64_t left, TimePoint now) {
  const auto most = std::chrono::duration_cast<std::chrono::microseconds>(kNever - now);
  if (left >= static_cast<uint64_t>(most.count())) return kNever;
  return now + std::chrono::microseconds(left);
}

}  // namespace

ServerCall::ServerCall(ServerState& state, CallPool& pool, int method_index)
    : pool_(pool),
      entry_(state.methods().entry(method_index)),
      messages_(*entry_.method),
      response_(state, entry_.method->descriptor->full_name, messages_, *this),
      parts_(state) {}

ServerCall::~ServerCall() {
  VERBENA_CHECK(parts_.link == nullptr) << "a call of " << method_name() << " still runs";
  StopTimer();
}

void ServerCall::SetCall(CallLink& call_link, CallId id, uint64_t time_left_us) {
  VERBENA_DCHECK(parts_.link == nullptr && !context_.has_value() && !task_) << method_name();
  VERBENA_DCHECK(step_ == Step::kHandler && !parts_.in_use()) << method_name();
  parts_.link = &call_link;
  parts_.id = id;
  parts_.deadline =
      time_left_us == 0 ? kNever : DeadlineIn(time_left_us, parts_.state.executor().now());
}

void ServerCall::Start(CallLink& call_link, IncomingRequest& request, UsedGrant& landing) {
  SetCall(call_link, request.id, request.time_left_us);
  if (request.is_plain()) {
    StartPlainly(request.message);
  } else {
    StartWithParts(request, landing);
  }
}

void ServerCall::StartInFrame(CallLink& call_link, const FrameHeader& frame, const char* body) {
  SetCall(call_link, {frame.call_slot, frame.call_generation}, frame.deadline());
  StartPlainly({body, frame.body_bytes});
}

inline void ServerCall::StartPlainly(std::string_view message) {
  messages_.NoteRequest(message.size());
  if (!messages_.request().ParseFromArray(message.data(), static_cast<int>(message.size()))) {
    Respond(NotParsed(), Outcome::kNotExecuted);
    return;
  }
  BeginContext();
  if (parts_.state.admission() != nullptr) [[unlikely]] {
    AwaitTurn(false);
    return;
  }
  RunHandler();
}

void ServerCall::BeginContext() {
  cancel_.emplace();
  cancel_->set_client(reinterpret_cast<uintptr_t>(&parts_.link->client()));
  context_.emplace(
      ContextAccess::Make(*entry_.method->descriptor, *cancel_, parts_.link->peer(), parts_));
  if (parts_.deadline != kNever) StartTimer();
}

// A handler need not be a coroutine, so it may throw before there is a Task to hold what it threw.
void ServerCall::RunHandler() {
  try {
    task_ = Invoke();
  } catch (...) {
    EndTurn();
    Respond(parts_.state.Thrown(method_name()), Outcome::kMaybeExecuted);
    return;
  }
  if (!task_) {
    EndTurn();
    Respond(NoTask(method_name()), Outcome::kMaybeExecuted);
    return;
  }
  task_.Start(parts_.state.executor(), &*cancel_, this);
}

Task<absl::Status> ServerCall::Invoke() {
  if (parts_.state.limits().interceptors.empty()) [[likely]]
    return InvokeHandler();
  step_ = Step::kIntercept;
  return RunIntercepted();
}

Task<absl::Status> ServerCall::InvokeHandler() {
  if (parts_.carried.name() != nullptr) [[unlikely]]
    return InvokeNamed();
  return entry_.method->invoke(*entry_.service, *context_, messages_.request(), messages_.reply());
}

Task<absl::Status> ServerCall::InvokeNamed() {
  return RunOnce({parts_, entry_, messages_, *cancel_, *context_});
}

absl::Status ServerCall::NotParsed() const {
  return absl::InvalidArgumentError(fmt::format("the request of {} ({} bytes) does not parse as {}",
                                                method_name(), messages_.request_bytes(),
                                                TypeNameOf(messages_.request())));
}

void ServerCall::OnTaskDone() {
  VERBENA_DCHECK(parts_.link != nullptr && context_.has_value()) << method_name();
  if (parts_.state.admission() != nullptr) [[unlikely]]
    EndTurn();
  absl::Status status;
  Outcome outcome = Outcome::kExecuted;
  try {
    status = task_.TakeResult();
  } catch (...) {
    status = parts_.state.Thrown(method_name());
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
  const Link* link = parts_.link->link();
  if (!parts_.in_use() && (link == nullptr || reply_bytes <= link->max_body_bytes())) [[likely]] {
    ReplyInFrame(reply_bytes);
  } else {
    CompleteWithParts(reply_bytes);
  }
}

void ServerCall::ReplyInFrame(size_t reply_bytes) {
  if (!EndHandler()) return;
  if (response_.SendInFrame(*parts_.link, parts_.id, parts_.deadline, reply_bytes)) [[likely]]
    FinishReplied();
}

void ServerCall::Respond(const absl::Status& status, Outcome outcome) {
  if (parts_.in_use()) {
    RespondWithParts(status, outcome);
  } else {
    RespondPlainly(status, outcome);
  }
}

void ServerCall::RespondPlainly(const absl::Status& status, Outcome outcome) {
  if (!status.ok()) DropFailedReply();
  if (!EndHandler()) return;
  response_.Begin(*parts_.link, parts_.id, parts_.deadline, nullptr, nullptr);
  const bool sent = status.ok() ? response_.SendReply(messages_.reply_bytes())
                                : response_.SendFailure(status, outcome);
  if (sent) Finish();
}

// The handler may have made a large reply before it failed.
void ServerCall::DropFailedReply() {
  messages_.NoteReply(messages_.reply().ByteSizeLong());
  messages_.DropReplyBeyond(CallMessages::kMaxPooledBytes);
}

bool ServerCall::EndHandler() {
  StopTimer();
  context_.reset();
  cancel_.reset();
  const Link* link = parts_.link->link();
  if (link != nullptr && link->open()) [[likely]]
    return true;
  Finish();
  return false;
}

void ServerCall::Finish() {
  response_.Clear();
  if (parts_.in_use()) parts_.Clear();
  step_ = Step::kHandler;
  FinishReplied();
}

void ServerCall::FinishReplied() {
  VERBENA_DCHECK(!context_.has_value() && !cancel_.has_value() && !timer_running_)
      << method_name() << " ends before its handler";
  messages_.Clear();
  CallLink& call_link = *std::exchange(parts_.link, nullptr);
  const bool is_guarded = parts_.state.admission() != nullptr && ReleasePlace();
  if (!is_guarded) [[likely]]
    call_link.client().RemoveCall();
  IntrusiveNode<ServerCall>::Unlink();
  call_link.Remove(parts_.id.slot, *this);
  pool_.Recycle(*this);
}

bool ServerCall::ReleasePlace() { return parts_.state.admission()->Release(*this, method_index()); }

void ServerCall::Cancel(absl::StatusCode reason) {
  if (step_ == Step::kQueued) {
    parts_.state.admission()->Leave(*this);
    step_ = Step::kHandler;
    Respond(CancelStatus(reason), Outcome::kNotExecuted);
    return;
  }
  if (cancel_.has_value()) cancel_->Request(reason);
}

void ServerCall::GiveUp(absl::StatusCode reason) {
  // Another request may wait for the call's result.
  if (parts_.carried.outlives_link() && reason == absl::StatusCode::kCancelled) {
    parts_.carried.once().given_up = true;
    return;
  }
  if (cancel_.has_value() && parts_.stream.get() != nullptr) parts_.stream.get()->OnGivenUp(reason);
  Cancel(reason);
}

void ServerCall::StartTimer() {
  ContextAccess::SetDeadline(*context_, parts_.deadline);
  cancel_->LimitDeadline(parts_.deadline);
  parts_.state.executor().StartTimer(*this, parts_.deadline);
  timer_running_ = true;
}

void ServerCall::StopTimer() {
  if (std::exchange(timer_running_, false)) parts_.state.executor().StopTimer(*this);
}

void ServerCall::OnTimer() {
  timer_running_ = false;
  GiveUp(absl::StatusCode::kDeadlineExceeded);
}

void ServerCall::OnLinkDown() {
  if (cancel_.has_value()) {
    if (parts_.carried.outlives_link()) return;
    Cancel(absl::StatusCode::kCancelled);
  } else {
    Finish();
  }
}

// The part of a ServerCall for requests that have bulk, a context or a stream: reads them, and then
// runs the handler.

void ServerCall::StartWithParts(IncomingRequest& request, UsedGrant& landing) {
  if (request.bulk.has_value()) {
    parts_.BeginBulk(*request.bulk, std::move(landing), request.payload_in_frame);
  }
  if (request.has_context) {
    parts_.carried.SetIncoming(std::move(request.context));
    if (request.context_header.travels && request.bulk.has_value()) {
      parts_.bulk.get()->request().set_context_bytes(request.context_header.block_bytes);
    }
  }
  messages_.NoteRequest(request.message.size());
  if (request.streams != Streams::kNone) BeginStream(request);
  if (request.message_in_frame &&
      !messages_.request().ParseFromArray(request.message.data(),
                                          static_cast<int>(request.message.size()))) {
    Respond(NotParsed(), Outcome::kNotExecuted);
    return;
  }
  if (request.bulk.has_value()) {
    if (const absl::Status taken = CheckBulk(); !taken.ok()) {
      Respond(taken, Outcome::kNotExecuted);
      return;
    }
  }
  BeginContext();
  if (request.has_context) SetTrace();
  if (parts_.state.admission() != nullptr) {
    AwaitTurn(request.apart);
  } else {
    Launch(request.apart);
  }
}

absl::Status ServerCall::CheckBulk() const {
  const FetchedRequest& request = parts_.bulk.get()->request();
  if (request.has_payload() && !entry_.method->descriptor->request_payload()) {
    return absl::InvalidArgumentError(
        fmt::format("{} takes no payload with its request, and was given one", method_name()));
  }
  return request.CheckSize();
}

void ServerCall::BeginStream(const IncomingRequest& request) {
  ServedStream& stream = parts_.stream.Make();
  stream.SetMemory(parts_.state, *parts_.link, parts_.deadline);
  stream.Begin(parts_.link->streams(), parts_.id, *entry_.method->descriptor, request.apart);
  if (request.context_header.travels) {
    stream.ExpectContext(parts_.link->streams(), request.context_header.block_bytes);
  }
  // Interceptors see it, and it is that of the call before.
  if (!request.message_in_frame) messages_.request().Clear();
}

void ServerCall::Launch(bool apart) {
  const bool fetches = parts_.bulk.get() != nullptr && parts_.bulk.get()->request().fetches();
  const bool reads =
      apart || (parts_.stream.get() != nullptr && parts_.stream.get()->expects_context());
  if (!fetches && !reads) {
    RunHandler();
    return;
  }
  step_ = Step::kFetch;
  task_ = fetches ? FetchAndRun() : ReadAndRun(apart);
  task_.Start(parts_.state.executor(), &*cancel_, this);
}

Task<absl::Status> ServerCall::FetchAndRun() {
  FetchedRequest& request = parts_.bulk.get()->request();
  VERBENA_CO_RETURN_IF_ERROR(co_await request.Fetch());
  if (!request.context().empty()) VERBENA_CO_RETURN_IF_ERROR(TakeContext(request.context()));
  if (request.fetches_message()) {
    messages_.NoteRequest(request.message_bytes());
    if (!request.ParseMessage(messages_.request())) co_return NotParsed();
  }
  co_return co_await RunFetched();
}

Task<absl::Status> ServerCall::ReadAndRun(bool request_apart) {
  ServedStream& stream = *parts_.stream.get();
  const TimePoint limit = SaturatingAdd(parts_.state.executor().now(), kMaxLandingWait);
  if (stream.expects_context()) {
    VERBENA_CO_ASSIGN_OR_RETURN(const std::string block, co_await stream.TakeContext(limit));
    VERBENA_CO_RETURN_IF_ERROR(TakeContext(block));
  }
  if (!request_apart) co_return co_await RunFetched();
  StreamReceiver& receiver = stream.receiver();
  VERBENA_CO_ASSIGN_OR_RETURN(
      const bool read, co_await WithDeadline(ReadRequest(receiver, messages_.request()), limit));
  if (!read)
    co_return absl::InvalidArgumentError("the client ended its messages without a request");
  receiver.End();
  messages_.NoteRequest(messages_.request().ByteSizeLong());
  co_return co_await RunFetched();
}

absl::Status ServerCall::TakeContext(std::string_view block) {
  absl::StatusOr<CallContext> context = ParseContext(block.data(), block.size());
  if (!context.ok()) {
    if (Link* link = parts_.link->link()) link->Close(context.status());
    return context.status();
  }
  if (context->metadata.bytes() > parts_.state.limits().max_metadata_bytes) {
    return parts_.state.RefusalStatus(RefusalReason::kTooMuchMetadata);
  }
  if (context->dedupe.has_value() && parts_.stream.get() != nullptr) {
    absl::Status violation = NameOfStream();
    if (Link* link = parts_.link->link()) link->Close(violation);
    return violation;
  }
  parts_.carried.SetIncoming(*std::move(context));
  SetTrace();
  return absl::OkStatus();
}

void ServerCall::SetTrace() {
  const CallContext& context = *parts_.carried.incoming();
  if (context.trace.has_value()) cancel_->set_trace(*context.trace);
}

Task<absl::Status> ServerCall::RunFetched() {
  if (cancel_->requested()) co_return cancel_->status();
  step_ = Step::kHandler;
  Task<absl::Status> handler = Invoke();
  if (!handler) co_return NoTask(method_name());
  co_return co_await std::move(handler);
}

absl::Status ServerCall::OnStreamFrame(const FrameHeader& frame, const char* body) {
  ServedStream* stream = parts_.stream.get();
  if (stream != nullptr) return stream->OnFrame(frame, body);
  return absl::InvalidArgumentError(
      fmt::format("a frame of a stream for a call of {}, which is not a stream", method_name()));
}

// The part of a ServerCall for servers with interceptors: runs them around the handler.

class ServerCall::Chain final : public InterceptorChain<ServerInterceptor, ServerCallView> {
 public:
  Chain(ServerCall& call, ServerCallView& view)
      : InterceptorChain(call.parts_.state.limits().interceptors, view), call_(call) {}

 private:
  Task<absl::Status> Last() override {
    call_.step_ = Step::kHandler;
    Task<absl::Status> handler = call_.InvokeHandler();
    if (!handler) co_return NoTask(call_.method_name());
    co_return co_await std::move(handler);
  }

  ServerCall& call_;
};

Task<absl::Status> ServerCall::RunIntercepted() {
  ServerCallView view(*context_, parts_.carried.incoming_metadata(), messages_.request(),
                      messages_.reply());
  Chain chain(*this, view);
  using Hooks = MessageHooks<ServerInterceptor, ServerCallView>;
  std::optional<Hooks> hooks;
  ServedStream* const stream = parts_.stream.get();
  if (stream != nullptr && Hooks::AreWanted(parts_.state.limits().interceptors)) {
    hooks.emplace(parts_.state.limits().interceptors, view, Streams::kServer, stream->sender(),
                  stream->receiver());
  }
  co_return co_await chain.Run();
}

// The part of a ServerCall for servers with an Admission: the wait for its turn.

void ServerCall::AwaitTurn(bool apart) {
  if (parts_.state.admission()->queues()) {
    step_ = Step::kQueued;
    request_apart_ = apart;
    parts_.state.admission()->Enqueue(*this);
    return;
  }
  parts_.state.NoteStarted();
  Launch(apart);
}

void ServerCall::EndTurn() {
  if (Admission* admission = parts_.state.admission()) admission->EndRun(*this);
}

void ServerCall::RunQueued() {
  VERBENA_DCHECK(step_ == Step::kQueued) << method_name();
  step_ = Step::kHandler;
  if (parts_.deadline <= parts_.state.executor().now()) {
    EndTurn();
    Respond(CancelStatus(absl::StatusCode::kDeadlineExceeded), Outcome::kNotExecuted);
    return;
  }
  parts_.state.NoteStarted();
  // Streams may last for ever.
  if (parts_.stream.get() != nullptr) EndTurn();
  Launch(request_apart_);
}

void ServerCall::RefuseQueued(RefusalReason reason) {
  VERBENA_CHECK(step_ == Step::kQueued) << method_name();
  step_ = Step::kHandler;
  if (parts_.bulk.get() != nullptr || parts_.stream.get() != nullptr) {
    parts_.state.NoteRefused(reason);
    Respond(parts_.state.RefusalStatus(reason), Outcome::kNotExecuted);
    return;
  }
  // The Status is encoded already.
  CallLink& call_link = *parts_.link;
  const CallId id = parts_.id;
  StopTimer();
  context_.reset();
  cancel_.reset();
  parts_.state.CountRefusal(reason);
  Finish();
  call_link.RefuseQueued(id, reason);
}

// The part of a ServerCall for responses that are more than one frame with a reply: failures, large
// replies, payloads, trailing metadata and the ends of streams.

void ServerCall::EndTask(const absl::Status& ended, Outcome outcome) {
  outcome = ContextAccess::OutcomeGiven(*context_, ended).value_or(outcome);
  const bool refused = step_ == Step::kFetch || step_ == Step::kIntercept;
  if (refused) outcome = Outcome::kNotExecuted;
  const absl::Status& status = refused ? parts_.state.UnlessLeft(ended, *cancel_) : ended;
  outcome = parts_.carried.OutcomeOr(outcome);
  if (failure_ != nullptr) {
    RespondLargeFailure(status);
  } else if (status.ok() && step_ != Step::kAskForLanding && step_ != Step::kSendReply) {
    Complete();
  } else if (status.ok() || !AskForFailure(status, outcome)) {
    Respond(status, outcome);
  }
}

bool ServerCall::AskForFailure(const absl::Status& status, Outcome outcome) {
  const Link* link = parts_.link->link();
  if (parts_.stream.get() != nullptr || step_ == Step::kAskForLanding || link == nullptr ||
      !link->open() || cancel_->requested() ||
      StatusFits(status, link->max_body_bytes() - parts_.carried.outgoing_bytes())) {
    return false;
  }
  auto failure = std::make_unique<LargeFailure>(status, outcome, StatusBodyOf(status));
  if (!parts_.Bulk().response().PlanFailure(failure->body->ByteSizeLong()).ok()) return false;
  failure_ = std::move(failure);
  step_ = Step::kAskForLanding;
  task_ = parts_.bulk.get()->response().AskForLanding(*failure_->body);
  task_.Start(parts_.state.executor(), &*cancel_, this);
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
  const Link* link = parts_.link->link();
  const bool large =
      link != nullptr && reply_bytes + parts_.carried.outgoing_bytes() > link->max_body_bytes();
  if (large && parts_.stream.get() != nullptr) {
    step_ = Step::kSendReply;
    task_ = SendReply();
    task_.Start(parts_.state.executor(), &*cancel_, this);
  } else if (parts_.bulk.get() != nullptr || large) {
    CompleteWithBulk(reply_bytes);
  } else {
    Respond(absl::OkStatus(), Outcome::kExecuted);
  }
}

void ServerCall::CompleteWithBulk(size_t reply_bytes) {
  absl::Status planned = parts_.Bulk().response().Plan(*entry_.method->descriptor, reply_bytes,
                                                       parts_.carried.outgoing_bytes());
  if (!planned.ok() || !parts_.bulk.get()->response().needs_landing()) {
    Respond(planned, Outcome::kExecuted);
    return;
  }
  step_ = Step::kAskForLanding;
  task_ = parts_.bulk.get()->response().AskForLanding(messages_.reply());
  task_.Start(parts_.state.executor(), &*cancel_, this);
}

// The reply does not fit a frame, so it goes ahead of the response.
Task<absl::Status> ServerCall::SendReply() {
  const TimePoint limit = SaturatingAdd(parts_.state.executor().now(), kMaxLandingWait);
  co_return co_await WithDeadline(WriteReply(parts_.stream.get()->sender(), messages_.reply()),
                                  limit);
}

absl::Status ServerCall::OnLanding(const RemoteRange& landing) {
  ServerBulk* bulk = parts_.bulk.get();
  return bulk != nullptr ? bulk->response().OnLanding(landing) : absl::OkStatus();
}

absl::Status ServerCall::EndStream(const absl::Status& status) {
  if (parts_.stream.get()->OnHandlerEnd() || !status.ok()) return status;
  if (cancel_.has_value() && cancel_->requested()) return cancel_->status();
  return absl::AbortedError(
      fmt::format("the handler of {} returned OK before its last Write had sent its message: "
                  "co_await each Write",
                  method_name()));
}

void ServerCall::RespondWithParts(const absl::Status& handlers, Outcome outcome) {
  const bool is_stream = parts_.stream.get() != nullptr;
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
  parts_.carried.DropIncoming();
  if (!EndHandler()) return false;
  response_.Begin(*parts_.link, parts_.id, parts_.deadline, parts_.bulk.get(),
                  parts_.carried.outgoing());
  if (parts_.bulk.get() != nullptr) EndBulkRequest();
  return true;
}

// The shares that FetchedRequest::Drop() gives back count the request's message, too, so a large
// message is freed with them.
void ServerCall::EndBulkRequest() {
  messages_.DropRequestBeyond(CallMessages::kMaxPooledBytes);
  FetchedRequest& request = parts_.bulk.get()->request();
  request.Drop();
  if (const size_t bytes = request.earned_landing_bytes()) parts_.link->OfferLanding(bytes);
}

CallPool::CallPool(ServerState& state)
    : state_(state),
      max_at_once_(state.admission() != nullptr ? 0 : state.limits().max_concurrent_calls),
      kept_(state.methods().size()) {}

CallPool::~CallPool() {
  VERBENA_CHECK(active_ == 0) << active_ << " calls still run";
  for (const auto& calls : kept_) {
    for (ServerCall* call : calls) {
      UnpoisonMemory(call, sizeof(*call));
      delete call;
    }
  }
}

RefusalReason CallPool::Refusal(uint16_t method, Streams streams, const ServerClient& client) {
  if (state_.draining()) return state_.CountRefusal(RefusalReason::kShuttingDown);
  const int index = state_.methods().IndexOf(method);
  if (index < 0) return state_.CountRefusal(RefusalReason::kNoSuchMethod);
  if (state_.methods().entry(index).streams != streams) {
    return state_.CountRefusal(RefusalReason::kStreamsOtherwise);
  }
  // A larger share of an executor that is full would not help.
  if (bounded_calls() >= state_.limits().max_concurrent_calls) {
    return state_.CountRefusal(RefusalReason::kTooManyCalls);
  }
  return state_.CountRefusal(client.takes_its_share() ? RefusalReason::kTooManyOfAClient
                                                      : RefusalReason::kTooManyOfASource);
}

ServerCall* CallPool::Admit(const CallOffer& offer, ServerClient& client, RefusalReason& reason) {
  if (state_.admission() != nullptr) return AdmitGuarded(offer, client, reason);
  ServerCall* call = Admit(offer.method, offer.streams, client);
  if (call == nullptr) reason = Refusal(offer.method, offer.streams, client);
  return call;
}

uint32_t CallPool::bounded_calls() const {
  return state_.admission() == nullptr ? active_ : active_ - state_.admission()->control_calls();
}

ServerCall* CallPool::AdmitGuarded(const CallOffer& offer, ServerClient& client,
                                   RefusalReason& reason) {
  const int index = state_.methods().IndexOf(offer.method);
  // A stream may last for ever, so it takes no control place.
  const bool is_stream = offer.streams != Streams::kNone;
  const CallClass its_class = is_stream && offer.priority == Priority::kControl
                                  ? CallClass::kNormal
                                  : state_.admission()->ClassOf(offer.priority, client.queue());
  const bool is_control = its_class == CallClass::kControl;
  const bool full = bounded_calls() >= state_.limits().max_concurrent_calls || client.full();
  if (index < 0 || state_.draining() || state_.methods().entry(index).streams != offer.streams ||
      (full && !is_control)) {
    reason = Refusal(offer.method, offer.streams, client);
    return nullptr;
  }
  if (const auto broken =
          state_.admission()->Check(index, its_class, offer.pinned_bytes, client.queue())) {
    reason = state_.CountRefusal(*broken);
    return nullptr;
  }
  if (!is_control) client.AddCall();
  ServerCall* call = Take(index);
  state_.admission()->Count(*call, index, its_class, offer.pinned_bytes, client.queue());
  return call;
}

ServerCall* CallPool::Make(int method_index) {
  BoundedVector<ServerCall*>& kept = kept_[method_index];
  if (kept.capacity() < kMaxIdleCalls) kept.Reserve(kept.capacity() + 1);
  return new ServerCall(state_, *this, method_index);
}

Task<absl::Status> CallPool::WaitUntilIdle() {
  if (active_ == 0) co_return absl::OkStatus();
  co_return co_await idle_.Wait();
}

size_t CallPool::idle_calls() const {
  size_t count = 0;
  for (const auto& calls : kept_) count += calls.size();
  return count;
}

}  // namespace verbena::internal
