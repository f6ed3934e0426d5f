// AttemptMaker: makes attempts of one call, for RetriedCall and HedgedCall, which know nothing of
// channels.
//
// Lives in the frame of the coroutine that makes the call; on its executor's thread.

#ifndef VERBENA_RPC_CLIENT_ATTEMPT_MAKER_H_
#define VERBENA_RPC_CLIENT_ATTEMPT_MAKER_H_

#include "absl/status/status.h"
#include "google/protobuf/message_lite.h"
#include "verbena/rpc/call_options.h"
#include "verbena/rpc/client/retry_account.h"
#include "verbena/rpc/client/tried_servers.h"
#include "verbena/rpc/method.h"
#include "verbena/rpc/with_payload.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

class AttemptMaker {
 public:
  virtual ~AttemptMaker() = default;
  // One attempt, on a server that is not in `tried` if another one is ready; it is added.
  // `options.deadline` is a time, or none. All but `options` are borrowed until the Task ends. The
  // maker has the request.
  virtual Task<absl::Status> Attempt(google::protobuf::MessageLite& reply, PayloadSink received,
                                     CallOptions options, TriedServers& tried) = 0;
};

// A call that may have several attempts. All are borrowed until it ends.
struct RetryableCall {
  AttemptMaker& maker;
  const MethodDescriptor& method;
  RetryAccount& account;  // this executor's
  google::protobuf::MessageLite& reply;
  PayloadSink received;
};

// `options` for one attempt, without the buffers and places that belong to the whole call.
inline CallOptions OptionsOfAttempt(const CallOptions& options) {
  return {.deadline = options.deadline,
          .max_response_payload = options.max_response_payload,
          .metadata = options.metadata,
          .priority = options.priority,
          .inherit = options.inherit,
          .request_id = options.request_id,
          .route_key = options.route_key,
          .wait_for_ready = options.wait_for_ready,
          .dedupe = options.dedupe};
}

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_ATTEMPT_MAKER_H_
