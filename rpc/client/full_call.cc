#include "verbena/rpc/client/full_call.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/client/bulk.h"
#include "verbena/rpc/client/call.h"
#include "verbena/rpc/client/dedupe.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/context.h"

namespace verbena::internal {

using google::protobuf::MessageLite;

namespace {

// A call whose context and request fit one frame of `session`.
Task<absl::Status> CallInFrame(ClientSession& session, Connection& connection,
                               const MethodDescriptor& method, const MessageLite& request,
                               MessageLite& reply, const CallOptions& options,
                               const CallContext& context, size_t request_bytes) {
  ClientCall call(session, connection.shard().executor(), method, request, reply, options.deadline,
                  options.info, request_bytes);
  if (!context.empty()) call.set_context(context, /*travels=*/false);
  absl::Status status = co_await call;
  if (!call.landing_needed()) co_return status;
  co_return co_await FinishInLanding(call, reply, options.deadline, options.info);
}

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

absl::Status CheckContext(const CallContext& context, size_t max_metadata_bytes) {
  VERBENA_RETURN_IF_ERROR(context.metadata.status());
  if (context.metadata.bytes() > max_metadata_bytes) {
    return absl::ResourceExhaustedError(
        fmt::format("the metadata has {} bytes (first key \"{}\"), and "
                    "ChannelOptions::max_metadata_bytes allows {}: send less, or raise it",
                    context.metadata.bytes(), context.metadata.begin()->first, max_metadata_bytes));
  }
  return context.trace ? context.trace->Check() : absl::OkStatus();
}

Task<absl::Status> ContextCall(Connection& connection, const MethodDescriptor& method,
                               const MessageLite& request, MessageLite& reply, PayloadSink received,
                               CallOptions options, CallContext context,
                               size_t max_metadata_bytes) {
  [[maybe_unused]] const ConnectionUse use(connection);
  if (absl::Status checked = CheckContext(context, max_metadata_bytes); !checked.ok()) {
    if (options.info != nullptr) {
      options.info->request_bytes = static_cast<uint32_t>(request.ByteSizeLong());
    }
    co_return FailUnsent(std::move(checked), options, received);
  }
  std::optional<DedupeAttempt> attempt;
  if (options.dedupe != nullptr) attempt.emplace(*options.dedupe, context);
  if (WantsBulk(method, options)) {
    absl::Status status = co_await BulkCall(connection, method, request, reply, received,
                                            std::move(options), &context);
    if (attempt.has_value()) attempt->End(status);
    co_return status;
  }
  const Executor& executor = connection.shard().executor();
  CallInfo* const info = options.info;
  const TimePoint began = info != nullptr ? executor.now() : TimePoint{};
  absl::StatusOr<ClientSession*> session = connection.usable_session();
  // Lost since the call chose it, perhaps while interceptors ran.
  if (*session == nullptr) {
    session = co_await connection.Session(options.deadline, options.wait_for_ready);
  }
  const size_t request_bytes = request.ByteSizeLong();
  absl::Status status;
  if (!session.ok()) {
    if (info != nullptr) info->request_bytes = static_cast<uint32_t>(request_bytes);
    status = FailUnsent(session.status(), options, received);
  } else if (!ContextFitsFrame(context, request_bytes, (*session)->max_body_bytes())) {
    status = co_await BulkCall(connection, method, request, reply, received, std::move(options),
                               &context);
  } else {
    status = co_await CallInFrame(**session, connection, method, request, reply, options, context,
                                  request_bytes);
  }
  if (attempt.has_value()) attempt->End(status);
  // Connecting counts.
  if (info != nullptr) info->elapsed = executor.now() - began;
  co_return status;
}

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
