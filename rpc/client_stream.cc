#include "verbena/rpc/call/protobuf.h"
#include "verbena/rpc/stream.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "fmt/format.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/client/attempts.h"
#include "verbena/rpc/client/connection.h"
#include "verbena/rpc/client/full_call.h"
#include "verbena/rpc/client/stream_call.h"
#include "verbena/rpc/policy.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/sleep.h"

namespace verbena::internal {
namespace {

Deadline DeadlineOf(const Channel& channel, const CallOptions& options) {
  return options.deadline.is_given() ? options.deadline : channel.options().default_deadline;
}

// Retries and the like; nullptr if the method has none.
const MethodConfig* PolicyOf(const Channel& channel, const MethodDescriptor& method) {
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
  ChannelStream(Channel& channel, const MethodDescriptor& method, const MessageLite& request,
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
    Connection* connection = channel_.ConnectionHere(route_key_);
    return connection != nullptr && StreamCall::Begin(*connection);
  }
  Task<void> BeginOnceConnected() override;
  // The retries of a stream that found no link; none if its method has no RetryPolicy.
  std::optional<RetrySeries> Retries();

  Channel& channel_;
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

StreamHandle::StreamHandle(Channel& channel, const MethodDescriptor& method,
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
