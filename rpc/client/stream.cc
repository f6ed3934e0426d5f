#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "fmt/format.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/rpc/call/sizes.h"
#include "verbena/rpc/call/status_codec.h"
#include "verbena/rpc/client/call.h"
#include "verbena/rpc/client/channel.h"
#include "verbena/rpc/client/connection.h"
#include "verbena/rpc/client/full_call.h"
#include "verbena/rpc/client/landings.h"
#include "verbena/rpc/client/policies.h"
#include "verbena/rpc/client/session.h"
#include "verbena/rpc/client/stream.h"
#include "verbena/rpc/detail/message.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/rpc/policy.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/stream.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/link/endpoint.h"

namespace verbena::internal {

namespace {

absl::Status DeviceLost() { return absl::UnavailableError("the stream's device was lost"); }

}  // namespace

void ReplyBuffers::Begin(const ClientSession& session, TimePoint deadline) {
  quota_ = session.landing_quota();
  endpoint_ = &session.endpoint();
  alive_ = endpoint_->alive();
  deadline_ = deadline;
}

absl::StatusOr<Buffer> ReplyBuffers::TryAllocate(size_t bytes) {
  if (alive_.expired()) return DeviceLost();
  return TryAllocateLanding(quota_, *endpoint_, bytes);
}

Task<absl::StatusOr<Buffer>> ReplyBuffers::Allocate(size_t bytes) {
  if (alive_.expired()) co_return DeviceLost();
  co_return co_await AllocateLanding(quota_, *endpoint_, bytes, {.deadline = deadline_});
}

StreamCall::StreamCall(const MethodDescriptor& method, Deadline deadline, CallInfo* info,
                       std::string request)
    : method_(method), deadline_(deadline), info_(info), request_(std::move(request)) {}

StreamCall::~StreamCall() {
  if (stage_ == Stage::kActive) GiveUp(CancelStatus(absl::StatusCode::kCancelled));
  if (finisher_ != nullptr) {
    StreamEndAwaiter& finisher = *std::exchange(finisher_, nullptr);
    finisher.call_ = nullptr;
    finisher.End();
  }
}

void StreamCall::StartClock(Scheduler& scheduler, const CancelScope* scope, Duration timeout) {
  scheduler_ = &scheduler;
  TimePoint ambient = kNever;
  if (scope != nullptr) ambient = scope->deadline();
  if (timeout > Duration::zero()) {
    ambient = std::min(ambient, SaturatingAdd(scheduler.now(), timeout));
  }
  if (deadline_.is_set() || info_ != nullptr || ambient != kNever) started_ = scheduler.now();
  deadline_ = Deadline(std::min(deadline_.At(started_), ambient));
  BeginInfo();
}

void StreamCall::BeginInfo() {
  if (info_ == nullptr) return;
  *info_ = {.request_bytes = static_cast<uint32_t>(request_.size())};
}

void StreamCall::NoteReply(size_t bytes) {
  if (info_ != nullptr) info_->reply_bytes = static_cast<uint32_t>(bytes);
}

void StreamCall::set_context(CallContext context) {
  context_ = context.empty() ? nullptr : std::make_unique<CallContext>(std::move(context));
}

bool StreamCall::Begin(Connection& connection) {
  if (stage_ != Stage::kNew) return true;
  ClientSession* session = connection.usable_session();
  if (session == nullptr) return false;
  BeginOn(*session, connection.shard().executor());
  return true;
}

void StreamCall::BeginOn(ClientSession& session, Scheduler& scheduler) {
  method_number_ = session.NumberOf(method_);
  absl::Status refusal = Refusal(session, method_number_);
  if (refusal.ok() && !session.Register(*this, &id_)) refusal = session.TooManyCalls();
  if (!refusal.ok()) {
    Refuse(std::move(refusal));
    return;
  }
  session_ = &session;
  stage_ = Stage::kActive;
  StreamLink& streams = session.streams();
  const bool has_payloads = method_.messages_have_payloads(Streams::kServer);
  if (has_payloads) buffers_.Begin(session, deadline_.is_set() ? deadline_.when() : kNever);
  receiver_.Begin(streams, id_, has_payloads ? &buffers_ : nullptr);
  sender_.Begin(streams, id_, method_.full_name);
  if (deadline_.is_set()) scheduler.StartTimer(*this, deadline_.when());
  SendRequest();
}

absl::Status StreamCall::Refusal(const ClientSession& session, uint16_t number) const {
  if (number == 0) return session.NoSuchMethod(method_);
  if (deadline_.is_set() && deadline_.when() <= started_) {
    return absl::DeadlineExceededError("the deadline passed before the call began");
  }
  return CheckMessageSize("a request", request_.size(), "client", session.endpoint().limits());
}

void StreamCall::EndUnbegun(absl::Status status) {
  status_ = std::move(status);
  End();
}

void StreamCall::Refuse(absl::Status status) {
  EndUnbegun(WithOutcome(std::move(status), Outcome::kNotExecuted));
}

void StreamCall::SendRequest() {
  Link& link = *session_->link();
  const size_t context_bytes = ContextInFrame(link);
  const size_t all = context_bytes + request_.size();
  body_bytes = all <= link.max_body_bytes() ? all : context_bytes;
  OnWritable(link);
}

bool StreamCall::ContextTravels(const Link& link) const {
  return context_->encoded_bytes() > std::min(kMaxContextInFrame, link.max_body_bytes());
}

size_t StreamCall::ContextInFrame(const Link& link) const {
  if (context_ == nullptr) return 0;
  return ContextTravels(link) ? kContextHeaderBytes : context_->encoded_bytes();
}

void StreamCall::WriteContext(const Link& link, char* body) {
  if (!ContextTravels(link)) {
    context_->Encode(body);
    return;
  }
  std::string block(context_->encoded_bytes(), '\0');
  EncodeTravellingContext(block.size(), body);
  context_->Encode(block.data());
  context_rest_ = std::make_unique<BesideSender>(std::move(block));
}

void StreamCall::SendContext(Link& link) {
  if (context_rest_->Send(link, id_)) {
    context_rest_.reset();
  } else {
    body_bytes = context_rest_->next_bytes(link);
    link.AwaitWritable(*this);
  }
}

// Frames that the stream sends meanwhile wait behind the request.
void StreamCall::OnWritable(Link& link) {
  if (sent_) {
    SendContext(link);
    return;
  }
  FrameHeader frame = RequestFrame(id_, method_number_);
  const size_t context_bytes = ContextInFrame(link);
  const bool apart = body_bytes != context_bytes + request_.size();
  frame.outcome = static_cast<uint8_t>(method_.streams);
  frame.flags = apart ? kFrameOpensStream | kFrameMessageApart : kFrameOpensStream;
  if (context_bytes != 0) frame.flags |= kFrameHasContext;
  if (deadline_.is_set()) frame.set_deadline(RemainingUs(deadline_.when(), scheduler_->now()));
  char* body = link.Append(frame, body_bytes);
  if (body == nullptr) {
    link.AwaitWritable(*this);
    return;
  }
  sent_ = true;
  if (context_bytes != 0) WriteContext(link, body);
  context_.reset();
  if (apart) {
    sender_.SendSerialized(std::move(request_));
  } else {
    request_.copy(body + context_bytes, request_.size());
  }
  request_ = std::string();
  if (context_rest_ != nullptr) SendContext(link);
}

absl::Status StreamCall::OnLandingNeeded(const LandingRequest& wanted) {
  return absl::InvalidArgumentError(
      fmt::format("a landing of {} bytes was asked for the stream {}, which takes none",
                  wanted.payload_bytes + wanted.message_bytes, method_.full_name));
}

absl::Status StreamCall::OnStreamFrame(const FrameHeader& frame, const char* body) {
  if (!sent_) return absl::InvalidArgumentError("a frame of a stream whose request has not left");
  if (frame.kind == FrameKind::kStreamWindow) return sender_.OnWindow(frame);
  if (frame.kind == FrameKind::kStreamMessage) {
    if (frame.outcome == kBesideMessages) [[unlikely]]
      return OnBeside(frame, body);
    return receiver_.OnMessage(frame, body);
  }
  return absl::InvalidArgumentError("a server sent the end of a client's messages");
}

absl::Status StreamCall::OnBeside(const FrameHeader& frame, const char* body) {
  if (failure_ == nullptr) {
    failure_ = std::make_unique<BesideReceiver>(session_->streams().share(), kMaxFailureBytes);
  }
  return failure_->Add(frame, body);
}

absl::Status StreamCall::SetFailure(const FrameHeader& frame, const char* body, uint32_t bytes) {
  const bool apart = (frame.flags & kFrameMessageApart) != 0;
  if (apart != (failure_ != nullptr) || (apart && bytes != 0)) {
    return absl::InvalidArgumentError(
        "a stream's failure is in two places, or in none: in its response, or ahead of it");
  }
  if (!apart) {
    status_ = FailureOf(frame, body, bytes);
  } else if (failure_->kept().ok()) {
    status_ = FailureOf(frame, failure_->bytes().data(), failure_->bytes().size());
  } else {
    status_ = Annotate(FailureOf(frame, nullptr, 0),
                       fmt::format("the server's message, which did not fit a frame, was lost: {}",
                                   std::string(failure_->kept().message())));
  }
  return absl::OkStatus();
}

absl::Status StreamCall::OnResponse(const FrameHeader& frame, const char* body) {
  if (!sent_)
    return absl::InvalidArgumentError("a response to a stream whose request has not left");
  if ((frame.flags & kFrameHasBulk) != 0) {
    return absl::InvalidArgumentError("a response of a stream tells of bulk");
  }
  size_t skip = 0;
  if ((frame.flags & kFrameHasContext) != 0) {
    VERBENA_ASSIGN_OR_RETURN(ContextHeader header, ParseContextHeader(body, frame.body_bytes));
    VERBENA_ASSIGN_OR_RETURN(Metadata trailing, ParseTrailingMetadata(body, header.block_bytes));
    if (info_ != nullptr) info_->trailing_metadata = std::move(trailing);
    skip = header.block_bytes;
  }
  body += skip;
  const uint32_t bytes = frame.body_bytes - static_cast<uint32_t>(skip);
  const bool whole = receiver_.End();
  if (frame.status_code != 0) {
    VERBENA_RETURN_IF_ERROR(SetFailure(frame, body, bytes));
  } else if (failure_ != nullptr) {
    return absl::InvalidArgumentError("a stream ended well whose failure came ahead");
  } else if (!whole) {
    return absl::InvalidArgumentError("a stream ended well in the middle of a message");
  } else {
    reply_apart_ = (frame.flags & kFrameMessageApart) != 0;
    if (bytes > 0) reply_.assign(body, bytes);
    NoteReply(bytes);
  }
  session_->NoteAnswered();
  End();
  return absl::OkStatus();
}

bool StreamCall::ParseReply(MessageLite& reply) { return reply.ParseFromString(reply_); }

absl::Status StreamCall::Unparsed(const MessageLite& reply) const {
  return WithOutcome(absl::InternalError(fmt::format("the reply of {} does not parse as {}",
                                                     method_.full_name, TypeNameOf(reply))),
                     Outcome::kExecuted);
}

void StreamCall::OnLinkDown(const absl::Status& reason) {
  status_ = WithOutcome(reason, sent_ ? Outcome::kMaybeExecuted : Outcome::kNotExecuted);
  End();
}

void StreamCall::OnTimer() { GiveUp(session_->DeadlinePassed(method_)); }

void StreamCall::OnReceiveFailed(const absl::Status& status) {
  if (stage_ == Stage::kActive) {
    GiveUp(status);
  } else if (status_.ok()) {
    // The response has come before the message was read.
    status_ = WithOutcome(status, Outcome::kExecuted);
  }
}

void StreamCall::GiveUp(absl::Status status) {
  if (stage_ == Stage::kEnded) return;
  if (stage_ == Stage::kNew) {
    Refuse(std::move(status));
    return;
  }
  status_ = WithOutcome(std::move(status), sent_ ? Outcome::kMaybeExecuted : Outcome::kNotExecuted);
  ClientSession& session = *session_;
  const CallId id = id_;
  End();
  if (sent_) session.SendCancel(id);
}

void StreamCall::GiveUpFor(absl::StatusCode reason) {
  const bool is_late = reason == absl::StatusCode::kDeadlineExceeded && stage_ == Stage::kActive;
  GiveUp(is_late ? session_->DeadlinePassed(method_) : CancelStatus(reason));
}

void StreamCall::Abandon() {
  info_ = nullptr;
  GiveUp(CancelStatus(absl::StatusCode::kCancelled));
}

void StreamCall::End() {
  const bool registered = stage_ == Stage::kActive;
  stage_ = Stage::kEnded;
  connects_.Request();
  SendWaiter::Unlink();
  context_rest_.reset();
  failure_.reset();
  if (registered && deadline_.is_set()) scheduler_->StopTimer(*this);
  if (!clock_started()) {
    BeginInfo();
  } else if (info_ != nullptr) {
    info_->elapsed = scheduler_->now() - started_;
  }
  if (!receiver_.ended()) {
    status_.ok() ? (void)receiver_.End() : receiver_.Fail(status_);
  }
  sender_.Close(status_.ok() ? absl::FailedPreconditionError(fmt::format(
                                   "the server has ended the stream of {}: Finish() says how",
                                   method_.full_name))
                             : status_);
  if (registered) std::exchange(session_, nullptr)->Release(id_);
  if (finisher_ != nullptr) std::exchange(finisher_, nullptr)->End();
}

StreamEndAwaiter::~StreamEndAwaiter() {
  if (call_ != nullptr && call_->finisher_ == this) call_->finisher_ = nullptr;
}

bool StreamEndAwaiter::Await(PromiseBase& caller) {
  if (call_->ended()) return false;
  if (Cancelled(caller)) {
    call_->GiveUpFor(cancel_reason());
    return false;
  }
  VERBENA_CHECK(call_->finisher_ == nullptr) << "two Finish of one stream at once";
  Suspend(caller);
  call_->finisher_ = this;
  return true;
}

void StreamEndAwaiter::Detach() {
  call_->finisher_ = nullptr;
  call_->GiveUpFor(cancel_reason());
}

class InterceptedStream::Chain final : public ClientChain {
 public:
  Chain(InterceptedStream& stream, ClientCallView& view)
      : ClientChain(stream.channel_.interceptors, view), stream_(stream) {}

 private:
  Task<absl::Status> Last() override {
    StreamCall& call = stream_.call_;
    const TaskContext task = co_await CurrentContext();
    CallContext context = ClientChain::Start();
    absl::Status checked = CheckContext(context, stream_.channel_.max_metadata_bytes);
    if (call.ended()) {
      // Its Finish() was cancelled.
    } else if (!checked.ok()) {
      call.Refuse(std::move(checked));
    } else if (task.cancel == nullptr || !task.cancel->requested()) {
      call.set_context(std::move(context));
      co_await stream_.call_.BeginOnceConnected();
    }
    stream_.begun_.Set();
    co_await StreamEndAwaiter(call);
    absl::Status status = call.status();
    if (status.ok() && call.method().streams == Streams::kClient && !call.reply_apart() &&
        !call.ParseReply(*stream_.messages_.reply)) {
      status = call.Unparsed(*stream_.messages_.reply);
    }
    stream_.ended_well_ = status.ok();
    co_return status;
  }

  InterceptedStream& stream_;
};

InterceptedStream::InterceptedStream(InterceptedChannel channel, StreamCall& call,
                                     StreamMessages messages)
    : channel_(channel), call_(call), messages_(std::move(messages)) {}

void InterceptedStream::Start(Scheduler& scheduler, CallContext context,
                              const TraceContext* trace) {
  if (trace != nullptr) scope_.set_trace(*trace);
  view_.emplace(call_.method(), channel_.target, *messages_.request, *messages_.reply,
                call_.deadline(), call_.InfoOr(own_info_).trailing_metadata);
  view_->metadata = std::move(context.metadata);
  view_->trace = std::move(context.trace);
  view_->priority = context.priority;
  view_->request_id = context.request_id;
  if (decltype(hooks_)::value_type::AreWanted(channel_.interceptors)) {
    hooks_.emplace(channel_.interceptors, *view_, Streams::kClient, call_.sender(),
                   call_.receiver());
  }
  task_ = Run();
  task_.Start(scheduler, &scope_, this);
}

Task<absl::Status> InterceptedStream::Run() {
  Chain chain(*this, *view_);
  absl::Status status = co_await WithDeadline(chain.Run(), call_.deadline().when());
  co_return chain.Marked(std::move(status));
}

void InterceptedStream::OnTaskDone() {
  absl::Status status;
  try {
    status = task_.TakeResult();
  } catch (const std::exception& error) {
    status = Thrown(error.what());
  } catch (...) {
    status = Thrown("something unknown");
  }
  task_ = {};
  End(std::move(status));
}

absl::Status InterceptedStream::Thrown(const char* what) const {
  return WithOutcome(absl::InternalError(fmt::format("an interceptor of {} threw: {}",
                                                     call_.method().full_name, what)),
                     call_.begun() ? Outcome::kMaybeExecuted : Outcome::kNotExecuted);
}

void InterceptedStream::End(absl::Status status) {
  if (done_.is_set()) return;
  status_ = std::move(status);
  // They may end without the stream, or before it.
  if (!call_.begun()) {
    call_.EndUnbegun(status_);
  } else {
    call_.GiveUp(CancelStatus(absl::StatusCode::kCancelled));
  }
  begun_.Set();
  done_.Set();
}

Task<void> InterceptedStream::AwaitDone() { (void)co_await done_.Wait(); }

Task<absl::Status> InterceptedStream::Finish() {
  const absl::Status waited = co_await done_.Wait();
  if (!waited.ok()) {
    scope_.Request(waited.code());
    // Interceptors may go on without the scope; the call does not.
    call_.GiveUpFor(waited.code());
    co_await AwaitDone().In(nullptr);
  }
  // The last message may have turned out not to parse after the response came.
  co_return status_.ok() && ended_well_ ? call_.status() : status_;
}

void InterceptedStream::Abandon() {
  task_ = {};
  call_.GiveUp(CancelStatus(absl::StatusCode::kCancelled));
  End(call_.status());
}

namespace {

Deadline DeadlineOf(const ClientChannel& channel, const CallOptions& options) {
  return options.deadline.is_given() ? options.deadline : channel.options().default_deadline;
}

// Retries and the like; nullptr if the method has none.
const MethodConfig* PolicyOf(const ClientChannel& channel, const MethodDescriptor& method) {
  const CallPolicies* policies = channel.policies();
  return policies == nullptr ? nullptr : policies->Of(method);
}

Task<absl::Status> Pause(Duration pause) { co_return co_await Sleep(pause); }

std::unique_ptr<MessageLite> CopyOf(const MessageLite& message) {
  std::unique_ptr<MessageLite> copy(message.New());
  copy->CheckTypeAndMergeFrom(message);
  return copy;
}

// The scope of a wait for a link, which ends with the await that needs the link, and with the call.
class ConnectScope final : private CancelNode {
 public:
  ConnectScope(CancelScope* await, CancelScope& call) : scope_(await) { call.Add(*this); }

  CancelScope* get() { return &scope_; }

 private:
  void OnCancel(absl::StatusCode reason) override { scope_.Request(reason); }

  CancelScope scope_;
};

}  // namespace

class ChannelStream final : public StreamCall {
 public:
  ChannelStream(ClientChannel& channel, const MethodDescriptor& method, const MessageLite& request,
                const MessageLite& reply, CallOptions& options)
      : StreamCall(method, DeadlineOf(channel, options), options.info,
                   method.streams == Streams::kServer ? PartialBytesOf(request) : ""),
        channel_(channel),
        policy_(PolicyOf(channel, method)),
        route_key_(options.route_key),
        wait_for_ready_(options.wait_for_ready || (policy_ != nullptr && policy_->wait_for_ready)),
        inherits_(options.inherit == Inherit::kAll) {
    if (options.dedupe != nullptr) {
      Refuse(absl::InvalidArgumentError(fmt::format(
          "{} is a stream, which cannot be repeated as a whole: leave CallOptions::dedupe unset",
          method.full_name)));
      return;
    }
    if (HasPayloads(options)) {
      Refuse(
          absl::InvalidArgumentError(fmt::format("{} is a stream, whose payloads go with its "
                                                 "messages: leave request_payload, "
                                                 "response_payload_into and max_response_payload "
                                                 "of CallOptions unset",
                                                 method.full_name)));
      return;
    }
    if (options.priority != Priority::kNormal || options.request_id.has_value() ||
        !options.metadata.untouched()) {
      given_ = std::make_unique<CallContext>(CallContext{.priority = options.priority,
                                                         .request_id = options.request_id,
                                                         .metadata = std::move(options.metadata)});
    }
    if (channel.options().interceptors.empty()) return;
    seen_ = {.request = CopyOf(request), .reply = CopyOf(reply)};
  }
  ~ChannelStream() override { Abandon(); }

  // How many StreamRefs and StreamHandles refer to this.
  uint32_t shares = 1;

  // For an await in `scope`, which may be null: begins the call, or its interceptors, unless they
  // have begun. False if the call has neither begun nor ended: then await Begun().
  bool BeginIn(CancelScope* scope);
  Task<void> Begun();
  // Waits for the end, and gives the final status. If the await is cancelled, the call ends.
  Task<absl::Status> Ended();
  // null: the channel has none.
  const InterceptedStream* interception() const { return interception_.get(); }
  void Abandon() {
    if (interception_ != nullptr) interception_->Abandon();
    StreamCall::Abandon();
  }

 private:
  // nullptr: the call has ended, since this thread runs no executor.
  Scheduler* SchedulerHere();
  void TakeOver(Scheduler& scheduler, const CancelScope* scope);
  void Intercept(Scheduler& scheduler, CallContext context, const TraceContext* trace);
  // Begins the call on a link that is ready; false if none is.
  bool BeginHere() {
    Connection* connection = channel_.Here(route_key_);
    return connection != nullptr && StreamCall::Begin(*connection);
  }
  Task<void> BeginOnceConnected() override;
  // The retries of a stream that found no link; none if its method has no RetryPolicy.
  std::optional<RetrySeries> Retries();

  ClientChannel& channel_;
  const MethodConfig* const policy_;  // nullptr: none
  const std::optional<uint64_t> route_key_;
  const bool wait_for_ready_;
  const bool inherits_;
  std::unique_ptr<CallContext> given_;  // by CallOptions, until the call begins; null: nothing
  StreamMessages seen_;                 // until interceptors begin
  std::unique_ptr<InterceptedStream> interception_;
};

Scheduler* ChannelStream::SchedulerHere() {
  const Shard* shard = channel_.ShardHere();
  if (shard != nullptr) return &shard->executor();
  GiveUp(NotOnAnExecutor());
  return nullptr;
}

bool ChannelStream::BeginIn(CancelScope* scope) {
  if (begun()) return true;
  Scheduler* scheduler = SchedulerHere();
  if (scheduler == nullptr) return true;
  if (!clock_started()) TakeOver(*scheduler, scope);
  return begun() || (interception_ == nullptr && BeginHere());
}

// The call's context is complete: its own, and what it inherits.
void ChannelStream::TakeOver(Scheduler& scheduler, const CancelScope* scope) {
  if (!inherits_) scope = nullptr;
  StartClock(scheduler, scope, policy_ == nullptr ? Duration::zero() : policy_->timeout);
  const TraceContext* trace = scope == nullptr ? nullptr : scope->trace();
  CallContext context;
  if (given_ != nullptr) context = std::move(*given_);
  given_.reset();
  if (trace != nullptr) context.trace = trace->Child();
  if (!channel_.options().interceptors.empty()) {
    Intercept(scheduler, std::move(context), trace);
    return;
  }
  if (context.empty() && context.metadata.untouched()) return;
  absl::Status checked = CheckContext(context, channel_.options().max_metadata_bytes);
  if (checked.ok()) {
    set_context(std::move(context));
  } else {
    Refuse(std::move(checked));
  }
}

void ChannelStream::Intercept(Scheduler& scheduler, CallContext context,
                              const TraceContext* trace) {
  const ChannelOptions& options = channel_.options();
  interception_ = std::make_unique<InterceptedStream>(
      InterceptedChannel{channel_.target(), options.interceptors, options.max_metadata_bytes},
      *this, std::move(seen_));
  interception_->Start(scheduler, std::move(context), trace);
}

Task<void> ChannelStream::Begun() {
  if (interception_ != nullptr) {
    (void)co_await interception_->Begun();
  } else if (SchedulerHere() != nullptr) {
    co_await BeginOnceConnected();
  }
}

std::optional<RetrySeries> ChannelStream::Retries() {
  const Shard* shard = channel_.ShardHere();
  if (policy_ == nullptr || !policy_->retry.has_value() || shard == nullptr) return std::nullopt;
  RetryAccount& account = channel_.policies()->account(shard->index());
  account.Add(RetryAccount::Count::kCalls);
  return std::optional<RetrySeries>(std::in_place, *policy_->retry, method(), account);
}

// Several awaits of the stream may be here at once; the first that finds a link begins the call.
Task<void> ChannelStream::BeginOnceConnected() {
  const TaskContext context = co_await CurrentContext();
  CancelScope* const await = context.cancel;
  if (begun()) co_return;
  ConnectScope scope(await, waits_for_link());
  std::optional<RetrySeries> retries = Retries();
  while (!begun() && !BeginHere()) {
    const absl::StatusOr<ConnectionUse> connection =
        co_await channel_.Route(route_key_, deadline(), wait_for_ready_).In(scope.get());
    if (begun()) break;
    if (connection.ok()) {
      StreamCall::Begin(**connection);
      continue;
    }
    // Whoever awaits was cancelled, not the stream. The next await goes on.
    const bool is_cancelled = await != nullptr && await->requested();
    if (is_cancelled) break;
    // No message has left.
    std::optional<Duration> pause;
    if (retries.has_value()) {
      pause = retries->After({.status = connection.status(),
                              .now = context.scheduler->now(),
                              .deadline = deadline().when()});
    }
    if (pause.has_value()) {
      const absl::Status slept = co_await Pause(*pause).In(scope.get());
      if (begun() || (await != nullptr && await->requested())) break;
      if (slept.ok()) {
        retries->Begin();
        continue;
      }
    }
    Refuse(connection.status());
  }
}

Task<absl::Status> ChannelStream::Ended() {
  absl::Status result;
  if (interception_ != nullptr) {
    result = co_await interception_->Finish();
  } else {
    co_await StreamEndAwaiter(*this);
    result = status();
  }
  // The handler may end well before it hears that a message is missing.
  const absl::Status& lost = sender().lost();
  if (result.ok() && status().ok() && !lost.ok()) co_return WithOutcome(lost, Outcome::kExecuted);
  co_return result;
}

StreamHandle::StreamHandle(ClientChannel& channel, const MethodDescriptor& method,
                           const MessageLite& request, const MessageLite& reply,
                           CallOptions&& options)
    : stream_(new ChannelStream(channel, method, request, reply, options)) {}

void StreamHandle::Deleter::operator()(ChannelStream* stream) const {
  stream->Abandon();
  if (--stream->shares == 0) delete stream;
}

StreamRef::StreamRef(ChannelStream& stream) : stream_(&stream) { ++stream.shares; }

StreamRef::~StreamRef() {
  if (stream_ != nullptr && --stream_->shares == 0) delete stream_;
}

StreamReceiver& ReceiverOf(ChannelStream& stream) { return stream.receiver(); }
StreamSender& SenderOf(ChannelStream& stream) { return stream.sender(); }

bool BeginsStream::HasBegun(const PromiseBase& caller) {
  if (stream_.begun()) [[likely]]
    return true;
  const bool cancelled = caller.cancel != nullptr && caller.cancel->requested();
  return cancelled || stream_.BeginIn(caller.cancel);
}

Task<void> BeginsStream::Begin(StreamRef stream) {
  CancelScope* scope = (co_await CurrentContext()).cancel;
  if (scope != nullptr && scope->requested()) co_return;
  if (!stream->BeginIn(scope)) co_await stream->Begun();
}

Task<bool> ClientRead::ReadLater(StreamRef stream, MessageLite& into) {
  co_await Begin(stream);
  const absl::StatusOr<bool> read = co_await StreamRead(stream->receiver(), into);
  co_return read.ok() && *read;
}

namespace {

struct Beginner : BeginsStream {
  using BeginsStream::Begin;
};

// A Write that is destroyed before its stream has begun has lost its message, also if nobody has
// started its Task, as by WhenAny() of another that ends at once. Unless the client has said that
// its messages are whole.
class LostUnlessBegun {
 public:
  explicit LostUnlessBegun(StreamRef stream) : stream_(std::move(stream)) {}
  LostUnlessBegun(LostUnlessBegun&& other) noexcept
      : stream_(std::move(other.stream_)), lost_(std::exchange(other.lost_, false)) {}
  ~LostUnlessBegun() {
    if (!lost_ || stream_->sender().end_sent()) return;
    stream_->sender().NoteLost(CancelStatus(absl::StatusCode::kCancelled));
  }

  const StreamRef& stream() const { return stream_; }
  void NoteBegun() { lost_ = false; }

 private:
  StreamRef stream_;
  bool lost_ = true;
};

Task<absl::Status> WriteOnceBegun(LostUnlessBegun write, const MessageLite& message,
                                  BorrowedPayload payload) {
  co_await Beginner::Begin(write.stream());
  write.NoteBegun();
  co_return co_await StreamWrite(write.stream()->sender(), message, payload);
}

}  // namespace

VERBENA_CORO_WRAPPER Task<absl::Status> ClientWrite::WriteLater(StreamRef stream,
                                                                const MessageLite& message,
                                                                BorrowedPayload payload) {
  return WriteOnceBegun(LostUnlessBegun(std::move(stream)), message, payload);
}

Task<bool> ReadWithPayload(StreamRef stream, MessageLite& into, PayloadSink sink) {
  co_await Beginner::Begin(stream);
  const absl::StatusOr<bool> read = co_await ReadWithPayload(stream->receiver(), into, sink);
  co_return read.ok() && *read;
}

Task<absl::StatusOr<bool>> TryRead(StreamRef stream, MessageLite& into, PayloadSink sink) {
  co_await Beginner::Begin(stream);
  if (sink.payload == nullptr) co_return co_await StreamRead(stream->receiver(), into);
  co_return co_await ReadWithPayload(stream->receiver(), into, sink);
}

Task<absl::Status> EndWrites(StreamRef stream) {
  co_await Beginner::Begin(stream);
  if (stream->ended() && !stream->status().ok()) co_return stream->status();
  if (!stream->begun()) co_return (co_await CurrentContext()).cancel->status();
  stream->EndWrites();
  co_return absl::OkStatus();
}

namespace {

// Ends the writes, unless a message is missing among them: then the server must not take them for
// whole.
void FinishWrites(ChannelStream& stream) {
  const absl::Status& lost = stream.sender().lost();
  lost.ok() ? stream.EndWrites() : stream.GiveUp(lost);
}

}  // namespace

Task<absl::Status> FinishStream(StreamRef stream) {
  co_await Beginner::Begin(stream);
  if (stream->method().streams == Streams::kBoth) FinishWrites(*stream);
  stream->receiver().Discard();
  co_return co_await stream->Ended();
}

Task<absl::Status> FinishWithReply(StreamRef stream, MessageLite& reply) {
  co_await Beginner::Begin(stream);
  FinishWrites(*stream);
  // A reply that is larger than a frame comes as a message, for whose parts this makes room.
  const absl::StatusOr<bool> read = co_await StreamRead(stream->receiver(), reply);
  VERBENA_CO_RETURN_IF_ERROR(co_await stream->Ended());
  bool parsed = true;
  if (stream->reply_apart()) {
    parsed = read.ok() && *read;
    stream->NoteReply(reply.ByteSizeLong());
  } else if (stream->interception() != nullptr) {
    reply.Clear();
    reply.CheckTypeAndMergeFrom(stream->interception()->reply());
  } else {
    parsed = stream->ParseReply(reply);
  }
  if (!parsed) co_return stream->Unparsed(reply);
  co_return absl::OkStatus();
}

}  // namespace verbena::internal
