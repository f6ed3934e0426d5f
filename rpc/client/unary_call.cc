#include "verbena/rpc/call.h"
#include "verbena/rpc/detail/message.h"

#include <algorithm>
#include <memory>
#include <new>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/client/attempts.h"
#include "verbena/rpc/client/call.h"
#include "verbena/rpc/client/channel.h"
#include "verbena/rpc/client/connection.h"
#include "verbena/rpc/client/dedupe.h"
#include "verbena/rpc/client/full_call.h"
#include "verbena/rpc/dedupe.h"
#include "verbena/rpc/policy.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/context.h"

namespace verbena::internal {

// CallRoute says where a call's attempts go: over `connection`; if that is null, over one that the
// channel finds; with `policy`, over one connection after another, or over several at once.
struct CallRoute {
  Connection* connection = nullptr;
  const MethodConfig* policy = nullptr;
};

namespace {

// The context block of a call in `scope`, which may be null. Takes the metadata of `options`.
CallContext ContextOf(CallOptions& options, const CancelScope* scope) {
  CallContext context{.priority = options.priority,
                      .request_id = options.request_id,
                      .metadata = std::move(options.metadata)};
  if (scope != nullptr && scope->trace() != nullptr) context.trace = scope->trace()->Child();
  return context;
}

// The interceptors of a channel around an attempt of a unary call.
class UnaryChain final : public ClientChain {
 public:
  // All outlive the chain.
  UnaryChain(const ChannelOptions& channel, Connection& connection, ClientCallView& view,
             CallSpec& spec)
      : ClientChain(channel.interceptors, view), connection_(connection), spec_(spec) {}

 private:
  Task<absl::Status> Last() override {
    spec_.context = Start();
    co_return co_await FullCall(ConnectionUse(connection_), std::move(spec_));
  }

  Connection& connection_;
  CallSpec& spec_;
};

// One attempt over a connection, with the channel's interceptors around it.
Task<absl::Status> InterceptedCall(const ClientChannel& channel, ConnectionUse use, CallSpec spec) {
  Connection& connection = *use;
  const Executor& executor = connection.shard().executor();
  CallInfo* const info = spec.options.info;
  const TimePoint began = info != nullptr ? executor.now() : TimePoint{};
  // Interceptors read trailing metadata even if the caller does not.
  CallInfo own;
  if (info == nullptr) spec.options.info = &own;
  const TimePoint deadline = spec.options.deadline.when();
  ClientCallView view(spec.method, channel.target(), spec.request, spec.reply,
                      spec.options.deadline, spec.options.info->trailing_metadata);
  view.metadata = std::move(spec.context.metadata);
  view.trace = std::move(spec.context.trace);
  view.priority = spec.context.priority;
  view.request_id = spec.context.request_id;
  UnaryChain chain(channel.options(), connection, view, spec);
  // Interceptors may wait before the call itself begins.
  absl::Status status = co_await WithDeadline(chain.Run(), deadline);
  if (info != nullptr) {
    info->elapsed = executor.now() - began;
    info->request_bytes = static_cast<uint32_t>(spec.request.ByteSizeLong());
  }
  if (chain.started()) co_return status;
  // An interceptor answered.
  ReturnUnsent(spec.options, spec.received);
  co_return chain.Marked(std::move(status));
}

// `spec` is taken. Moving one costs a hundred instructions, so functions hand it on by reference.
VERBENA_CORO_WRAPPER Task<absl::Status> AttemptOver(const ClientChannel& channel,
                                                    Connection& connection, CallSpec&& spec) {
  return channel.options().interceptors.empty()
             ? FullCall(ConnectionUse(connection), std::move(spec))
             : InterceptedCall(channel, ConnectionUse(connection), std::move(spec));
}

// One attempt over a connection that the channel finds, once a server is ready; it joins `tried`,
// which may be null.
Task<absl::Status> RoutedCall(ClientChannel& channel, CallSpec spec, TriedServers* tried) {
  CallInfo* const info = spec.options.info;
  const Executor& executor = channel.ShardHere()->executor();
  const TimePoint began = executor.now();
  const absl::StatusOr<ConnectionUse> connection = co_await channel.Route(
      spec.options.route_key, spec.options.deadline, spec.options.wait_for_ready);
  absl::Status status;
  if (connection.ok()) {
    if (tried != nullptr) tried->Add(**connection);
    status = co_await AttemptOver(channel, **connection, std::move(spec));
  } else {
    if (info != nullptr) info->request_bytes = static_cast<uint32_t>(spec.request.ByteSizeLong());
    status = FailUnsent(connection.status(), spec.options, spec.received);
  }
  if (info != nullptr) info->elapsed = executor.now() - began;
  co_return status;
}

// A call in a frame, once more: its link was lost before the request had left, `took` after the
// call began.
Task<absl::Status> RepeatedCall(ClientChannel& channel, CallSpec spec, Duration took) {
  CallInfo* const info = spec.options.info;
  absl::Status status = co_await RoutedCall(channel, std::move(spec), nullptr);
  if (info != nullptr) info->elapsed += took;
  co_return status;
}

// One attempt over `connection`; if it is null, over one that the channel finds.
VERBENA_CORO_WRAPPER Task<absl::Status> OneAttempt(ClientChannel& channel, Connection* connection,
                                                   CallSpec&& spec) {
  return connection == nullptr ? RoutedCall(channel, std::move(spec), nullptr)
                               : AttemptOver(channel, *connection, std::move(spec));
}

class ChannelAttempts final : public AttemptMaker {
 public:
  // `channel` outlives it.
  explicit ChannelAttempts(ClientChannel& channel) : channel_(channel) {}

  Task<absl::Status> Attempt(CallSpec spec, TriedServers& tried) override {
    const CancelScope* scope = (co_await CurrentContext()).cancel;
    if (spec.options.inherit != Inherit::kAll) scope = nullptr;
    spec.context = ContextOf(spec.options, scope);
    // `tried` must know the server that may have run it. The RetryPolicy makes the call again.
    if (spec.method.dedupe) spec.channel = nullptr;
    Connection* const ready = channel_.Apart(tried, spec.options.route_key);
    const bool is_usable = ready != nullptr && ready->usable_session() != nullptr;
    if (!is_usable && tried.home() == nullptr) {
      co_return co_await RoutedCall(channel_, std::move(spec), &tried);
    }
    // Another server would not know whether the call has run.
    if (tried.home() != nullptr) spec.channel = nullptr;
    tried.Add(*ready);
    co_return co_await AttemptOver(channel_, *ready, std::move(spec));
  }

 private:
  ClientChannel& channel_;
};

VERBENA_CORO_WRAPPER Task<absl::Status> AttemptsOf(ClientChannel& channel, CallRoute route,
                                                   CallSpec&& spec, ChannelAttempts& attempts) {
  if (route.policy == nullptr) return OneAttempt(channel, route.connection, std::move(spec));
  RetryAccount& account = channel.policies()->account(channel.ShardHere()->index());
  return route.policy->retry.has_value()
             ? RetriedCall(attempts, account, *route.policy->retry, std::move(spec))
             : HedgedCall(attempts, account, *route.policy->hedging, std::move(spec));
}

// A call that has a name, several attempts, or a scope of its own. `own_token` is its name, if the
// caller gave none. `use` keeps the route's connection until the call has begun.
Task<absl::Status> WholeCall(ClientChannel& channel, CallRoute route, ConnectionUse use,
                             CallSpec spec,
                             [[maybe_unused]] std::unique_ptr<DedupeToken> own_token) {
  const DedupeToken* const token = spec.options.dedupe;
  const bool inherits = spec.options.inherit == Inherit::kAll;
  ChannelAttempts maker(channel);
  Task<absl::Status> attempts = AttemptsOf(channel, route, std::move(spec), maker);
  use = {};
  // Otherwise no cancellation of the caller's reaches it.
  absl::Status status =
      inherits ? co_await std::move(attempts) : co_await std::move(attempts).In(nullptr);
  co_return token == nullptr ? std::move(status) : StatusOfCall(*token, std::move(status));
}

Task<absl::Status> Failed(absl::Status status) { co_return status; }

// Whether a call has a context block of its own, or takes over less than all.
bool HasContext(const CallOptions& options) {
  return !options.metadata.untouched() || options.priority != Priority::kNormal ||
         options.inherit != Inherit::kAll || options.request_id.has_value() ||
         options.dedupe != nullptr;
}

// Prepares the call's token. Without one in `options` the call gets its own, in `own`.
absl::Status TakeToken(ClientChannel& channel, const Shard& shard, const MethodDescriptor& method,
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
    owner_.task_ = FinishInLanding(*this);
    owner_.task_.RunLaterFor(TakeCaller());
  }
  void OnLostUnsent() override {
    CallSpec spec{.method = method(),
                  .request = request(),
                  .reply = reply(),
                  .options = {.deadline = deadline(),
                              .info = info(),
                              .route_key = owner_.route_key_,
                              .wait_for_ready = owner_.wait_for_ready_}};
    const Duration took = info() != nullptr ? info()->elapsed : Duration::zero();
    owner_.task_ = RepeatedCall(*owner_.channel_, std::move(spec), took);
    owner_.task_.RunLaterFor(TakeCaller());
  }

  InPlaceCall& owner_;
};

inline InPlaceCall::Stage InPlaceCall::StageOf(const ClientChannel& channel,
                                               const MethodDescriptor& method, bool has_parts) {
  const CallPolicies* policies = channel.policies();
  if (policies != nullptr && policies->Of(method) != nullptr) [[unlikely]]
    return Stage::kNewWithPolicy;
  const bool has_more = has_parts | method.dedupe;  // one branch for both
  const bool is_plain = !has_more && channel.options().interceptors.empty();
  return is_plain ? Stage::kNew : Stage::kNewWithOptions;
}

InPlaceCall::InPlaceCall(ClientChannel& channel, const MethodDescriptor& method,
                         CallOptions&& options)
    : channel_(&channel),
      method_(&method),
      deadline_(options.deadline.is_given() ? options.deadline
                                            : channel.options().default_deadline),
      info_(options.info),
      route_key_(options.route_key),
      stage_(StageOf(channel, method, HasPayloads(method, options) || HasContext(options))),
      wait_for_ready_(options.wait_for_ready) {
  static_assert(sizeof(Eager) <= kStorageBytes && alignof(Eager) <= alignof(std::max_align_t));
  static_assert(sizeof(CallOptions) <= kStorageBytes);
  if (stage_ != Stage::kNew) new (storage_) CallOptions(std::move(options));
}

InPlaceCall::InPlaceCall(ClientChannel& channel, const MethodDescriptor& method)
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
  if (stage_ == Stage::kNewWithPolicy) [[unlikely]]
    return BeginWithPolicy(caller, request, reply, payload);
  Connection* connection = channel_->Here(route_key_);
  const bool traced = caller.cancel != nullptr && caller.cancel->trace() != nullptr;
  if (stage_ != Stage::kNew || connection == nullptr || traced) [[unlikely]] {
    return BeginFull({.connection = connection}, caller, request, reply, payload);
  }
  const Executor& executor = connection->shard().executor();
  const Deadline deadline = EarlierOf(deadline_.At(executor), caller.cancel);
  ClientSession* session = connection->usable_session();
  const size_t request_bytes = request.ByteSizeLong();
  if (session == nullptr || request_bytes > session->max_body_bytes()) [[unlikely]] {
    return BeginFull({.connection = connection}, caller, request, reply, payload);
  }
  stage_ = Stage::kEager;
  Eager* call = new (storage_) Eager(*this, *session, connection->shard().executor(), *method_,
                                     request, reply, deadline, info_, request_bytes);
  return call->AwaitInFrame(caller) ? std::noop_coroutine() : caller.handle;
}

std::coroutine_handle<> InPlaceCall::BeginWithPolicy(PromiseBase& caller,
                                                     const MessageLite& request, MessageLite& reply,
                                                     PayloadSink payload) {
  const MethodConfig& policy = *channel_->policies()->Of(*method_);
  const Shard* shard = channel_->ShardHere();
  wait_for_ready_ = wait_for_ready_ || policy.wait_for_ready;
  if (shard != nullptr && policy.timeout > Duration::zero()) {
    const Executor& executor = shard->executor();
    deadline_ = std::min(deadline_.At(executor), SaturatingAdd(executor.now(), policy.timeout));
  }
  const bool has_attempts =
      policy.retry.has_value() || (policy.hedging.has_value() && MayBeHedged(*method_, options()));
  CallRoute route;
  if (has_attempts) {
    route.policy = &policy;
  } else {
    route.connection = channel_->Here(route_key_);
  }
  return BeginFull(route, caller, request, reply, payload);
}

std::coroutine_handle<> InPlaceCall::BeginFull(CallRoute route, PromiseBase& caller,
                                               const MessageLite& request, MessageLite& reply,
                                               PayloadSink payload) {
  CallSpec spec{.method = *method_,
                .request = request,
                .reply = reply,
                .received = payload,
                .options = TakeOptions(),
                .max_metadata_bytes = channel_->options().max_metadata_bytes,
                .channel = channel_};
  CallOptions& options = spec.options;
  const Shard* shard = channel_->ShardHere();
  absl::Status refusal = shard == nullptr ? NotOnAnExecutor() : absl::OkStatus();
  std::unique_ptr<DedupeToken> own_token;
  if (refusal.ok() && (method_->dedupe || options.dedupe != nullptr)) {
    refusal = TakeToken(*channel_, *shard, *method_, options, own_token);
  }
  if (!refusal.ok()) {
    return BeginTask(Failed(FailUnsent(std::move(refusal), options, payload)), caller);
  }
  const bool inherits = options.inherit == Inherit::kAll;
  const CancelScope* scope = inherits ? caller.cancel : nullptr;
  options.deadline = EarlierOf(deadline_.At(shard->executor()), scope);
  // Each of several attempts has a context of its own.
  if (route.policy == nullptr) spec.context = ContextOf(options, scope);
  if (route.connection != nullptr && route.connection->usable_session() == nullptr &&
      (wait_for_ready_ || channel_->chooses())) {
    route.connection = nullptr;
  }
  if (route.policy != nullptr || options.dedupe != nullptr || !inherits) {
    ConnectionUse use;
    if (route.connection != nullptr) use = ConnectionUse(*route.connection);
    return BeginTask(
        WholeCall(*channel_, route, std::move(use), std::move(spec), std::move(own_token)), caller);
  }
  return BeginTask(OneAttempt(*channel_, route.connection, std::move(spec)), caller);
}

CallOptions InPlaceCall::TakeOptions() {
  CallOptions taken;
  if (stage_ != Stage::kNew) {
    taken = std::move(options());
    options().~CallOptions();
  }
  stage_ = Stage::kMovedFrom;
  taken.info = info_;
  taken.route_key = route_key_;
  taken.wait_for_ready = wait_for_ready_;
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
