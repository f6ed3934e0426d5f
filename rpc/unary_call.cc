#include "verbena/rpc/unary_call.h"

#include <algorithm>
#include <new>
#include <utility>

#include "verbena/rpc/channel.h"
#include "verbena/rpc/client/bulk_call.h"
#include "verbena/rpc/client/client_call.h"
#include "verbena/rpc/client/connection.h"
#include "verbena/rpc/client/context_call.h"
#include "verbena/rpc/client/intercepted_call.h"
#include "verbena/rpc/internal/shard.h"
#include "verbena/rpc/outcome.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/log/check.h"
#include "verbena/transport/log/mutant.h"

namespace verbena::internal {
namespace {

using google::protobuf::MessageLite;

// Keeps CallOptions from applying the channel's default: the call has begun already.
Deadline Given(Deadline deadline) { return deadline.is_set() ? deadline : Deadline::None(); }

// A call that found no usable link.
Task<absl::Status> CallOnceConnected(Connection& connection, Channel& channel,
                                     const MethodDescriptor& method, const MessageLite& request,
                                     MessageLite& reply, Deadline deadline, CallInfo* info) {
  const Executor& executor = connection.shard().executor();
  const TimePoint began = executor.now();
  absl::StatusOr<ClientSession*> session = co_await connection.Session(deadline);
  absl::Status status;
  if (session.ok()) {
    status = co_await UnaryCall<const MessageLite&, MessageLite&>(
        channel, method, request, reply, {.deadline = Given(deadline), .info = info});
  } else {
    status = WithOutcome(session.status(), Outcome::kNotExecuted);
    if (info != nullptr) info->request_bytes = static_cast<uint32_t>(request.ByteSizeLong());
  }
  if (info != nullptr) info->elapsed = executor.now() - began;
  co_return status;
}

Task<absl::Status> Failed(absl::Status status) { co_return status; }

// Runs `call` where no cancellation reaches it.
Task<absl::Status> RunUninherited(Task<absl::Status> call) {
  co_return co_await std::move(call).In(nullptr);
}

// Whether a call has a context block of its own, or takes over less than all.
bool HasContext(const CallOptions& options) {
  return !options.metadata.untouched() || options.priority != Priority::kNormal ||
         options.inherit != Inherit::kAll || options.request_id.has_value();
}

// The earlier of the call's own deadline and that of the Task that makes it.
Deadline EarlierOf(TimePoint own, const CancelScope* scope) {
  if (scope == nullptr || VERBENA_MUTANT(kAmbientDeadlineIgnored)) return own;
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

InPlaceCall::InPlaceCall(Channel& channel, const MethodDescriptor& method, CallOptions&& options)
    : channel_(&channel),
      method_(&method),
      deadline_(options.deadline.is_given() ? options.deadline
                                            : channel.options().default_deadline),
      info_(options.info),
      stage_(WantsBulk(method, options) || HasContext(options) ||
                     !channel.options().interceptors.empty()
                 ? Stage::kNewWithOptions
                 : Stage::kNew) {
  static_assert(sizeof(Eager) <= kStorageBytes && alignof(Eager) <= alignof(std::max_align_t));
  static_assert(sizeof(CallOptions) <= kStorageBytes);
  if (stage_ == Stage::kNewWithOptions) new (storage_) CallOptions(std::move(options));
}

InPlaceCall::InPlaceCall(InPlaceCall&& other) noexcept
    : channel_(other.channel_),
      method_(other.method_),
      deadline_(other.deadline_),
      info_(other.info_),
      stage_(other.stage_) {
  VERBENA_CHECK(stage_ == Stage::kNew || stage_ == Stage::kNewWithOptions)
      << method_->full_name << ": a call was moved that had begun, or was moved from";
  if (stage_ == Stage::kNewWithOptions) new (storage_) CallOptions(other.TakeOptions());
  other.stage_ = Stage::kMovedFrom;
}

InPlaceCall::~InPlaceCall() {
  if (stage_ == Stage::kEager) {
    // First, since it refers to the call.
    task_ = {};
    eager().~Eager();
  } else if (stage_ == Stage::kNewWithOptions) {
    options().~CallOptions();
  }
}

std::coroutine_handle<> InPlaceCall::Begin(PromiseBase& caller, const MessageLite& request,
                                           MessageLite& reply, PayloadSink payload) {
  VERBENA_CHECK(stage_ == Stage::kNew || stage_ == Stage::kNewWithOptions)
      << method_->full_name << ": a call was awaited twice, or after it was moved from";
  if (info_ != nullptr && !VERBENA_MUTANT(kTrailersOfTheCallBefore)) *info_ = {};
  Connection* connection = channel_->ConnectionHere();
  const bool traced = caller.cancel != nullptr && caller.cancel->trace() != nullptr;
  if (stage_ == Stage::kNewWithOptions || connection == nullptr || traced) [[unlikely]] {
    return BeginWithOptions(connection, caller, request, reply, payload);
  }
  const Executor& executor = connection->shard().executor();
  const Deadline deadline = EarlierOf(deadline_.At(executor), caller.cancel);
  ClientSession* session = connection->usable_session();
  if (session == nullptr) [[unlikely]] {
    return BeginTask(
        CallOnceConnected(*connection, *channel_, *method_, request, reply, deadline, info_),
        caller);
  }
  const size_t request_bytes = request.ByteSizeLong();
  if (request_bytes > session->max_body_bytes()) [[unlikely]] {
    return BeginTask(
        BulkCall(*connection, *method_, request, reply, {}, {.deadline = deadline, .info = info_}),
        caller);
  }
  stage_ = Stage::kEager;
  Eager* call = new (storage_) Eager(*this, *session, connection->shard().executor(), *method_,
                                     request, reply, deadline, info_, request_bytes);
  return call->Await(caller) ? std::noop_coroutine() : caller.handle;
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
  if (connection == nullptr) {
    return BeginTask(Failed(FailUnsent(NotOnAnExecutor(), options, payload)), caller);
  }
  const bool inherits = options.inherit == Inherit::kAll;
  const CancelScope* scope = inherits ? caller.cancel : nullptr;
  options.deadline = EarlierOf(deadline_.At(connection->shard().executor()), scope);
  CallContext context{.priority = options.priority,
                      .request_id = options.request_id,
                      .metadata = std::move(options.metadata)};
  if (scope != nullptr && scope->trace() != nullptr) context.trace = scope->trace()->Child();
  const ChannelOptions& channel = channel_->options();
  const bool intercepted = !channel.interceptors.empty();
  if (inherits && !intercepted && context.empty() && context.metadata.untouched()) {
    return BeginTask(BulkCall(*connection, *method_, request, reply, payload, std::move(options)),
                     caller);
  }
  Task<absl::Status> call =
      intercepted
          ? InterceptedCall({channel_->target(), channel.interceptors, channel.max_metadata_bytes},
                            *connection, *method_, request, reply, payload, std::move(options),
                            std::move(context))
          : ContextCall(*connection, *method_, request, reply, payload, std::move(options),
                        std::move(context), channel.max_metadata_bytes);
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
