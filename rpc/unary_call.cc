#include "verbena/rpc/unary_call.h"

#include <algorithm>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/client/attempts.h"
#include "verbena/rpc/client/bulk.h"
#include "verbena/rpc/client/call.h"
#include "verbena/rpc/client/connection.h"
#include "verbena/rpc/client/dedupe.h"
#include "verbena/rpc/client/full_call.h"
#include "verbena/rpc/dedupe.h"
#include "verbena/rpc/outcome.h"
#include "verbena/rpc/service_config.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/context.h"

namespace verbena::internal {
namespace {

using google::protobuf::MessageLite;

// Keeps CallOptions from applying the channel's default: the call has begun already.
Deadline Given(Deadline deadline) { return deadline.is_set() ? deadline : Deadline::None(); }

// The options that decide where a call goes.
struct RouteOf {
  std::optional<uint64_t> key;
  bool wait_for_ready = false;
};

// A call in frames that found no usable link.
Task<absl::Status> CallOnceConnected(const Executor& executor, Channel& channel,
                                     const MethodDescriptor& method, const MessageLite& request,
                                     MessageLite& reply, Deadline deadline, CallInfo* info,
                                     RouteOf route) {
  const TimePoint began = executor.now();
  // The call chooses anew, and finds a server that is ready.
  absl::Status status =
      (co_await channel.Route(route.key, deadline, route.wait_for_ready)).status();
  if (status.ok()) {
    status = co_await UnaryCall<const MessageLite&, MessageLite&>(
        channel, method, request, reply,
        {.deadline = Given(deadline),
         .info = info,
         .route_key = route.key,
         .wait_for_ready = route.wait_for_ready});
  } else if (info != nullptr) {
    info->request_bytes = static_cast<uint32_t>(request.ByteSizeLong());
  }
  if (info != nullptr) info->elapsed = executor.now() - began;
  co_return status;
}

// A call over `connection` that has options, a context, or interceptors.
VERBENA_CORO_WRAPPER Task<absl::Status> CallWithOptions(Connection& connection,
                                                        const Channel& channel,
                                                        const MethodDescriptor& method,
                                                        const MessageLite& request,
                                                        MessageLite& reply, PayloadSink payload,
                                                        CallOptions options, CallContext context) {
  const ChannelOptions& of_channel = channel.options();
  if (!of_channel.interceptors.empty()) {
    return InterceptedCall(
        {channel.target(), of_channel.interceptors, of_channel.max_metadata_bytes}, connection,
        method, request, reply, payload, std::move(options), std::move(context));
  }
  return ContextCall(connection, method, request, reply, payload, std::move(options),
                     std::move(context), of_channel.max_metadata_bytes);
}

// The same, before a usable link is found.
Task<absl::Status> CallWithOptionsOnceConnected(const Executor& executor, Channel& channel,
                                                const MethodDescriptor& method,
                                                const MessageLite& request, MessageLite& reply,
                                                PayloadSink payload, CallOptions options,
                                                CallContext context, RouteOf route,
                                                TriedServers* tried = nullptr) {
  CallInfo* const info = options.info;
  const TimePoint began = executor.now();
  const absl::StatusOr<ConnectionUse> connection =
      co_await channel.Route(route.key, options.deadline, route.wait_for_ready);
  absl::Status status;
  if (connection.ok()) {
    if (tried != nullptr) tried->Add(**connection);
    status = co_await CallWithOptions(**connection, channel, method, request, reply, payload,
                                      std::move(options), std::move(context));
  } else {
    status = FailUnsent(connection.status(), options, payload);
    if (info != nullptr) info->request_bytes = static_cast<uint32_t>(request.ByteSizeLong());
  }
  if (info != nullptr) info->elapsed = executor.now() - began;
  co_return status;
}

// The context block of a call in `scope`, which may be null. Takes the metadata of `options`.
CallContext ContextOf(CallOptions& options, const CancelScope* scope) {
  CallContext context{.priority = options.priority,
                      .request_id = options.request_id,
                      .metadata = std::move(options.metadata)};
  if (scope != nullptr && scope->trace() != nullptr) context.trace = scope->trace()->Child();
  return context;
}

// Attempts of a call on a channel. Interceptors run around each of them.
class ChannelAttempts final : public AttemptMaker {
 public:
  // All outlive it.
  ChannelAttempts(const Executor& executor, Channel& channel, const MethodDescriptor& method,
                  const MessageLite& request)
      : executor_(executor), channel_(channel), method_(method), request_(request) {}

  Task<absl::Status> Attempt(MessageLite& reply, PayloadSink received, CallOptions options,
                             TriedServers& tried) override {
    const CancelScope* scope = (co_await CurrentContext()).cancel;
    if (options.inherit != Inherit::kAll) scope = nullptr;
    CallContext context = ContextOf(options, scope);
    const RouteOf route{options.route_key, options.wait_for_ready};
    Connection* const ready = channel_.ConnectionApartFrom(tried, route.key);
    const bool is_usable = ready != nullptr && ready->usable_session() != nullptr;
    if (!is_usable && tried.home() == nullptr) {
      co_return co_await CallWithOptionsOnceConnected(executor_, channel_, method_, request_, reply,
                                                      received, std::move(options),
                                                      std::move(context), route, &tried);
    }
    tried.Add(*ready);
    co_return co_await CallWithOptions(*ready, channel_, method_, request_, reply, received,
                                       std::move(options), std::move(context));
  }

 private:
  const Executor& executor_;
  Channel& channel_;
  const MethodDescriptor& method_;
  const MessageLite& request_;
};

// A call of a method that has retries or hedging. `options.deadline` is a time, or none.
Task<absl::Status> CallWithPolicy(const Executor& executor, Channel& channel,
                                  const MethodDescriptor& method, const MessageLite& request,
                                  MessageLite& reply, PayloadSink payload, CallOptions options,
                                  const MethodConfig& policy, RetryAccount& account) {
  ChannelAttempts attempts(executor, channel, method, request);
  const RetryableCall call{attempts, method, account, reply, payload};
  if (policy.retry.has_value()) {
    co_return co_await RetriedCall(call, *policy.retry, std::move(options));
  }
  co_return co_await HedgedCall(call, *policy.hedging, std::move(options));
}

Task<absl::Status> Failed(absl::Status status) { co_return status; }

// Runs `call` where no cancellation reaches it.
Task<absl::Status> RunUninherited(Task<absl::Status> call) {
  co_return co_await std::move(call).In(nullptr);
}

// Whether a call has a context block of its own, or takes over less than all.
bool HasContext(const CallOptions& options) {
  return !options.metadata.untouched() || options.priority != Priority::kNormal ||
         options.inherit != Inherit::kAll || options.request_id.has_value() ||
         options.dedupe != nullptr;
}

// Prepares the call's token. Without one in `options` the call gets its own, in `own`.
absl::Status TakeToken(Channel& channel, const Shard& shard, const MethodDescriptor& method,
                       CallOptions& options, std::unique_ptr<DedupeToken>& own) {
  if (!method.dedupe) {
    return absl::InvalidArgumentError(
        fmt::format("{} is not deduplicated: leave CallOptions::dedupe unset, or declare option "
                    "(verbena.method) = {{ dedupe: true }} in its .proto",
                    method.full_name));
  }
  if (options.dedupe == nullptr) {
    own = std::make_unique<DedupeToken>();
    options.dedupe = own.get();
  }
  return DedupeAttempt::Bind(*options.dedupe, channel.DedupeClientOn(shard));
}

// The attempt of the call of `token`, which may be `own`, or several. The token outlives them.
Task<absl::Status> CallWithToken([[maybe_unused]] std::unique_ptr<DedupeToken> own,
                                 const DedupeToken& token, Task<absl::Status> attempts) {
  co_return StatusOfCall(token, co_await std::move(attempts));
}

// The earlier of the call's own deadline and that of the Task that makes it.
Deadline EarlierOf(TimePoint own, const CancelScope* scope) {
  if (scope == nullptr) return own;
  return std::min(own, scope->deadline());
}

}  // namespace

class InPlaceCall::Eager final : public ClientCall {
 public:
  template <typename... Arguments>
  explicit Eager(InPlaceCall& owner, Arguments&&... arguments)
      : ClientCall(std::forward<Arguments>(arguments)...), owner_(owner) {}

 private:
  // Giving a landing takes several awaits: a coroutine of its own makes them.
  void OnLandingWanted() override {
    owner_.task_ = FinishInLanding(*this, reply(), deadline(), info());
    owner_.task_.RunLaterFor(TakeCaller());
  }

  InPlaceCall& owner_;
};

inline InPlaceCall::Stage InPlaceCall::StageOf(const Channel& channel,
                                               const MethodDescriptor& method, bool has_parts) {
  const CallPolicies* policies = channel.policies();
  if (policies != nullptr && policies->Of(method) != nullptr) [[unlikely]]
    return Stage::kNewWithPolicy;
  const bool has_more = has_parts | method.dedupe;  // one branch for both
  const bool is_plain = !has_more && channel.options().interceptors.empty();
  return is_plain ? Stage::kNew : Stage::kNewWithOptions;
}

InPlaceCall::InPlaceCall(Channel& channel, const MethodDescriptor& method, CallOptions&& options)
    : channel_(&channel),
      method_(&method),
      deadline_(options.deadline.is_given() ? options.deadline
                                            : channel.options().default_deadline),
      info_(options.info),
      route_key_(options.route_key),
      stage_(StageOf(channel, method, WantsBulk(method, options) || HasContext(options))),
      wait_for_ready_(options.wait_for_ready) {
  static_assert(sizeof(Eager) <= kStorageBytes && alignof(Eager) <= alignof(std::max_align_t));
  static_assert(sizeof(CallOptions) <= kStorageBytes);
  if (stage_ != Stage::kNew) new (storage_) CallOptions(std::move(options));
}

InPlaceCall::InPlaceCall(Channel& channel, const MethodDescriptor& method)
    : channel_(&channel),
      method_(&method),
      deadline_(channel.options().default_deadline),
      info_(nullptr),
      stage_(StageOf(channel, method, method.payloads != Payloads::kNone)),
      wait_for_ready_(false) {
  if (stage_ != Stage::kNew) new (storage_) CallOptions();
}

InPlaceCall::InPlaceCall(InPlaceCall&& other) noexcept
    : channel_(other.channel_),
      method_(other.method_),
      deadline_(other.deadline_),
      info_(other.info_),
      route_key_(other.route_key_),
      stage_(other.stage_),
      wait_for_ready_(other.wait_for_ready_) {
  VERBENA_CHECK(is_new()) << method_->full_name
                          << ": a call was moved that had begun, or was moved from";
  if (stage_ != Stage::kNew) new (storage_) CallOptions(other.TakeOptions());
  other.stage_ = Stage::kMovedFrom;
}

InPlaceCall::~InPlaceCall() {
  if (stage_ == Stage::kEager) {
    // First, since it refers to the call.
    task_ = {};
    eager().~Eager();
  } else if (is_new() && stage_ != Stage::kNew) {
    options().~CallOptions();
  }
}

std::coroutine_handle<> InPlaceCall::Begin(PromiseBase& caller, const MessageLite& request,
                                           MessageLite& reply, PayloadSink payload) {
  VERBENA_CHECK(is_new()) << method_->full_name
                          << ": a call was awaited twice, or after it was moved from";
  if (info_ != nullptr) *info_ = {};
  if (stage_ != Stage::kNew) [[unlikely]] {
    if (stage_ == Stage::kNewWithPolicy) return BeginWithPolicy(caller, request, reply, payload);
    return BeginWithOptions(channel_->ConnectionHere(route_key_), caller, request, reply, payload);
  }
  Connection* connection = channel_->ConnectionHere(route_key_);
  const bool traced = caller.cancel != nullptr && caller.cancel->trace() != nullptr;
  if (connection == nullptr || traced) [[unlikely]] {
    return BeginWithOptions(connection, caller, request, reply, payload);
  }
  const Executor& executor = connection->shard().executor();
  const Deadline deadline = EarlierOf(deadline_.At(executor), caller.cancel);
  ClientSession* session = connection->usable_session();
  if (session == nullptr) [[unlikely]] {
    return BeginTask(CallOnceConnected(executor, *channel_, *method_, request, reply, deadline,
                                       info_, {route_key_, wait_for_ready_}),
                     caller);
  }
  const size_t request_bytes = request.ByteSizeLong();
  if (request_bytes > session->max_body_bytes()) [[unlikely]] {
    return BeginTask(
        BulkCall(*connection, *method_, request, reply, {},
                 {.deadline = deadline, .info = info_, .wait_for_ready = wait_for_ready_}),
        caller);
  }
  stage_ = Stage::kEager;
  Eager* call = new (storage_) Eager(*this, *session, connection->shard().executor(), *method_,
                                     request, reply, deadline, info_, request_bytes);
  return call->AwaitInFrame(caller) ? std::noop_coroutine() : caller.handle;
}

std::coroutine_handle<> InPlaceCall::BeginWithPolicy(PromiseBase& caller,
                                                     const MessageLite& request, MessageLite& reply,
                                                     PayloadSink payload) {
  CallPolicies& policies = *channel_->policies();
  const MethodConfig& policy = *policies.Of(*method_);
  const Shard* shard = channel_->ShardHere();
  const bool has_attempts =
      policy.retry.has_value() || (policy.hedging.has_value() && MayBeHedged(*method_, options()));
  wait_for_ready_ = wait_for_ready_ || policy.wait_for_ready;
  if (shard != nullptr && policy.timeout > Duration::zero()) {
    const Executor& executor = shard->executor();
    deadline_ = std::min(deadline_.At(executor), SaturatingAdd(executor.now(), policy.timeout));
  }
  if (shard == nullptr || !has_attempts) {
    stage_ = Stage::kNewWithOptions;
    return BeginWithOptions(channel_->ConnectionHere(route_key_), caller, request, reply, payload);
  }
  CallOptions options = TakeOptions();
  const bool inherits = options.inherit == Inherit::kAll;
  options.deadline = EarlierOf(deadline_.At(shard->executor()), inherits ? caller.cancel : nullptr);
  options.wait_for_ready = wait_for_ready_;
  std::unique_ptr<DedupeToken> own_token;
  if (method_->dedupe || options.dedupe != nullptr) {
    absl::Status taken = TakeToken(*channel_, *shard, *method_, options, own_token);
    if (!taken.ok()) {
      return BeginTask(Failed(FailUnsent(std::move(taken), options, payload)), caller);
    }
  }
  const DedupeToken* const token = options.dedupe;
  Task<absl::Status> call =
      CallWithPolicy(shard->executor(), *channel_, *method_, request, reply, payload,
                     std::move(options), policy, policies.account(shard->index()));
  if (token != nullptr) call = CallWithToken(std::move(own_token), *token, std::move(call));
  return BeginTask(inherits ? std::move(call) : RunUninherited(std::move(call)), caller);
}

std::coroutine_handle<> InPlaceCall::BeginWithOptions(Connection* connection, PromiseBase& caller,
                                                      const MessageLite& request,
                                                      MessageLite& reply, PayloadSink payload) {
  CallOptions options;
  if (stage_ == Stage::kNewWithOptions) {
    options = TakeOptions();
  } else {
    options.info = info_;
  }
  options.wait_for_ready = wait_for_ready_;
  const Shard* shard = connection != nullptr ? &connection->shard() : channel_->ShardHere();
  if (shard == nullptr) {
    return BeginTask(Failed(FailUnsent(NotOnAnExecutor(), options, payload)), caller);
  }
  std::unique_ptr<DedupeToken> own_token;
  if (method_->dedupe || options.dedupe != nullptr) {
    absl::Status taken = TakeToken(*channel_, *shard, *method_, options, own_token);
    if (!taken.ok()) {
      return BeginTask(Failed(FailUnsent(std::move(taken), options, payload)), caller);
    }
  }
  const DedupeToken* const token = options.dedupe;
  const Executor& executor = shard->executor();
  const bool inherits = options.inherit == Inherit::kAll;
  const CancelScope* scope = inherits ? caller.cancel : nullptr;
  options.deadline = EarlierOf(deadline_.At(executor), scope);
  CallContext context = ContextOf(options, scope);
  const bool waits = connection == nullptr || ((wait_for_ready_ || channel_->chooses()) &&
                                               connection->usable_session() == nullptr);
  const bool intercepted = !channel_->options().interceptors.empty();
  const bool has_context =
      !context.empty() || !context.metadata.untouched() || options.dedupe != nullptr;
  if (!waits && inherits && !intercepted && !has_context) {
    return BeginTask(BulkCall(*connection, *method_, request, reply, payload, std::move(options)),
                     caller);
  }
  Task<absl::Status> call =
      waits ? CallWithOptionsOnceConnected(executor, *channel_, *method_, request, reply, payload,
                                           std::move(options), std::move(context),
                                           {route_key_, wait_for_ready_})
            : CallWithOptions(*connection, *channel_, *method_, request, reply, payload,
                              std::move(options), std::move(context));
  if (token != nullptr) call = CallWithToken(std::move(own_token), *token, std::move(call));
  return BeginTask(inherits ? std::move(call) : RunUninherited(std::move(call)), caller);
}

CallOptions InPlaceCall::TakeOptions() {
  CallOptions taken = std::move(options());
  options().~CallOptions();
  stage_ = Stage::kMovedFrom;
  return taken;
}

std::coroutine_handle<> InPlaceCall::BeginTask(Task<absl::Status> task, PromiseBase& caller) {
  stage_ = Stage::kTask;
  task_ = std::move(task);
  return task_.RunFor(caller);
}

absl::Status InPlaceCall::TakeStatus() {
  if (task_) [[unlikely]]
    return task_.TakeResult();
  return eager().await_resume();
}

}  // namespace verbena::internal
