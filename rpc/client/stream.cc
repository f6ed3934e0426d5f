#include "verbena/rpc/client/stream.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/rpc/call/sizes.h"
#include "verbena/rpc/call/status_codec.h"
#include "verbena/rpc/client/attempt.h"
#include "verbena/rpc/client/call.h"
#include "verbena/rpc/client/channel.h"
#include "verbena/rpc/client/connection.h"
#include "verbena/rpc/client/landings.h"
#include "verbena/rpc/client/policies.h"
#include "verbena/rpc/client/session.h"
#include "verbena/rpc/client/spec.h"
#include "verbena/rpc/detail/message.h"
#include "verbena/rpc/detail/stream_awaits.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/rpc/policy.h"
#include "verbena/rpc/shard/call_counts.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {

namespace {

absl::Status DeviceLost() { return absl::UnavailableError("the stream's device was lost"); }

Deadline DeadlineOf(const ClientChannel& channel, const CallOptions& options) {
  return options.deadline.is_given() ? options.deadline : channel.options().default_deadline;
}

// Retries and the like; nullptr if the method has none.
const MethodConfig* PolicyOf(const ClientChannel& channel, const MethodDescriptor& method) {
  const CallPolicies* policies = channel.policies();
  return policies == nullptr ? nullptr : policies->Of(method);
}

absl::Status CheckStreamOptions(const MethodDescriptor& method, const CallOptions& options) {
  if (options.dedupe != nullptr) {
    return absl::InvalidArgumentError(fmt::format(
        "{} is a stream, which cannot be repeated as a whole: leave CallOptions::dedupe unset",
        method.full_name));
  }
  if (HasPayloads(options)) {
    return absl::InvalidArgumentError(
        fmt::format("{} is a stream, whose payloads go with its messages: leave request_payload, "
                    "response_payload_into and max_response_payload of CallOptions unset",
                    method.full_name));
  }
  return absl::OkStatus();
}

// The part of a call's context that its options give; null: none.
std::unique_ptr<CallContext> GivenContext(CallOptions& options) {
  if (options.priority == Priority::kNormal && !options.request_id.has_value() &&
      options.metadata.untouched()) {
    return nullptr;
  }
  return std::make_unique<CallContext>(CallContext{.priority = options.priority,
                                                   .request_id = options.request_id,
                                                   .metadata = std::move(options.metadata)});
}

std::unique_ptr<MessageLite> CopyOf(const MessageLite& message) {
  std::unique_ptr<MessageLite> copy(message.New());
  copy->CheckTypeAndMergeFrom(message);
  return copy;
}

bool IsCancelled(const CancelScope* scope) { return scope != nullptr && scope->requested(); }

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

void ReplyBuffers::Begin(const ClientSession& session, TimePoint deadline) {
  quota_ = session.landing_quota();
  endpoint_ = &session.link()->endpoint();
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

StreamEndAwaiter::~StreamEndAwaiter() {
  if (stream_.finisher_ == this) stream_.finisher_ = nullptr;
}

bool StreamEndAwaiter::Await(PromiseBase& caller) {
  if (stream_.ended()) return false;
  if (Cancelled(caller)) {
    stream_.GiveUpFor(cancel_reason());
    return false;
  }
  VERBENA_CHECK(stream_.finisher_ == nullptr) << "two Finish of one stream at once";
  Suspend(caller);
  stream_.finisher_ = this;
  return true;
}

void StreamEndAwaiter::Detach() {
  stream_.finisher_ = nullptr;
  stream_.GiveUpFor(cancel_reason());
}

ClientStream::ClientStream(ClientChannel& channel, const MethodDescriptor& method,
                           const MessageLite& request, const MessageLite& reply,
                           CallOptions& options)
    : channel_(channel),
      method_(method),
      policy_(PolicyOf(channel, method)),
      route_key_(options.route_key),
      wait_for_ready_(options.wait_for_ready || (policy_ != nullptr && policy_->wait_for_ready)),
      inherits_(options.inherit == Inherit::kAll),
      deadline_(DeadlineOf(channel, options)),
      info_(options.info),
      request_(method.streams == Streams::kServer ? PartialBytesOf(request) : "") {
  absl::Status checked = CheckStreamOptions(method, options);
  if (!checked.ok()) {
    Refuse(std::move(checked));
    return;
  }
  context_ = GivenContext(options);
  if (channel.options().interceptors.empty()) return;
  seen_ = {.request = CopyOf(request), .reply = CopyOf(reply)};
}

ClientStream::~ClientStream() { Abandon(); }

void ClientStream::Release() {
  if (--holders_ == 0) delete this;
}

bool ClientStream::BeginIn(CancelScope* scope) {
  if (begun()) return true;
  const Shard* shard = channel_.ShardHere();
  if (shard == nullptr) {
    Refuse(NotOnAnExecutor());
    return true;
  }
  if (scheduler_ == nullptr) {
    scheduler_ = &shard->executor();
    StartCount(shard->counts());
    TakeOver(inherits_ ? scope : nullptr);
  }
  return begun() || (interception_ == nullptr && BeginHere());
}

void ClientStream::TakeOver(const CancelScope* scope) {
  StartClock(scope);
  CallContext context;
  if (context_ != nullptr) context = std::move(*context_);
  const TraceContext* trace = scope == nullptr ? nullptr : scope->trace();
  if (trace != nullptr) context.trace = trace->Child();
  if (channel_.options().interceptors.empty()) {
    SetContext(std::move(context));
    return;
  }
  interception_ = std::make_unique<InterceptedStream>(*this, std::move(seen_));
  interception_->Start(*scheduler_, std::move(context), trace);
}

void ClientStream::StartClock(const CancelScope* scope) {
  TimePoint ambient = kNever;
  if (scope != nullptr) ambient = scope->deadline();
  if (policy_ != nullptr && policy_->timeout > Duration::zero()) {
    ambient = std::min(ambient, SaturatingAdd(scheduler_->now(), policy_->timeout));
  }
  if (deadline_.is_set() || info_ != nullptr || ambient != kNever) started_ = scheduler_->now();
  deadline_ = Deadline(std::min(deadline_.At(started_), ambient));
  BeginInfo();
}

void ClientStream::StartCount(ExecutorCounts* counts) {
  if (counts == nullptr) return;
  counts_ = &counts->client.Of(method_);
  counts_->begun.Add(1);
  began_ = scheduler_->ticks().Shared();
}

void ClientStream::BeginInfo() {
  if (info_ == nullptr) return;
  *info_ = {.request_bytes = static_cast<uint32_t>(request_.size())};
}

void ClientStream::SetContext(CallContext context) {
  absl::Status checked = CheckContext(context, channel_.options().max_metadata_bytes);
  if (!checked.ok()) {
    Refuse(std::move(checked));
    return;
  }
  context_ = context.empty() ? nullptr : std::make_unique<CallContext>(std::move(context));
}

Task<void> ClientStream::Begin() {
  CancelScope* const scope = (co_await CurrentContext()).cancel;
  if (IsCancelled(scope) || BeginIn(scope)) co_return;
  if (interception_ != nullptr) {
    (void)co_await interception_->Begun();
  } else {
    co_await BeginOnceConnected();
  }
}

// The awaits of a stream take turns, so that they share its attempts. The first that finds a link
// begins the call.
Task<void> ClientStream::BeginOnceConnected() {
  const TaskContext context = co_await CurrentContext();
  absl::StatusOr<MutexLock> turn = co_await connecting_.Lock();
  if (!turn.ok() || begun()) co_return;
  ConnectScope scope(context.cancel, connects_);
  while (!begun() && !BeginHere()) {
    const absl::StatusOr<ConnectionUse> connection = co_await Connect().In(scope.get());
    if (begun()) co_return;
    if (connection.ok()) {
      BeginOver(**connection);
      continue;
    }
    // This await was cancelled, not the stream. The next await goes on.
    if (IsCancelled(context.cancel)) co_return;
    OnNoLink(connection.status());
  }
}

Task<absl::StatusOr<ConnectionUse>> ClientStream::Connect() {
  if (RetryAccount* account = Account(); account != nullptr && !retries_.has_value()) {
    account->Add(RetryAccount::Count::kCalls);
    retries_.emplace(*policy_->retry, method_, *account);
  }
  if (retry_at_.has_value()) {
    VERBENA_CO_RETURN_IF_ERROR(co_await SleepUntil(*retry_at_));
    retry_at_.reset();
    retries_->Begin();
    if (counts_ != nullptr) counts_->retries.Add(1);
  }
  co_return co_await channel_.Route(route_key_, deadline_, wait_for_ready_);
}

void ClientStream::OnNoLink(const absl::Status& failure) {
  if (!retries_.has_value()) {
    Refuse(failure);
    return;
  }
  const TimePoint now = scheduler_->now();
  const std::optional<Duration> pause =
      retries_->After({.status = failure, .now = now, .deadline = deadline_.when()});
  if (pause.has_value()) {
    retry_at_ = SaturatingAdd(now, *pause);
  } else {
    Refuse(retries_->Explained(failure));
  }
}

RetryAccount* ClientStream::Account() const {
  const Shard* shard = channel_.ShardHere();
  if (policy_ == nullptr || !policy_->retry.has_value() || shard == nullptr) return nullptr;
  return &channel_.policies()->account(shard->index());
}

bool ClientStream::BeginHere() {
  Connection* connection = channel_.Here(route_key_);
  return connection != nullptr && BeginOver(*connection);
}

bool ClientStream::BeginOver(Connection& connection) {
  ClientSession* const session = connection.usable_session();
  if (session == nullptr) return false;
  method_number_ = session->NumberOf(method_);
  absl::Status refusal = Refusal(*session);
  if (refusal.ok() && !session->Register(*this, &id_)) refusal = session->TooManyCalls();
  if (!refusal.ok()) {
    Refuse(std::move(refusal));
    return true;
  }
  session_ = session;
  stage_ = Stage::kActive;
  // An await that pauses before a further attempt, and those behind it, go on.
  connects_.Request();
  if (RetryAccount* account = Account()) account->OnSuccess();
  StreamLink& streams = session->streams();
  const bool has_payloads = method_.messages_have_payloads(Streams::kServer);
  if (has_payloads) buffers_.Begin(*session, deadline_.is_set() ? deadline_.when() : kNever);
  receiver_.Begin(streams, id_, has_payloads ? &buffers_ : nullptr);
  sender_.Begin(streams, id_, method_.full_name);
  if (deadline_.is_set()) scheduler_->StartTimer(*this, deadline_.when());
  SendRequest();
  return true;
}

absl::Status ClientStream::Refusal(const ClientSession& session) const {
  if (method_number_ == 0) return session.NoSuchMethod(method_);
  if (deadline_.is_set() && deadline_.when() <= started_) {
    return absl::DeadlineExceededError("the deadline passed before the call began");
  }
  return CheckMessageSize("a request", request_.size(), "client",
                          session.link()->endpoint().limits());
}

void ClientStream::EndUnbegun(absl::Status status) {
  status_ = std::move(status);
  End();
}

void ClientStream::Refuse(absl::Status status) {
  EndUnbegun(WithOutcome(std::move(status), Outcome::kNotExecuted));
}

void ClientStream::SendRequest() {
  Link& link = *session_->link();
  const size_t context_bytes = ContextInFrame(link);
  const size_t all = context_bytes + request_.size();
  body_bytes = all <= link.max_body_bytes() ? all : context_bytes;
  OnWritable(link);
}

bool ClientStream::ContextTravels(const Link& link) const {
  return context_->encoded_bytes() > std::min(kMaxContextInFrame, link.max_body_bytes());
}

size_t ClientStream::ContextInFrame(const Link& link) const {
  if (context_ == nullptr) return 0;
  return ContextTravels(link) ? kContextHeaderBytes : context_->encoded_bytes();
}

void ClientStream::WriteContext(const Link& link, char* body) {
  if (!ContextTravels(link)) {
    context_->Encode(body);
    return;
  }
  std::string block(context_->encoded_bytes(), '\0');
  EncodeTravellingContext(block.size(), body);
  context_->Encode(block.data());
  context_rest_ = std::make_unique<BesideSender>(std::move(block));
}

void ClientStream::SendContext(Link& link) {
  if (context_rest_->Send(link, id_)) {
    context_rest_.reset();
  } else {
    body_bytes = context_rest_->next_bytes(link);
    link.AwaitWritable(*this);
  }
}

// Frames that the stream sends meanwhile wait behind the request.
void ClientStream::OnWritable(Link& link) {
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

absl::Status ClientStream::OnLandingNeeded(const LandingRequest& wanted) {
  return absl::InvalidArgumentError(
      fmt::format("a landing of {} bytes was asked for the stream {}, which takes none",
                  wanted.payload_bytes + wanted.message_bytes, method_.full_name));
}

absl::Status ClientStream::OnStreamFrame(const FrameHeader& frame, const char* body) {
  if (!sent_) return absl::InvalidArgumentError("a frame of a stream whose request has not left");
  if (frame.kind == FrameKind::kStreamWindow) return sender_.OnWindow(frame);
  if (frame.kind == FrameKind::kStreamMessage) {
    if (frame.outcome == kBesideMessages) [[unlikely]]
      return OnBeside(frame, body);
    return receiver_.OnMessage(frame, body);
  }
  return absl::InvalidArgumentError("a server sent the end of a client's messages");
}

absl::Status ClientStream::OnBeside(const FrameHeader& frame, const char* body) {
  if (failure_ == nullptr) {
    failure_ = std::make_unique<BesideReceiver>(session_->streams().share(), kMaxFailureBytes);
  }
  return failure_->Add(frame, body);
}

absl::Status ClientStream::SetFailure(const FrameHeader& frame, const char* body, uint32_t bytes) {
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

absl::Status ClientStream::OnResponse(const FrameHeader& frame, const char* body) {
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

void ClientStream::OnLinkDown(const absl::Status& reason) {
  status_ = WithOutcome(reason, sent_ ? Outcome::kMaybeExecuted : Outcome::kNotExecuted);
  End();
}

void ClientStream::OnTimer() { GiveUp(session_->DeadlinePassed(method_)); }

void ClientStream::OnReceiveFailed(const absl::Status& status) {
  if (stage_ == Stage::kActive) {
    GiveUp(status);
  } else if (status_.ok()) {
    // The response has come before the message was read.
    status_ = WithOutcome(status, Outcome::kExecuted);
  }
}

void ClientStream::GiveUp(absl::Status status) {
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

void ClientStream::GiveUpFor(absl::StatusCode reason) {
  const bool is_late = reason == absl::StatusCode::kDeadlineExceeded && stage_ == Stage::kActive;
  GiveUp(is_late ? session_->DeadlinePassed(method_) : CancelStatus(reason));
}

void ClientStream::Abandon() {
  info_ = nullptr;
  if (interception_ != nullptr) interception_->Abandon();
  GiveUp(CancelStatus(absl::StatusCode::kCancelled));
}

void ClientStream::End() {
  const bool registered = stage_ == Stage::kActive;
  stage_ = Stage::kEnded;
  connects_.Request();
  SendWaiter::Unlink();
  context_rest_.reset();
  failure_.reset();
  if (registered && deadline_.is_set()) scheduler_->StopTimer(*this);
  if (scheduler_ == nullptr) {
    BeginInfo();
  } else if (info_ != nullptr) {
    info_->elapsed = scheduler_->now() - started_;
  }
  if (MethodCounts* const counts = std::exchange(counts_, nullptr)) {
    counts->EndNow(began_, status_.code(), OutcomeOf(status_));
  }
  if (!receiver_.ended()) {
    status_.ok() ? (void)receiver_.End() : receiver_.Fail(status_);
  }
  sender_.Close(status_.ok() ? absl::FailedPreconditionError(fmt::format(
                                   "the server has ended the stream of {}: Finish() says how",
                                   method_.full_name))
                             : status_);
  if (registered) std::exchange(session_, nullptr)->Release(id_);
  if (finisher_ != nullptr) std::exchange(finisher_, nullptr)->Resume();
}

Task<absl::Status> ClientStream::Ended() {
  absl::Status result;
  if (interception_ != nullptr) {
    result = co_await interception_->Finish();
  } else {
    co_await StreamEndAwaiter(*this);
    result = status_;
  }
  // The handler may end well before it hears that a message is missing.
  const absl::Status& lost = sender_.lost();
  if (result.ok() && status_.ok() && !lost.ok()) co_return WithOutcome(lost, Outcome::kExecuted);
  co_return result;
}

absl::Status ClientStream::GiveReply(const absl::StatusOr<bool>& read, MessageLite& reply) {
  if (reply_apart_) {
    NoteReply(reply.ByteSizeLong());
    return read.ok() && *read ? absl::OkStatus() : Unparsed(reply);
  }
  if (interception_ == nullptr) return ParseReply(reply);
  reply.Clear();
  reply.CheckTypeAndMergeFrom(interception_->reply());
  return absl::OkStatus();
}

absl::Status ClientStream::ParseReply(MessageLite& reply) const {
  return reply.ParseFromString(reply_) ? absl::OkStatus() : Unparsed(reply);
}

absl::Status ClientStream::Unparsed(const MessageLite& reply) const {
  return WithOutcome(absl::InternalError(fmt::format("the reply of {} does not parse as {}",
                                                     method_.full_name, TypeNameOf(reply))),
                     Outcome::kExecuted);
}

void ClientStream::NoteReply(size_t bytes) {
  if (info_ != nullptr) info_->reply_bytes = static_cast<uint32_t>(bytes);
}

class InterceptedStream::Chain final : public ClientChain {
 public:
  Chain(InterceptedStream& interception, ClientCallView& view)
      : ClientChain(interception.stream_.channel().options().interceptors, view),
        interception_(interception) {}

 private:
  Task<absl::Status> Last() override {
    ClientStream& stream = interception_.stream_;
    const TaskContext task = co_await CurrentContext();
    CallContext context = ClientChain::Start();
    // A cancelled Finish() may have ended it.
    if (!stream.ended()) stream.SetContext(std::move(context));
    if (!IsCancelled(task.cancel)) co_await stream.BeginOnceConnected();
    interception_.begun_.Set();
    co_await StreamEndAwaiter(stream);
    absl::Status status = stream.status();
    if (status.ok() && stream.method().streams == Streams::kClient && !stream.reply_apart()) {
      status = stream.ParseReply(*interception_.messages_.reply);
    }
    interception_.ended_well_ = status.ok();
    co_return status;
  }

  InterceptedStream& interception_;
};

InterceptedStream::InterceptedStream(ClientStream& stream, StreamMessages messages)
    : stream_(stream), messages_(std::move(messages)) {}

void InterceptedStream::Start(Scheduler& scheduler, CallContext context,
                              const TraceContext* trace) {
  if (trace != nullptr) scope_.set_trace(*trace);
  const ClientChannel& channel = stream_.channel();
  view_.emplace(stream_.method(), channel.target(), *messages_.request, *messages_.reply,
                stream_.deadline(), stream_.InfoOr(own_info_).trailing_metadata);
  view_->metadata = std::move(context.metadata);
  view_->trace = std::move(context.trace);
  view_->priority = context.priority;
  view_->request_id = context.request_id;
  if (decltype(hooks_)::value_type::AreWanted(channel.options().interceptors)) {
    hooks_.emplace(channel.options().interceptors, *view_, Streams::kClient, stream_.sender(),
                   stream_.receiver());
  }
  task_ = Run();
  task_.Start(scheduler, &scope_, this);
}

Task<absl::Status> InterceptedStream::Run() {
  Chain chain(*this, *view_);
  absl::Status status = co_await WithDeadline(chain.Run(), stream_.deadline().when());
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
                                                     stream_.method().full_name, what)),
                     stream_.begun() ? Outcome::kMaybeExecuted : Outcome::kNotExecuted);
}

void InterceptedStream::End(absl::Status status) {
  if (done_.is_set()) return;
  status_ = std::move(status);
  // They may end without the stream, or before it.
  if (!stream_.begun()) {
    stream_.EndUnbegun(status_);
  } else {
    stream_.GiveUp(CancelStatus(absl::StatusCode::kCancelled));
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
    stream_.GiveUpFor(waited.code());
    co_await AwaitDone().In(nullptr);
  }
  // The last message may have turned out not to parse after the response came.
  co_return status_.ok() && ended_well_ ? stream_.status() : status_;
}

void InterceptedStream::Abandon() {
  task_ = {};
  stream_.GiveUp(CancelStatus(absl::StatusCode::kCancelled));
  End(stream_.status());
}

StreamHandle::StreamHandle(ClientChannel& channel, const MethodDescriptor& method,
                           const MessageLite& request, const MessageLite& reply,
                           CallOptions&& options)
    : stream_(new ClientStream(channel, method, request, reply, options)) {}

void StreamHandle::Deleter::operator()(ClientStream* stream) const {
  stream->Abandon();
  stream->Release();
}

StreamRef::StreamRef(ClientStream& stream) : stream_(&stream) { stream.Hold(); }

StreamRef::~StreamRef() {
  if (stream_ != nullptr) stream_->Release();
}

StreamReceiver& ReceiverOf(ClientStream& stream) { return stream.receiver(); }
StreamSender& SenderOf(ClientStream& stream) { return stream.sender(); }

bool HasBegun(ClientStream& stream, const PromiseBase& caller) {
  if (stream.begun()) [[likely]]
    return true;
  return IsCancelled(caller.cancel) || stream.BeginIn(caller.cancel);
}

Task<bool> ClientRead::ReadLater(StreamRef stream, MessageLite& into) {
  co_await stream->Begin();
  const absl::StatusOr<bool> read = co_await StreamRead(stream->receiver(), into);
  co_return read.ok() && *read;
}

namespace {

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
  co_await write.stream()->Begin();
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
  co_await stream->Begin();
  const absl::StatusOr<bool> read = co_await ReadWithPayload(stream->receiver(), into, sink);
  co_return read.ok() && *read;
}

Task<absl::StatusOr<bool>> TryRead(StreamRef stream, MessageLite& into, PayloadSink sink) {
  co_await stream->Begin();
  if (sink.payload == nullptr) co_return co_await StreamRead(stream->receiver(), into);
  co_return co_await ReadWithPayload(stream->receiver(), into, sink);
}

Task<absl::Status> EndWrites(StreamRef stream) {
  co_await stream->Begin();
  if (stream->ended() && !stream->status().ok()) co_return stream->status();
  if (!stream->begun()) co_return (co_await CurrentContext()).cancel->status();
  stream->EndWrites();
  co_return absl::OkStatus();
}

namespace {

// Ends the writes, unless a message is missing among them: then the server must not take them for
// whole.
void FinishWrites(ClientStream& stream) {
  const absl::Status& lost = stream.sender().lost();
  lost.ok() ? stream.EndWrites() : stream.GiveUp(lost);
}

}  // namespace

Task<absl::Status> FinishStream(StreamRef stream) {
  co_await stream->Begin();
  if (stream->method().streams == Streams::kBoth) FinishWrites(*stream);
  stream->receiver().Discard();
  co_return co_await stream->Ended();
}

Task<absl::Status> FinishWithReply(StreamRef stream, MessageLite& reply) {
  co_await stream->Begin();
  FinishWrites(*stream);
  // A reply that is larger than a frame comes as a message, for whose parts this makes room.
  const absl::StatusOr<bool> read = co_await StreamRead(stream->receiver(), reply);
  VERBENA_CO_RETURN_IF_ERROR(co_await stream->Ended());
  co_return stream->GiveReply(read, reply);
}

}  // namespace verbena::internal
