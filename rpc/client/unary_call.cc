#include "verbena/rpc/call.h"
#include "verbena/rpc/detail/message.h"

#include <algorithm>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/client/attempt.h"
#include "verbena/rpc/client/attempts.h"
#include "verbena/rpc/client/channel.h"
#include "verbena/rpc/client/connection.h"
#include "verbena/rpc/client/dedupe.h"
#include "verbena/rpc/client/plain_call.h"
#include "verbena/rpc/client/policies.h"
#include "verbena/rpc/client/spec.h"
#include "verbena/rpc/dedupe.h"
#include "verbena/rpc/policy.h"
#include "verbena/rpc/shard/call_counts.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {

namespace {

// Attempts over the channels of their calls.
class ChannelAttempts final : public AttemptMaker {
 public:
  VERBENA_CORO_WRAPPER Task<absl::Status> Attempt(CallSpec spec) override {
    return AttemptApart(spec);
  }
};

VERBENA_CORO_WRAPPER Task<absl::Status> AttemptsOf(const MethodConfig& policy, CallSpec spec) {
  static constinit ChannelAttempts attempts;
  const ClientChannel& channel = *spec.channel;
  RetryAccount& account = channel.policies()->account(channel.ShardHere()->index());
  return policy.retry.has_value() ? RetriedCall(attempts, account, *policy.retry, spec)
                                  : HedgedCall(attempts, account, *policy.hedging, spec);
}

// A call that has a name, or a scope of its own. `own_token` is its name, if the caller gave none.
Task<absl::Status> WholeCall(const MethodConfig* policy, ConnectionUse use, CallSpec spec,
                             [[maybe_unused]] std::unique_ptr<DedupeToken> own_token) {
  const DedupeToken* const token = spec.options.dedupe;
  const bool inherits = spec.options.inherit == Inherit::kAll;
  Task<absl::Status> attempts =
      policy != nullptr ? AttemptsOf(*policy, spec) : Attempt(std::move(use), spec);
  // Otherwise no cancellation of the caller's reaches it.
  absl::Status status =
      inherits ? co_await std::move(attempts) : co_await std::move(attempts).In(nullptr);
  co_return token == nullptr ? std::move(status) : StatusOfCall(*token, std::move(status));
}

// The end of a call that never began.
Task<absl::Status> Failed(absl::Status status) {
  co_return WithOutcome(std::move(status), Outcome::kNotExecuted);
}

// Whether a call has a context block of its own, or takes over less than all.
bool HasContext(const CallOptions& options) {
  return !options.metadata.untouched() || options.priority != Priority::kNormal ||
         options.inherit != Inherit::kAll || options.request_id.has_value() ||
         options.dedupe != nullptr;
}

// Whether a call of `method` has more than messages, whatever its options are.
bool HasParts(const MethodDescriptor& method) {
  return (method.payloads != Payloads::kNone) | method.dedupe;
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
TimePoint EarlierOf(TimePoint own, const CancelScope* scope) {
  if (scope == nullptr) return own;
  return std::min(own, scope->deadline());
}

}  // namespace

struct InPlaceCall::Terms {
  Terms(CallOptions&& its_options, const MethodConfig* its_policy)
      : options(std::move(its_options)), policy(its_policy) {}

  CallOptions options;
  const MethodConfig* policy;          // null: the channel has none for the method
  std::optional<CallBuffers> buffers;  // once the call has begun
};

class InPlaceCall::Plain final : public PlainCall {
 public:
  template <typename... Arguments>
  explicit Plain(InPlaceCall& holder, Arguments&&... arguments)
      : PlainCall(std::forward<Arguments>(arguments)...), holder_(holder) {}
  ~Plain() override { AbandonUnended(); }

 private:
  void OnLandingWanted(const LandingRequest& wanted) override {
    GoOn(InLanding(*holder_.channel_, *this, wanted));
  }
  void OnLostUnsent() override { GoOn(SendAgain()); }
  void GoOn(Task<absl::Status> task) {
    holder_.task_ = std::move(task);
    holder_.task_.RunLaterFor(TakeCaller());
  }
  Task<absl::Status> SendAgain() {
    CallOptions options{.route_key = holder_.route_key(),
                        .wait_for_ready = holder_.wait_for_ready_};
    CallBuffers buffers(options, {});
    const CallSpec spec{.channel = holder_.channel_,
                        .method = method(),
                        .request = request(),
                        .reply = reply(),
                        .options = options,
                        .buffers = buffers,
                        .deadline = deadline(),
                        .info = info(),
                        .may_repeat = false};
    co_return co_await OverConnections(ConnectionUse(), spec);
  }

  InPlaceCall& holder_;
};

void InPlaceCall::KeepTerms(CallOptions&& options, bool has_parts) {
  static_assert(sizeof(Plain) <= kStorageBytes && alignof(Plain) <= alignof(std::max_align_t));
  static_assert(sizeof(Terms) <= kStorageBytes);
  static_assert(sizeof(InPlaceCall) <= 336);  // it lies in the frame of each caller
  const CallPolicies* policies = channel_->policies();
  const MethodConfig* policy = policies != nullptr ? policies->Of(*method_) : nullptr;
  if (!has_parts && policy == nullptr && channel_->options().interceptors.empty()) return;
  new (storage_) Terms(std::move(options), policy);
  stage_ = Stage::kNewWithTerms;
}

InPlaceCall::InPlaceCall(ClientChannel& channel, const MethodDescriptor& method,
                         CallOptions&& options)
    : channel_(&channel),
      method_(&method),
      deadline_(options.deadline.is_given() ? options.deadline
                                            : channel.options().default_deadline),
      info_(options.info),
      route_key_(options.route_key.value_or(0)),
      stage_(Stage::kNew),
      has_route_key_(options.route_key.has_value()),
      wait_for_ready_(options.wait_for_ready),
      timed_(TimedFor(channel.counts_calls(), options.info)) {
  const bool has_parts = HasParts(method) || HasPayloads(options) || HasContext(options);
  if (has_parts || !channel.plain()) KeepTerms(std::move(options), has_parts);
}

InPlaceCall::InPlaceCall(ClientChannel& channel, const MethodDescriptor& method)
    : channel_(&channel),
      method_(&method),
      deadline_(channel.options().default_deadline),
      info_(nullptr),
      stage_(Stage::kNew),
      has_route_key_(false),
      wait_for_ready_(false),
      timed_(TimedFor(channel.counts_calls(), nullptr)) {
  const bool has_parts = HasParts(method);
  if (has_parts | !channel.plain()) [[unlikely]]  // one branch for both
    KeepTerms({}, has_parts);
}

InPlaceCall::InPlaceCall(InPlaceCall&& other) noexcept
    : channel_(other.channel_),
      method_(other.method_),
      deadline_(other.deadline_),
      info_(other.info_),
      route_key_(other.route_key_),
      stage_(other.stage_),
      has_route_key_(other.has_route_key_),
      wait_for_ready_(other.wait_for_ready_),
      timed_(other.timed_) {
  VERBENA_CHECK(is_new()) << method_->full_name
                          << ": a call was moved that had begun, or was moved from";
  if (stage_ == Stage::kNewWithTerms) {
    new (storage_) Terms(std::move(other.terms().options), other.terms().policy);
    other.terms().~Terms();
  }
  other.stage_ = Stage::kMovedFrom;
}

InPlaceCall::~InPlaceCall() {
  if (stage_ == Stage::kPlainTaken) [[likely]] {
    plain().~Plain();
  } else if (stage_ != Stage::kNew) {
    DestroyRest();
  }
}

void InPlaceCall::DestroyRest() {
  const bool has_begun = stage_ == Stage::kPlain || stage_ == Stage::kTask;
  if (has_begun) CountAbandoned();
  task_ = {};  // it refers to the other two
  if (stage_ == Stage::kPlain) {
    plain().~Plain();
  } else if (stage_ == Stage::kNewWithTerms || stage_ == Stage::kTask) {
    terms().~Terms();
  }
}

std::coroutine_handle<> InPlaceCall::Begin(PromiseBase& caller, const MessageLite& request,
                                           MessageLite& reply, PayloadSink payload) {
  Shard* const shard = channel_->ShardHere();
  if (stage_ != Stage::kNew || shard == nullptr) [[unlikely]]
    return BeginOtherwise(shard, caller, request, reply, payload);
  if (timed_ != Timed::kNot) StartClock(*shard, request);
  Connection* connection = channel_->On(*shard, route_key());
  const bool traced = caller.cancel != nullptr && caller.cancel->trace() != nullptr;
  ClientSession* session = connection != nullptr ? connection->usable_session() : nullptr;
  if (session == nullptr || traced) [[unlikely]]
    return BeginTask(connection, caller, request, reply, payload);
  const size_t request_bytes = request.ByteSizeLong();
  if (request_bytes > session->link()->max_body_bytes()) [[unlikely]]
    return BeginTask(connection, caller, request, reply, payload);
  Executor& executor = connection->shard().executor();
  stage_ = Stage::kPlain;
  Plain* call =
      new (storage_) Plain(*this, session, executor, *method_, request, reply,
                           EarlierOf(deadline_.At(executor), caller.cancel), info_, request_bytes);
  return call->Begin(caller) ? std::noop_coroutine() : caller.handle;
}

std::coroutine_handle<> InPlaceCall::BeginOtherwise(Shard* shard, PromiseBase& caller,
                                                    const MessageLite& request, MessageLite& reply,
                                                    PayloadSink payload) {
  VERBENA_CHECK(is_new()) << method_->full_name
                          << ": a call was awaited twice, or after it was moved from";
  if (shard == nullptr) {
    StartNowhere(request);
  } else if (timed_ != Timed::kNot) {
    StartClock(*shard, request);
  }
  return BeginTask(nullptr, caller, request, reply, payload);
}

const MethodConfig* InPlaceCall::TakePolicy() {
  const MethodConfig* const policy = stage_ == Stage::kNew ? nullptr : terms().policy;
  if (policy == nullptr) return nullptr;
  wait_for_ready_ = wait_for_ready_ || policy->wait_for_ready;
  if (const Shard* shard = channel_->ShardHere();
      shard != nullptr && policy->timeout > Duration::zero()) {
    const Executor& executor = shard->executor();
    deadline_ = std::min(deadline_.At(executor), SaturatingAdd(executor.now(), policy->timeout));
  }
  const bool is_hedged = policy->hedging.has_value() && MayBeHedged(*method_, terms().options);
  return policy->retry.has_value() || is_hedged ? policy : nullptr;
}

std::coroutine_handle<> InPlaceCall::BeginTask(Connection* connection, PromiseBase& caller,
                                               const MessageLite& request, MessageLite& reply,
                                               PayloadSink payload) {
  const MethodConfig* const policy = TakePolicy();
  if (stage_ == Stage::kNew) {
    new (storage_) Terms({}, nullptr);
  } else if (policy == nullptr) {
    connection = channel_->Here(route_key());
  }
  stage_ = Stage::kTask;
  CallOptions& options = terms().options;
  options.route_key = route_key();
  options.wait_for_ready = wait_for_ready_;
  CallBuffers& buffers = terms().buffers.emplace(options, payload);
  const Shard* shard = channel_->ShardHere();
  if (shard == nullptr) return Run(Failed(NotOnAnExecutor()), caller);
  std::unique_ptr<DedupeToken> own_token;
  if (method_->dedupe || options.dedupe != nullptr) {
    absl::Status taken = TakeToken(*channel_, *shard, *method_, options, own_token);
    if (!taken.ok()) return Run(Failed(std::move(taken)), caller);
  }
  const bool inherits = options.inherit == Inherit::kAll;
  const CallSpec spec{
      .channel = channel_,
      .method = *method_,
      .request = request,
      .reply = reply,
      .options = options,
      .buffers = buffers,
      .deadline = EarlierOf(deadline_.At(shard->executor()), inherits ? caller.cancel : nullptr),
      .info = info_};
  ConnectionUse use;
  if (connection != nullptr) {
    const bool may_choose_later = wait_for_ready_ || channel_->chooses();
    if (connection->usable_session() != nullptr || !may_choose_later) {
      use = ConnectionUse(*connection);
    }
  }
  if (options.dedupe != nullptr || !inherits) {
    return Run(WholeCall(policy, std::move(use), spec, std::move(own_token)), caller);
  }
  return Run(policy != nullptr ? AttemptsOf(*policy, spec) : Attempt(std::move(use), spec), caller);
}

std::coroutine_handle<> InPlaceCall::Run(Task<absl::Status> task, PromiseBase& caller) {
  task_ = std::move(task);
  return task_.RunFor(caller);
}

inline void InPlaceCall::StartCount(Shard& shard) {
  counts_ = &shard.counts()->client.Of(*method_);
  counts_->begun.Add(1);
  began_ = shard.executor().ticks().Shared();
}

inline void InPlaceCall::StartClock(Shard& shard, const MessageLite& request) {
  if (timed_ == Timed::kCounted) [[likely]] {
    StartCount(shard);
  } else {
    StartInfo(shard, request);
  }
}

void InPlaceCall::StartNowhere(const MessageLite& request) {
  timed_ = TimedFor(/*counted=*/false, info_);
  if (info_ == nullptr) return;
  *info_ = {};
  info_->request_bytes = static_cast<uint32_t>(request.ByteSizeLong());
}

inline void InPlaceCall::StopPlain(const absl::Status& status) {
  if (timed_ == Timed::kCounted && status.ok()) [[likely]] {
    counts_->EndFound(began_);
  } else {
    StopClock(status);
  }
}

void InPlaceCall::StopClock(const absl::Status& status) {
  if (is_counted()) {
    MethodCounts& counts = *std::exchange(counts_, nullptr);
    // The poll that found the response has read the counter. A later turn, as after an interceptor
    // that waits, reads it again.
    if (status.ok() && counts.found_now()) {
      counts.EndFound(began_);
    } else {
      counts.EndNow(began_, status.code(), OutcomeOf(status));
    }
  }
  if (info_ != nullptr) StopInfo();
}

void InPlaceCall::CountAbandoned() {
  if (!is_counted() || counts_ == nullptr) return;
  counts_->EndNow(began_, absl::StatusCode::kCancelled, Outcome::kMaybeExecuted);
}

void InPlaceCall::StartInfo(Shard& shard, const MessageLite& request) {
  if (is_counted()) StartCount(shard);
  *info_ = {};
  info_->request_bytes = static_cast<uint32_t>(request.ByteSizeLong());
  info_began_ = shard.executor().now();
}

void InPlaceCall::StopInfo() {
  if (const Shard* shard = channel_->ShardHere()) {
    info_->elapsed = shard->executor().now() - info_began_;
  }
}

absl::Status InPlaceCall::TakeStatus() {
  if (task_) [[unlikely]]
    return TakeTaskStatus();
  stage_ = Stage::kPlainTaken;
  absl::Status status = plain().TakeStatus();
  if (timed_ != Timed::kNot) StopPlain(status);
  return status;
}

absl::Status InPlaceCall::TakeTaskStatus() {
  if (stage_ == Stage::kTask) terms().buffers->Return();
  if (timed_ == Timed::kNot) return task_.TakeResult();
  try {
    absl::Status status = task_.TakeResult();
    StopClock(status);
    return status;
  } catch (...) {
    StopClock(absl::InternalError("an interceptor threw"));
    throw;
  }
}

}  // namespace verbena::internal
