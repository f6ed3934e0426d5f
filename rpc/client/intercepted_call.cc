#include "verbena/rpc/client/intercepted_call.h"

#include <cstdint>
#include <utility>

#include "verbena/rpc/client/bulk_call.h"
#include "verbena/rpc/client/client_chain.h"
#include "verbena/rpc/client/context_call.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/transport/coro/deadline.h"

namespace verbena::internal {
namespace {

using google::protobuf::MessageLite;

class UnaryChain final : public ClientChain {
 public:
  // All but the view are as InterceptedCall() has them, and outlive the chain.
  UnaryChain(const InterceptedChannel& channel, Connection& connection,
             const MethodDescriptor& method, ClientCallView& view, MessageLite& reply,
             PayloadSink received, CallOptions& options)
      : ClientChain(channel.interceptors, view),
        channel_(channel),
        connection_(connection),
        method_(method),
        request_(view.request()),
        reply_(reply),
        received_(received),
        options_(options) {}

 private:
  Task<absl::Status> Last() override {
    co_return co_await ContextCall(connection_, method_, request_, reply_, received_,
                                   std::move(options_), Start(), channel_.max_metadata_bytes);
  }

  const InterceptedChannel& channel_;
  Connection& connection_;
  const MethodDescriptor& method_;
  const MessageLite& request_;
  MessageLite& reply_;
  const PayloadSink received_;
  CallOptions& options_;
};

}  // namespace

Task<absl::Status> InterceptedCall(InterceptedChannel channel, Connection& connection,
                                   const MethodDescriptor& method, const MessageLite& request,
                                   MessageLite& reply, PayloadSink received, CallOptions options,
                                   CallContext context) {
  [[maybe_unused]] const ConnectionUse use(connection);
  const Executor& executor = connection.shard().executor();
  CallInfo* const info = options.info;
  const TimePoint began = info != nullptr ? executor.now() : TimePoint{};
  // Interceptors read trailing metadata even if the caller does not.
  CallInfo own;
  if (info == nullptr) options.info = &own;
  ClientCallView view(method, channel.target, request, reply, options.deadline,
                      options.info->trailing_metadata);
  view.metadata = std::move(context.metadata);
  view.trace = std::move(context.trace);
  view.priority = context.priority;
  view.request_id = context.request_id;
  UnaryChain chain(channel, connection, method, view, reply, received, options);
  // Interceptors may wait before the call itself begins.
  const TimePoint deadline = options.deadline.when();
  absl::Status status = co_await WithDeadline(chain.Run(), deadline);
  if (info != nullptr) {
    info->elapsed = executor.now() - began;
    info->request_bytes = static_cast<uint32_t>(request.ByteSizeLong());
  }
  if (chain.started()) co_return status;
  // An interceptor answered.
  (void)FailUnsent(absl::CancelledError(), options, received);
  co_return chain.Marked(std::move(status));
}

}  // namespace verbena::internal
