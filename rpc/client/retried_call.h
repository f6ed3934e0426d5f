// RetriedCall: a call whose method has a RetryPolicy: one attempt after another until one ends
// well, or none may follow.
//
// In the caller's coroutine, on its executor's thread. Calls of other methods do not come here.

#ifndef VERBENA_RPC_CLIENT_RETRIED_CALL_H_
#define VERBENA_RPC_CLIENT_RETRIED_CALL_H_

#include "absl/status/status.h"
#include "verbena/rpc/call_options.h"
#include "verbena/rpc/client/attempt_maker.h"
#include "verbena/rpc/retry.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

// `options.deadline` is a time, or none, and holds for all attempts together. What `call` refers to
// and `policy` are borrowed until the Task ends. A failure has the last attempt's Status, and the
// outcome of all attempts.
Task<absl::Status> RetriedCall(RetryableCall call, const RetryPolicy& policy, CallOptions options);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_RETRIED_CALL_H_
