// HedgedCall: a call whose method has a HedgingPolicy: attempts that begin one after another and
// run side by side, until one of them has a good answer.
//
// In the caller's coroutine, on its executor's thread. Only for methods that MayRunAtOnce()
// (retry_rules.h), and for calls that bring no memory of the caller's. A loser is cancelled, and
// awaited to its end: an interceptor that ignores its cancellation delays the call.

#ifndef VERBENA_RPC_CLIENT_HEDGED_CALL_H_
#define VERBENA_RPC_CLIENT_HEDGED_CALL_H_

#include "absl/status/status.h"
#include "verbena/rpc/call_options.h"
#include "verbena/rpc/client/attempt_maker.h"
#include "verbena/rpc/method.h"
#include "verbena/rpc/retry.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

// Whether a call may be hedged.
bool MayBeHedged(const MethodDescriptor& method, const CallOptions& options);

// `options.deadline` is a time, or none. What `call` refers to and `policy` are borrowed until the
// Task ends. If no attempt ends well, the failure is that of the last one to end, and the outcome
// that of all.
Task<absl::Status> HedgedCall(RetryableCall call, const HedgingPolicy& policy, CallOptions options);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_HEDGED_CALL_H_
