#include "verbena/rpc/client/attempt.h"

#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "verbena/rpc/client/channel.h"
#include "verbena/rpc/client/dedupe.h"
#include "verbena/rpc/client/link_call.h"
#include "verbena/transport/coro/context.h"

namespace verbena::internal {

namespace {

absl::Status NotExecuted(absl::Status status) {
  return WithOutcome(std::move(status), Outcome::kNotExecuted);
}

// The interceptors of a channel around an attempt of a unary call.
class UnaryChain final : public ClientChain, private ContextSource {
 public:
  // All outlive the chain.
  UnaryChain(Connection& connection, ClientCallView& view, const CallSpec& spec)
      : ClientChain(spec.channel->options().interceptors, view),
        connection_(connection),
        spec_(spec) {}

 private:
  VERBENA_CORO_WRAPPER Task<absl::Status> Last() override {
    CallSpec inner = spec_;
    inner.context_source = this;
    return OverConnections(ConnectionUse(connection_), inner);
  }
  CallContext Start() override { return ClientChain::Start(); }

  Connection& connection_;
  const CallSpec& spec_;
};

Task<absl::Status> Intercepted(ConnectionUse use, CallSpec spec) {
  if (!use) {
    absl::StatusOr<ConnectionUse> found = co_await RouteOf(spec);
    if (!found.ok()) co_return NotExecuted(found.status());
    use = *std::move(found);
    if (spec.tried != nullptr) spec.tried->Add(*use);
  }
  // Interceptors read trailing metadata even if the caller does not.
  CallInfo own;
  if (spec.info == nullptr) spec.info = &own;
  ClientCallView view(spec.method, spec.channel->target(), spec.request, spec.reply, LimitOf(spec),
                      spec.info->trailing_metadata);
  const TaskContext task = co_await CurrentContext();
  {
    CallContext context = ContextOf(spec, task.cancel);
    view.metadata = std::move(context.metadata);
    view.trace = std::move(context.trace);
    view.priority = context.priority;
    view.request_id = context.request_id;
  }
  UnaryChain chain(*use, view, spec);
  // Interceptors may wait before the call itself begins.
  DeadlineScope limit(task, spec.deadline);
  absl::Status status = co_await chain.Run().In(&limit.scope());
  co_return chain.Marked(std::move(status));
}

}  // namespace

Task<absl::Status> Attempt(ConnectionUse use, CallSpec spec) {
  return spec.channel->options().interceptors.empty() ? OverConnections(std::move(use), spec)
                                                      : Intercepted(std::move(use), spec);
}

Task<absl::Status> AttemptApart(CallSpec spec) {
  TriedServers& tried = *spec.tried;
  // `tried` must know the server that may have run it. The RetryPolicy makes the call again.
  if (spec.method.dedupe) spec.may_repeat = false;
  Connection* const ready = spec.channel->Apart(tried, spec.options.route_key);
  const bool is_usable = ready != nullptr && ready->usable_session() != nullptr;
  if (!is_usable && tried.home() == nullptr) return Attempt({}, spec);
  // Another server would not know whether the call has run.
  if (tried.home() != nullptr) spec.may_repeat = false;
  tried.Add(*ready);
  spec.tried = nullptr;
  return Attempt(ConnectionUse(*ready), spec);
}

// Only waits that may take long are coroutines of their own: every block takes this path.
Task<absl::Status> OverConnections(ConnectionUse use, CallSpec spec) {
  if (!use) {
    absl::StatusOr<ConnectionUse> found = co_await RouteOf(spec);
    if (!found.ok()) co_return NotExecuted(found.status());
    use = *std::move(found);
    if (spec.tried != nullptr) spec.tried->Add(*use);
  }
  const TaskContext task = co_await CurrentContext();
  CallContext context =
      spec.context_source != nullptr ? spec.context_source->Start() : ContextOf(spec, task.cancel);
  absl::Status status = CheckSpec(spec, context);
  if (!status.ok()) co_return NotExecuted(std::move(status));
  std::optional<DedupeAttempt> attempt;
  if (spec.options.dedupe != nullptr) attempt.emplace(*spec.options.dedupe, context);
  for (;;) {
    if (spec.fence != nullptr && spec.fence->has_earlier()) {
      status = co_await spec.fence->Await(*use, context);
      if (!status.ok()) co_return NotExecuted(std::move(status));
    }
    LinkCall call(spec, context, *use);
    if (!call.has_link()) {
      status = call.TakeLink(co_await use->Session(spec.deadline, spec.options.wait_for_ready));
    }
    if (status.ok()) status = call.Shape();
    if (status.ok() && call.lacks_room()) status = co_await call.AwaitRoom();
    if (status.ok()) {
      status = co_await call;
    } else {
      status = NotExecuted(std::move(status));
    }
    if (call.lost_unsent() && spec.may_repeat && call.GiveBack()) [[unlikely]] {
      spec.may_repeat = false;
      absl::StatusOr<ConnectionUse> another = co_await RouteOf(spec);
      status = another.status();
      if (!status.ok()) break;
      use = *std::move(another);
      continue;
    }
    if (call.landing_needed()) status = co_await call.GiveLanding();
    if (call.settling()) {
      absl::Status waited = co_await call.Settled();
      status = call.Waited(std::move(status), std::move(waited));
    }
    if (call.lacks_memory() && status.ok()) status = co_await call.PlaceResponse();
    status = call.Settle(std::move(status));
    break;
  }
  if (attempt.has_value()) attempt->End(status);
  co_return status;
}

Task<absl::Status> InLanding(ClientChannel& channel, PlainCall& plain, LandingRequest wanted) {
  // The call may have ended, and lost its link, since the server asked.
  if (!plain.landing_needed()) co_return plain.TakeStatus();
  CallOptions options;
  CallBuffers buffers(options, {});
  const CallSpec spec{.channel = &channel,
                      .method = plain.method(),
                      .request = plain.request(),
                      .reply = plain.reply(),
                      .options = options,
                      .buffers = buffers,
                      .deadline = plain.deadline(),
                      .info = plain.info()};
  LinkCall call(spec, plain, wanted);
  absl::Status status = co_await call.GiveLanding();
  if (call.settling()) {
    absl::Status waited = co_await call.Settled();
    status = call.Waited(std::move(status), std::move(waited));
  }
  co_return call.Settle(std::move(status));
}

}  // namespace verbena::internal
