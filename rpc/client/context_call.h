// Calls that carry more than their messages: a context block, payloads, or both.
//
// ContextCall chooses how such a call travels. In the caller's coroutine; on its executor's thread.

#ifndef VERBENA_RPC_CLIENT_CONTEXT_CALL_H_
#define VERBENA_RPC_CLIENT_CONTEXT_CALL_H_

#include <cstddef>

#include "absl/status/status.h"
#include "google/protobuf/message_lite.h"
#include "verbena/rpc/call/context_format.h"
#include "verbena/rpc/call_options.h"
#include "verbena/rpc/client/connection.h"
#include "verbena/rpc/method.h"
#include "verbena/rpc/with_payload.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

// Whether a call may send `context`. INVALID_ARGUMENT if an entry of the metadata, or the trace,
// may not be sent; RESOURCE_EXHAUSTED if the metadata takes more than `max_metadata_bytes`.
absl::Status CheckContext(const CallContext& context, size_t max_metadata_bytes);

// `connection`, `method`, the messages and what `received` names are borrowed until the Task ends.
// INVALID_ARGUMENT or RESOURCE_EXHAUSTED, and nothing is sent, if the metadata may not be sent or
// takes more than `max_metadata_bytes`.
Task<absl::Status> ContextCall(Connection& connection, const MethodDescriptor& method,
                               const google::protobuf::MessageLite& request,
                               google::protobuf::MessageLite& reply, PayloadSink received,
                               CallOptions options, CallContext context, size_t max_metadata_bytes);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_CONTEXT_CALL_H_
