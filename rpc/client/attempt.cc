#include "verbena/rpc/client/attempt.h"

#include <utility>

#include "verbena/rpc/client/channel.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/transport/coro/context.h"

namespace verbena::internal {

namespace {

// The interceptors of a channel around an attempt of a unary call.
class UnaryChain final : public ClientChain {
 public:
  // All outlive the chain.
  UnaryChain(const ChannelOptions& channel, Connection& connection, ClientCallView& view,
             CallSpec& spec)
      : ClientChain(channel.interceptors, view), connection_(connection), spec_(spec) {
    spec_.interceptors = this;
  }

 private:
  VERBENA_CORO_WRAPPER Task<absl::Status> Last() override {
    return FullCall(ConnectionUse(connection_), spec_);
  }

  Connection& connection_;
  CallSpec& spec_;
};

// FullCall() with the channel's interceptors around it.
// `Spec` is CallSpec, or a reference to one that outlives the Task.
template <typename Spec>
Task<absl::Status> InterceptedCall(ConnectionUse use, Spec its_spec, TriedServers* tried) {
  CallSpec& spec = its_spec;
  ClientChannel& channel = *spec.channel;
  if (!use) {
    absl::StatusOr<ConnectionUse> found = co_await RouteOf(spec);
    if (!found.ok()) co_return FailUnsent(found.status(), spec.options, spec.received);
    use = *std::move(found);
    if (tried != nullptr) tried->Add(*use);
  }
  // Interceptors read trailing metadata even if the caller does not.
  CallInfo own;
  if (spec.options.info == nullptr) spec.options.info = &own;
  ClientCallView view(spec.method, channel.target(), spec.request, spec.reply,
                      spec.options.deadline, spec.options.info->trailing_metadata);
  view.metadata = std::move(spec.context.metadata);
  view.trace = std::move(spec.context.trace);
  view.priority = spec.context.priority;
  view.request_id = spec.context.request_id;
  UnaryChain chain(channel.options(), *use, view, spec);
  // Interceptors may wait before the call itself begins.
  DeadlineScope limit(co_await CurrentContext(), spec.options.deadline.when());
  absl::Status status = co_await chain.Run().In(&limit.scope());
  if (chain.started()) co_return status;
  // An interceptor answered.
  ReturnUnsent(spec.options, spec.received);
  co_return chain.Marked(std::move(status));
}

}  // namespace

Task<absl::Status> Attempt(ConnectionUse use, CallSpec&& spec) {
  return spec.channel->options().interceptors.empty()
             ? FullCall(std::move(use), std::move(spec))
             : InterceptedCall<CallSpec>(std::move(use), std::move(spec), nullptr);
}

Task<absl::Status> Attempt(ConnectionUse use, CallSpec& spec, TriedServers* tried) {
  return spec.channel->options().interceptors.empty()
             ? FullCall(std::move(use), spec, tried)
             : InterceptedCall<CallSpec&>(std::move(use), spec, tried);
}

}  // namespace verbena::internal
