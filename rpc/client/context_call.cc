#include "verbena/rpc/client/context_call.h"

#include <optional>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/client/bulk_call.h"
#include "verbena/rpc/client/client_call.h"
#include "verbena/rpc/client/dedupe_attempt.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/transport/base/status_macros.h"

namespace verbena::internal {
namespace {

using google::protobuf::MessageLite;

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

}  // namespace verbena::internal
