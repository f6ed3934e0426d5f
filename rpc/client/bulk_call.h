// Calls that move something one-sided: a payload, or a message that is too large for a frame.
//
// BulkCall makes such a call from its beginning. FinishInLanding takes over a call whose server
// asks for memory for its response. Both wait if memory or windows are short: for memory at most
// kMaxMemoryWait, for windows until the call's deadline. In the caller's coroutine; on its
// executor's thread.

#ifndef VERBENA_RPC_CLIENT_BULK_CALL_H_
#define VERBENA_RPC_CLIENT_BULK_CALL_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message_lite.h"
#include "verbena/rpc/call/context_format.h"
#include "verbena/rpc/call_options.h"
#include "verbena/rpc/client/client_call.h"
#include "verbena/rpc/client/connection.h"
#include "verbena/rpc/method.h"
#include "verbena/rpc/with_payload.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

// Whether `options` name anything that travels one-sided, or `method` has payloads.
inline bool WantsBulk(const MethodDescriptor& method, const CallOptions& options) {
  return method.payloads != Payloads::kNone || options.request_payload.present() ||
         options.response_payload_into || options.max_response_payload != 0;
}

// All but `options` are borrowed until the Task ends, also what `received` names. `context` is
// null, or the call's context block, which may be empty.
Task<absl::Status> BulkCall(Connection& connection, const MethodDescriptor& method,
                            const google::protobuf::MessageLite& request,
                            google::protobuf::MessageLite& reply, PayloadSink received,
                            CallOptions options, const CallContext* context = nullptr);

// Whether a call's context and its request of `request_bytes` travel in a frame with a body of at
// most `max_body_bytes`. Otherwise BulkCall makes the call.
bool ContextFitsFrame(const CallContext& context, size_t request_bytes, size_t max_body_bytes);

// For a call that never began: gives the caller its buffers back, and returns `status` as the
// call's final one.
absl::Status FailUnsent(absl::Status status, CallOptions& options, PayloadSink received);

// `call` is landing_needed(), has leased nothing for it yet, and outlives the Task.
Task<absl::Status> FinishInLanding(ClientCall& call, google::protobuf::MessageLite& reply,
                                   Deadline deadline, CallInfo* info);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_BULK_CALL_H_
