#include "verbena/rpc/client/intercepted_call.h"

#include <utility>

#include "verbena/rpc/client/bulk_call.h"
#include "verbena/rpc/client/context_call.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/rpc/internal/status_codec.h"
#include "verbena/rpc/outcome.h"
#include "verbena/transport/coro/deadline.h"

namespace verbena::internal {
namespace {

using google::protobuf::MessageLite;

class ClientChain final : public InterceptorChain<ClientInterceptor, ClientCallView> {
 public:
  // All but the view are as InterceptedCall() has them, and outlive the chain.
  ClientChain(const InterceptedChannel& channel, Connection& connection,
              const MethodDescriptor& method, ClientCallView& view, MessageLite& reply,
              PayloadSink received, CallOptions& options)
      : InterceptorChain(channel.interceptors, view),
        channel_(channel),
        connection_(connection),
        method_(method),
        view_(view),
        reply_(reply),
        received_(received),
        options_(options) {}

  // Whether the call itself has begun.
  bool started() const { return started_; }

 private:
  // A Task of next() that is never awaited begins nothing.
  Task<absl::Status> Last() override {
    started_ = true;
    CallContext context{.priority = view_.priority,
                        .request_id = view_.request_id,
                        .trace = view_.trace,
                        .metadata = view_.metadata};
    co_return co_await ContextCall(connection_, method_, view_.request(), reply_, received_,
                                   std::move(options_), std::move(context),
                                   channel_.max_metadata_bytes);
  }

  const InterceptedChannel& channel_;
  Connection& connection_;
  const MethodDescriptor& method_;
  ClientCallView& view_;
  MessageLite& reply_;
  const PayloadSink received_;
  CallOptions& options_;
  bool started_ = false;
};

bool HasOutcome(const absl::Status& status) {
  return status.GetPayload(kOutcomePayloadUrl).has_value();
}

}  // namespace

Task<absl::Status> InterceptedCall(InterceptedChannel channel, Connection& connection,
                                   const MethodDescriptor& method, const MessageLite& request,
                                   MessageLite& reply, PayloadSink received, CallOptions options,
                                   CallContext context) {
  // Interceptors read trailing metadata even if the caller does not.
  CallInfo own;
  if (options.info == nullptr) options.info = &own;
  ClientCallView view(method, channel.target, request, reply, options.deadline,
                      options.info->trailing_metadata);
  view.metadata = std::move(context.metadata);
  view.trace = std::move(context.trace);
  view.priority = context.priority;
  view.request_id = context.request_id;
  ClientChain chain(channel, connection, method, view, reply, received, options);
  // Interceptors may wait before the call itself begins.
  const TimePoint deadline = options.deadline.when();
  absl::Status status = co_await WithDeadline(chain.Run(), deadline);
  if (chain.started()) co_return status;
  // An interceptor answered. A status of another call, which it may have made instead, keeps its
  // outcome.
  if (status.ok() || HasOutcome(status)) {
    (void)FailUnsent(absl::CancelledError(), options, received);
    co_return status;
  }
  co_return FailUnsent(std::move(status), options, received);
}

}  // namespace verbena::internal
