// InterceptedCall: a call of a channel that has interceptors.
//
// In the caller's coroutine, on its executor's thread.

#ifndef VERBENA_RPC_CLIENT_INTERCEPTED_CALL_H_
#define VERBENA_RPC_CLIENT_INTERCEPTED_CALL_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "google/protobuf/message_lite.h"
#include "verbena/rpc/call/context_format.h"
#include "verbena/rpc/call_options.h"
#include "verbena/rpc/client/connection.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/rpc/method.h"
#include "verbena/rpc/with_payload.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

// The members of the call's channel that count, which outlive the call.
struct InterceptedChannel {
  const std::string& target;
  const std::vector<std::shared_ptr<ClientInterceptor>>& interceptors;
  size_t max_metadata_bytes;
};

// Runs the channel's interceptors, and behind them the call. `options.deadline` is a time, or none.
// All but `options` and `context` are borrowed until the Task ends, also what `received` names.
Task<absl::Status> InterceptedCall(InterceptedChannel channel, Connection& connection,
                                   const MethodDescriptor& method,
                                   const google::protobuf::MessageLite& request,
                                   google::protobuf::MessageLite& reply, PayloadSink received,
                                   CallOptions options, CallContext context);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_INTERCEPTED_CALL_H_
