#include "verbena/rpc/client/stream_call.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/rpc/call/protobuf.h"
#include "verbena/rpc/call/sizes.h"
#include "verbena/rpc/call/status_codec.h"
#include "verbena/rpc/client/call.h"
#include "verbena/rpc/client/full_call.h"
#include "verbena/rpc/client/landings.h"
#include "verbena/rpc/client/session.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/context.h"
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

}  // namespace verbena::internal
