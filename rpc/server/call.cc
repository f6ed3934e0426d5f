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
#include "verbena/rpc/call/context_block.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/rpc/call/status_codec.h"
#include "verbena/rpc/detail/message.h"
#include "verbena/rpc/server/admission.h"
#include "verbena/rpc/server/context.h"
#include "verbena/rpc/server/named_run.h"
#include "verbena/rpc/server/payload.h"
#include "verbena/rpc/server/served_stream.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/stream/receiver.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {

namespace {

// The request of a stream, which comes as a message.
Task<absl::Status> ReadRequest(StreamReceiver& receiver, MessageLite& request) {
  VERBENA_CO_ASSIGN_OR_RETURN(const bool read, co_await StreamRead(receiver, request));
  if (!read) {
    co_return absl::InvalidArgumentError("the client ended its messages without a request");
  }
  receiver.End();
  co_return absl::OkStatus();
}

Task<absl::Status> WriteReply(StreamSender& sender, const MessageLite& reply) {
  co_return co_await StreamWrite(sender, reply);
}

// `body` is the failure's Status as it travels.
Task<absl::Status> AskForFailure(WrittenResponse& response, std::unique_ptr<MessageLite> body) {
  co_return co_await response.AskForLanding(*body);
}

Task<absl::Status> Fail(absl::Status status) { co_return status; }

// In no scope: the kernel is not done earlier because the call is cancelled.
Task<absl::Status> AfterChanges(CarriedContext::LeftChanges& left, absl::Status status) {
  while (left.count > 0) {
    left.ended.Reset();
    VERBENA_CO_RETURN_IF_ERROR(co_await left.ended.Wait());
  }
  co_return status;
}

// `left`, in microseconds, is what a peer claims.
TimePoint DeadlineIn(uint64_t left, TimePoint now) {
  const auto most = std::chrono::duration_cast<std::chrono::microseconds>(kNever - now);
  if (left >= static_cast<uint64_t>(most.count())) return kNever;
  return now + std::chrono::microseconds(left);
}

// Bytes of its payload, and of a message that does not fit its frame: a peer's claim. A request of
// a wrong size fails as soon as it begins. So its bytes do not count: a refusal because of bytes
// would tell the client to come back later.
uint64_t PinnedBytes(const IncomingRequest& request, const LinkLimits& limits) {
  if (!request.bulk.has_value()) return 0;
  const RequestBulk& bulk = *request.bulk;
  const bool is_taken = CheckRequestSize(bulk, request.traveling_context_bytes(), limits).ok();
  return is_taken ? bulk.payload_bytes + bulk.message_bytes : 0;
}

}  // namespace

// A server keeps up to CallPool::kMaxIdleCalls of each method, and runs as many as its bounds
// allow.
static_assert(sizeof(ServerCall) <= 672);

ServerCall::ServerCall(ServerState& state, CallPool& pool, int method_index)
    : pool_(pool),
      entry_(state.methods().entry(method_index)),
      counts_(state.executor_counts() != nullptr ? &state.executor_counts()->server.Of(method())
                                                 : nullptr),
      messages_(*entry_.method),
      parts_(state),
      response_(parts_, entry_.method->descriptor->full_name, messages_, *this),
      serves_(!state.limits().interceptors.empty()) {}

ServerCall::~ServerCall() {
  VERBENA_CHECK(parts_.link == nullptr) << "a call of " << method_name() << " still runs";
  StopTimer();
}

void ServerCall::Begin(CallLink& call_link, CallId id, uint64_t time_left_us) {
  VERBENA_DCHECK(parts_.link == nullptr && !context_.has_value() && !task_) << method_name();
  VERBENA_DCHECK(!ahead_ && !behind_ && !parts_.in_use()) << method_name();
  parts_.link = &call_link;
  parts_.id = id;
  parts_.deadline =
      time_left_us == 0 ? kNever : DeadlineIn(time_left_us, parts_.state.ArrivalTime());
}

void ServerCall::StartInFrame(CallLink& call_link, const FrameHeader& frame, const char* body) {
  Begin(call_link, {frame.call_slot, frame.call_generation}, frame.deadline());
  if (!messages_.ParseRequest({body, frame.body_bytes})) [[unlikely]] {
    Respond({NotParsed(), Outcome::kNotExecuted});
    return;
  }
  Launch();
}

void ServerCall::Start(CallLink& call_link, IncomingRequest& request, UsedGrant& landing) {
  Begin(call_link, request.id, request.time_left_us);
  if (absl::Status taken = TakeRequest(request, landing); !taken.ok()) {
    Respond({std::move(taken), Outcome::kNotExecuted});
    return;
  }
  if (parts_.carried.earlier() != nullptr) [[unlikely]] {
    LaunchBehindEarlier();
  } else {
    Launch();
  }
}

absl::Status ServerCall::TakeRequest(IncomingRequest& request, UsedGrant& landing) {
  if (request.bulk.has_value()) {
    parts_.BeginBulk(*request.bulk, std::move(landing), request.payload_in_frame);
    parts_.bulk.get()->request().set_context_bytes(request.traveling_context_bytes());
  }
  if (request.has_context) {
    parts_.carried.SetIncoming(std::move(request.context), parts_.state.executor().now());
  }
  if (request.streams != Streams::kNone) parts_.BeginStream(request, method());
  if (parts_.AwaitsRequest()) serves_ = true;
  if (!request.message_in_frame) {
    messages_.ClearRequest();
  } else if (!messages_.ParseRequest(request.message)) {
    return NotParsed();
  }
  if (!request.bulk.has_value()) return absl::OkStatus();
  return parts_.bulk.get()->request().Check(method());
}

absl::Status ServerCall::NotParsed() const {
  return absl::InvalidArgumentError(fmt::format("the request of {} ({} bytes) does not parse as {}",
                                                method_name(), messages_.request_bytes(),
                                                TypeNameOf(messages_.request())));
}

// A handler need not be a coroutine, so it may throw before there is a Task to hold what it threw.
[[gnu::always_inline]] inline void ServerCall::Run() {
  try {
    task_ = serves_ ? Serve() : InvokeHandler();
  } catch (...) {
    EndUnrun({parts_.state.Thrown(method_name()), Outcome::kMaybeExecuted});
    return;
  }
  if (!task_) [[unlikely]] {
    EndUnrun({NoTask(method_name()), Outcome::kMaybeExecuted});
    return;
  }
  task_.Start(parts_.state.executor(), &*cancel_, this);
}

inline void ServerCall::SetTrace() {
  const CallContext& context = *parts_.carried.incoming();
  if (context.trace.has_value()) cancel_->set_trace(*context.trace);
}

[[gnu::always_inline]] inline void ServerCall::Prepare() {
  cancel_.emplace();
  cancel_->set_owner(*this);
  if (parts_.carried.incoming() != nullptr) [[unlikely]]
    SetTrace();
  context_.emplace(ContextAccess::Make(method(), *cancel_, parts_.link->peer(), parts_));
  if (parts_.deadline != kNever) {
    ContextAccess::SetDeadline(*context_, parts_.deadline);
    cancel_->LimitDeadline(parts_.deadline);
    parts_.state.executor().StartTimer(*this, parts_.deadline);
    timer_running_ = true;
  }
}

[[gnu::always_inline]] inline void ServerCall::TakeTurn() {
  if (parts_.state.may_hold()) [[unlikely]] {
    if (Hold()) return;
  }
  Run();
}

void ServerCall::Launch() {
  Prepare();
  TakeTurn();
}

// The call takes its turn only after that wait, because an earlier attempt may hold the place that
// the call needs.
void ServerCall::LaunchBehindEarlier() {
  Prepare();
  // Without an Admission, the pool has counted the call as begun.
  if (parts_.state.admission() == nullptr) parts_.state.NoteHeld();
  behind_ = true;
  task_ = EndEarlier();
  task_.Start(parts_.state.executor(), &*cancel_, this);
}

void ServerCall::EndBehind(const absl::Status& waited) {
  behind_ = false;
  ServerState& state = parts_.state;
  Admission* const admission = state.admission();
  if (!waited.ok()) {
    state.NoteGivenUp();
    Respond({state.UnlessLeft(waited, *cancel_), Outcome::kNotExecuted});
    return;
  }
  if (admission == nullptr) {
    state.NoteStarted();
  } else if (const auto broken = admission->CheckQueue(*this)) {
    // Others have taken the places that were free when it came.
    RefuseQueued(*broken);
    return;
  }
  TakeTurn();
}

// Without an Admission, the pool has counted the call as begun.
bool ServerCall::Hold() {
  ServerState& state = parts_.state;
  Admission* const admission = state.admission();
  if (admission != nullptr && admission->queues()) {
    admission->Enqueue(*this);
    return true;
  }
  const bool waits = state.backlog().holds();
  if (admission == nullptr && waits) state.NoteHeld();
  if (admission != nullptr && !waits) state.NoteStarted();
  if (waits) state.backlog().Push(*this, parts_.link->client().queue());
  return waits;
}

void ServerCall::Leave() {
  Admission* const admission = parts_.state.admission();
  if (admission != nullptr && admission->queues()) {
    admission->Leave(*this);
  } else {
    parts_.state.backlog().Remove(*this);
  }
  parts_.state.NoteGivenUp();
}

inline void ServerCall::EndTurn() {
  if (Admission* admission = parts_.state.admission()) [[unlikely]]
    admission->EndRun(*this);
}

void ServerCall::RunQueued() {
  if (parts_.deadline <= parts_.state.executor().now()) {
    parts_.state.NoteGivenUp();
    EndUnrun({CancelStatus(absl::StatusCode::kDeadlineExceeded), Outcome::kNotExecuted});
    return;
  }
  parts_.state.NoteStarted();
  // Streams may last for ever.
  if (parts_.stream.get() != nullptr) EndTurn();
  Run();
}

void ServerCall::RefuseQueued(RefusalReason reason) {
  if (parts_.bulk.get() != nullptr || parts_.stream.get() != nullptr) {
    parts_.state.NoteRefused(reason);
    Respond({parts_.state.RefusalStatus(reason), Outcome::kNotExecuted});
    return;
  }
  // The Status is encoded already.
  parts_.state.CountRefusal(reason);
  CallLink& call_link = *parts_.link;
  const CallId id = parts_.id;
  if (EndHandler() == nullptr) return;
  parts_.NoteFailure(parts_.state.RefusalStatus(reason).code(), Outcome::kNotExecuted);
  Finish();
  call_link.RefuseQueued(id, reason);
}

void ServerCall::EndUnrun(CallEnding ending) {
  EndTurn();
  Respond(std::move(ending));
}

// The interceptors of one call, around its handler. Lives in Serve()'s frame.
class ServerCall::Chain final : public InterceptorChain<ServerInterceptor, ServerCallView> {
 public:
  Chain(ServerCall& call, ServerCallView& view)
      : InterceptorChain(call.parts_.state.limits().interceptors, view), call_(call) {
    const List& interceptors = call.parts_.state.limits().interceptors;
    ServedStream* const stream = call.parts_.stream.get();
    if (stream == nullptr || !Hooks::AreWanted(interceptors)) return;
    hooks_.emplace(interceptors, view, Streams::kServer, stream->sender(), stream->receiver());
  }

 private:
  using Hooks = MessageHooks<ServerInterceptor, ServerCallView>;

  // A coroutine, since the handler begins when an interceptor awaits it.
  Task<absl::Status> Last() override { co_return co_await call_.RunHandler(); }

  ServerCall& call_;
  std::optional<Hooks> hooks_;
};

Task<absl::Status> ServerCall::Serve() {
  ending_.outcome = Outcome::kNotExecuted;  // until the handler begins
  if (parts_.AwaitsRequest()) VERBENA_CO_RETURN_IF_ERROR(co_await FetchRequest());
  if (parts_.state.limits().interceptors.empty()) co_return co_await RunHandler();
  ServerCallView view(*context_, parts_.carried.incoming_metadata(), messages_.request(),
                      messages_.reply());
  Chain chain(*this, view);
  co_return co_await chain.Run();
}

Task<absl::Status> ServerCall::FetchRequest() {
  if (ServerBulk* bulk = parts_.bulk.get()) {
    FetchedRequest& request = bulk->request();
    VERBENA_CO_RETURN_IF_ERROR(co_await request.Fetch());
    if (!request.context().empty()) {
      VERBENA_CO_RETURN_IF_ERROR(ReadContext(request.context()));
      // Its names come only now, in the call's turn.
      if (parts_.carried.earlier() != nullptr) VERBENA_CO_RETURN_IF_ERROR(co_await EndEarlier());
    }
    if (request.fetches_message() && !messages_.ParseRequest(request.message())) {
      co_return NotParsed();
    }
  } else {
    ServedStream& stream = *parts_.stream.get();
    const TimePoint limit = SaturatingAdd(parts_.state.executor().now(), kMaxLandingWait);
    if (stream.expects_context()) {
      VERBENA_CO_ASSIGN_OR_RETURN(const std::string block, co_await stream.TakeContext(limit));
      VERBENA_CO_RETURN_IF_ERROR(ReadContext(block));
    }
    if (stream.request_apart()) {
      VERBENA_CO_RETURN_IF_ERROR(
          co_await WithDeadline(ReadRequest(stream.receiver(), messages_.request()), limit));
      messages_.NoteRequest();
    }
  }
  co_return cancel_->status();
}

Task<absl::Status> ServerCall::EndEarlier() {
  const RuntimeId client = parts_.link->client().identity().runtime;
  for (const EarlierAttempt& each : *parts_.carried.earlier()) {
    VERBENA_CO_RETURN_IF_ERROR(co_await parts_.state.limits().earlier_attempts->End(client, each));
  }
  co_return cancel_->status();
}

absl::Status ServerCall::ReadContext(std::string_view block) {
  CallContext context;
  absl::Status violation = ParseContext(block.data(), block.size(), context);
  if (violation.ok() && context.metadata.bytes() > parts_.state.limits().max_metadata_bytes) {
    return parts_.state.RefusalStatus(RefusalReason::kTooMuchMetadata);
  }
  if (violation.ok() && context.is_of_unary_call() && parts_.stream.get() != nullptr) {
    violation = NameOfStream();
  }
  Link* const link = parts_.link->link();
  if (violation.ok() && link != nullptr) {
    violation = CheckAnnounced(context, parts_.link->context_features());
  }
  if (!violation.ok()) {
    if (link != nullptr) link->Close(violation);
    return violation;
  }
  parts_.carried.SetIncoming(std::move(context), parts_.state.executor().now());
  SetTrace();
  return absl::OkStatus();
}

Task<absl::Status> ServerCall::RunHandler() {
  ending_.outcome = Outcome::kExecuted;
  Task<absl::Status> handler = InvokeHandler();
  if (!handler) [[unlikely]]
    handler = Fail(NoTask(method_name()));
  return handler;
}

Task<absl::Status> ServerCall::InvokeHandler() {
  if (parts_.carried.name() != nullptr) [[unlikely]]
    return RunOnce({parts_, entry_, messages_, *cancel_, *context_});
  return entry_.method->invoke(*entry_.service, *context_, messages_.request(), messages_.reply());
}

absl::Status ServerCall::OnStreamFrame(const FrameHeader& frame, const char* body) {
  ServedStream* stream = parts_.stream.get();
  if (stream != nullptr) return stream->OnFrame(frame, body);
  return absl::InvalidArgumentError(
      fmt::format("a frame of a stream for a call of {}, which is not a stream", method_name()));
}

void ServerCall::Cancel(absl::StatusCode reason) {
  if (QueuedCall::waits()) {
    Leave();
    Respond({CancelStatus(reason), Outcome::kNotExecuted});
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

void ServerCall::OnTimer() {
  timer_running_ = false;
  GiveUp(absl::StatusCode::kDeadlineExceeded);
}

void ServerCall::StopTimer() {
  if (std::exchange(timer_running_, false)) parts_.state.executor().StopTimer(*this);
}

void ServerCall::OnLinkDown() {
  if (cancel_.has_value()) {
    if (parts_.carried.outlives_link()) return;
    Cancel(absl::StatusCode::kCancelled);
  } else {
    parts_.NoteUnheard();
    Finish();
  }
}

void ServerCall::OnTaskDone() {
  VERBENA_DCHECK(parts_.link != nullptr && context_.has_value()) << method_name();
  EndTurn();
  absl::Status status;
  try {
    status = task_.TakeResult();
  } catch (...) {
    status = parts_.state.Thrown(method_name());
    // A Task that goes ahead of a failure's response does not change the handler's outcome.
    const bool is_handlers = !ahead_ || ending_.status.ok();
    if (is_handlers && ending_.outcome == Outcome::kExecuted) {
      ending_.outcome = Outcome::kMaybeExecuted;
    }
  }
  task_ = {};
  if (status.ok() && !ahead_) [[likely]] {
    Complete();
  } else {
    EndTask(status);
  }
}

inline void ServerCall::Complete() {
  const size_t reply_bytes = messages_.NoteReply();
  const Link* link = parts_.link->link();
  if (parts_.in_use() || (link != nullptr && reply_bytes > link->max_body_bytes())) [[unlikely]] {
    CompleteWithParts();
  } else if (Link* open = EndHandler()) [[likely]] {
    if (response_.SendInFrame(*open, reply_bytes)) [[likely]]
      FinishReplied();
  }
}

void ServerCall::CompleteWithParts() {
  if (behind_) [[unlikely]] {
    EndBehind(absl::OkStatus());
    return;
  }
  if (AwaitLeftChanges(absl::OkStatus())) return;
  const size_t reply_bytes = messages_.reply_bytes();
  const size_t context_bytes = parts_.carried.outgoing_bytes();
  const Link* link = parts_.link->link();
  const bool large = link != nullptr && reply_bytes + context_bytes > link->max_body_bytes();
  if (large && parts_.stream.get() != nullptr) {
    const TimePoint limit = SaturatingAdd(parts_.state.executor().now(), kMaxLandingWait);
    RespondBehind(WithDeadline(WriteReply(parts_.stream.get()->sender(), messages_.reply()), limit),
                  {absl::OkStatus(), Outcome::kExecuted, CallEnding::Way::kAhead});
    return;
  }
  if (!large && parts_.bulk.get() == nullptr) {
    Respond({});
    return;
  }
  WrittenResponse& response = parts_.Bulk().response();
  absl::Status planned = response.Plan(method(), reply_bytes, context_bytes);
  if (planned.ok() && response.needs_landing()) {
    RespondBehind(response.AskForLanding(messages_.reply()), {});
  } else {
    Respond({std::move(planned), parts_.carried.OutcomeOr(Outcome::kExecuted)});
  }
}

void ServerCall::EndTask(const absl::Status& ended) {
  if (behind_) [[unlikely]] {
    EndBehind(ended);
    return;
  }
  if (AwaitLeftChanges(ended)) return;
  if (ahead_ && ended.ok()) {
    Respond(std::exchange(ending_, {}));
    return;
  }
  if (ahead_ && !ending_.status.ok()) {
    // There is no landing for the failure, so it is cut to the frame.
    Respond({std::move(ending_.status), ending_.outcome});
    return;
  }
  CallEnding ending{ended, ending_.outcome};
  if (ending.outcome == Outcome::kNotExecuted) {
    ending.status = parts_.state.UnlessLeft(ended, *cancel_);
  } else {
    ending.outcome = ContextAccess::OutcomeGiven(*context_, ended).value_or(ending.outcome);
  }
  ending.outcome = parts_.carried.OutcomeOr(ending.outcome);
  if (ahead_ || !AskForLanding(ending)) Respond(std::move(ending));
}

uint64_t ServerCall::client() const { return reinterpret_cast<uintptr_t>(&parts_.link->client()); }

void ServerCall::OnLeftChangeEnded() {
  CarriedContext::LeftChanges& left = parts_.carried.left_changes();
  VERBENA_CHECK(left.count > 0) << method_name();
  if (--left.count > 0) return;
  // Before the response is sent: the call's name does not outlive that.
  if (left.result != nullptr) parts_.EndNamedRun(std::exchange(left.result, {}));
  left.ended.Set();
}

bool ServerCall::AwaitLeftChanges(const absl::Status& status) {
  if (!parts_.carried.has_left_changes()) return false;
  task_ = AfterChanges(parts_.carried.left_changes(), status);
  task_.Start(parts_.state.executor(), nullptr, this);
  return true;
}

bool ServerCall::AskForLanding(const CallEnding& failure) {
  const Link* link = parts_.link->link();
  if (parts_.stream.get() != nullptr || link == nullptr || !link->open() || cancel_->requested() ||
      StatusFits(failure.status, link->max_body_bytes() - parts_.carried.outgoing_bytes())) {
    return false;
  }
  std::unique_ptr<MessageLite> body = StatusBodyOf(failure.status);
  WrittenResponse& response = parts_.Bulk().response();
  if (!response.PlanFailure(body->ByteSizeLong()).ok()) return false;
  RespondBehind(AskForFailure(response, std::move(body)),
                {failure.status, failure.outcome, CallEnding::Way::kInLanding});
  return true;
}

absl::Status ServerCall::OnLanding(const RemoteRange& landing) {
  ServerBulk* bulk = parts_.bulk.get();
  return bulk != nullptr ? bulk->response().OnLanding(landing) : absl::OkStatus();
}

void ServerCall::RespondBehind(Task<absl::Status> ahead, CallEnding ending) {
  ending_ = std::move(ending);
  ahead_ = true;
  task_ = std::move(ahead);
  task_.Start(parts_.state.executor(), &*cancel_, this);
}

void ServerCall::Respond(CallEnding ending) {
  if (parts_.stream.get() != nullptr) ending = EndStream(std::move(ending));
  if (!ending.status.ok()) messages_.DropFailedReply();
  if (EndHandler() == nullptr) return;
  if (parts_.bulk.get() != nullptr) EndBulkRequest();
  if (response_.Send(ending)) Finish();
}

CallEnding ServerCall::EndStream(CallEnding handlers) {
  const bool is_whole = parts_.stream.get()->OnHandlerEnd();
  if (handlers.status.ok() && is_whole) return handlers;
  if (handlers.status.ok() && cancel_->requested()) {
    handlers.status = cancel_->status();
  } else if (handlers.status.ok()) {
    handlers.status = absl::AbortedError(
        fmt::format("the handler of {} returned OK before its last Write had sent its message: "
                    "co_await each Write",
                    method_name()));
  }
  // A client that has given up reads no details.
  const bool is_heard = cancel_.has_value() && !cancel_->requested();
  handlers.way = is_heard ? CallEnding::Way::kBeside : CallEnding::Way::kInFrame;
  return handlers;
}

// The shares that FetchedRequest::Drop() gives back count the request's message, too, so a large
// message is freed with them.
void ServerCall::EndBulkRequest() {
  messages_.DropRequestBeyond(CallMessages::kMaxPooledBytes);
  FetchedRequest& request = parts_.bulk.get()->request();
  request.Drop();
  if (const size_t bytes = request.earned_landing_bytes()) parts_.link->OfferLanding(bytes);
}

Link* ServerCall::EndHandler() {
  StopTimer();
  context_.reset();
  cancel_.reset();
  parts_.carried.DropIncoming();
  Link* link = parts_.link->link();
  if (link != nullptr && link->open()) [[likely]]
    return link;
  parts_.NoteUnheard();
  Finish();
  return nullptr;
}

void ServerCall::Finish() {
  if (counts_ != nullptr && parts_.bulk.get() != nullptr) CountPayloads();
  response_.Clear();
  parts_.Clear();
  ending_ = {};
  ahead_ = false;
  serves_ = !parts_.state.limits().interceptors.empty();
  FinishReplied();
}

void ServerCall::FinishReplied() {
  VERBENA_DCHECK(!context_.has_value() && !cancel_.has_value() && !timer_running_)
      << method_name() << " ends before its handler";
  if (is_counted()) CountEnd();
  messages_.Clear();
  pool_.End(*this, *std::exchange(parts_.link, nullptr));
}

void ServerCall::CountEnd() {
  counts_->request_bytes.Add(messages_.request_bytes());
  CallTimes* times = &counts_->ok();
  if (parts_.failure.code != 0) [[unlikely]] {
    times = &CountFailure();
  } else {
    counts_->reply_bytes.Add(messages_.reply_bytes());
  }
  pool_.served().Push(arrived_, *counts_, *times);
}

CallTimes& ServerCall::CountFailure() {
  const CallFailure failure = std::exchange(parts_.failure, {});
  counts_->AddFailed(failure.outcome);
  return counts_->OfCode(static_cast<absl::StatusCode>(failure.code));
}

void ServerCall::CountPayloads() {
  // The payload of a request whose call fails may be a client's mere claim.
  if (parts_.failure.code != 0) return;
  const ServerBulk& bulk = *parts_.bulk.get();
  counts_->request_payload_bytes.Add(bulk.request().payload_bytes());
  counts_->reply_payload_bytes.Add(bulk.response().payload_bytes());
}

CallPool::CallPool(ServerState& state)
    : state_(state),
      max_at_once_(state.admission() != nullptr ? 0 : state.limits().max_concurrent_calls),
      counts_(state.executor_counts()),
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

ServerCall* CallPool::Admit(const IncomingRequest& request, const LinkLimits& limits,
                            ServerClient& client, RefusalReason& reason) {
  ServerCall* const call = TryAdmit(request, limits, client, reason);
  if (call == nullptr && counts_ != nullptr) CountRefused(request.method, reason);
  return call;
}

ServerCall* CallPool::TryAdmit(const IncomingRequest& request, const LinkLimits& limits,
                               ServerClient& client, RefusalReason& reason) {
  if (!TakesMetadata(request)) {
    reason = state_.CountRefusal(RefusalReason::kTooMuchMetadata);
    return nullptr;
  }
  if (state_.admission() != nullptr) return AdmitGuarded(request, limits, client, reason);
  ServerCall* call = Admit(request.method, request.streams, client);
  if (call == nullptr) reason = Refusal(request.method, request.streams, client);
  return call;
}

void CallPool::CountRefused(uint16_t method, RefusalReason reason) {
  const int index = state_.methods().IndexOf(method);
  CallCounts& all = counts_->server;
  MethodCounts& counts =
      index < 0 ? all.other() : all.Of(*state_.methods().entry(index).method->descriptor);
  counts.begun.Add(1);
  counts.End(state_.executor().ticks().Shared() - all.ticks().found(),
             state_.RefusalStatus(reason).code(), Outcome::kNotExecuted);
}

// The exact bound of a block that travels is checked when it is here.
bool CallPool::TakesMetadata(const IncomingRequest& request) const {
  const size_t most = state_.limits().max_metadata_bytes;
  return request.context_header.travels
             ? request.context_header.block_bytes <= most + kMaxContextFixedBytes
             : request.context.metadata.bytes() <= most;
}

uint32_t CallPool::bounded_calls() const {
  return state_.admission() == nullptr ? active_ : active_ - state_.admission()->control_calls();
}

ServerCall* CallPool::AdmitGuarded(const IncomingRequest& request, const LinkLimits& limits,
                                   ServerClient& client, RefusalReason& reason) {
  const int index = state_.methods().IndexOf(request.method);
  // A context block that travels is here only when the call runs, and says no priority before.
  const Priority priority = request.context.priority;
  // A stream may last for ever, so it takes no control place.
  const bool is_stream = request.streams != Streams::kNone;
  const CallClass its_class = is_stream && priority == Priority::kControl
                                  ? CallClass::kNormal
                                  : state_.admission()->ClassOf(priority, client.queue());
  const bool is_control = its_class == CallClass::kControl;
  const bool full = bounded_calls() >= state_.limits().max_concurrent_calls || client.full();
  if (index < 0 || state_.draining() || state_.methods().entry(index).streams != request.streams ||
      (full && !is_control)) {
    reason = Refusal(request.method, request.streams, client);
    return nullptr;
  }
  const uint64_t pinned_bytes = PinnedBytes(request, limits);
  if (const auto broken =
          state_.admission()->Check(index, its_class, pinned_bytes, client.queue())) {
    reason = state_.CountRefusal(*broken);
    return nullptr;
  }
  if (!is_control) client.AddCall();
  ServerCall* call = Take(index);
  state_.admission()->Count(*call, index, its_class, pinned_bytes, client.queue());
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
