// Attempts of one call: a call that is retried (RetriedCall), and one that is hedged (HedgedCall).
//
// All live in the frame of the coroutine that makes the call, on its executor's thread.

#ifndef VERBENA_RPC_CLIENT_ATTEMPTS_H_
#define VERBENA_RPC_CLIENT_ATTEMPTS_H_

#include "absl/status/status.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/client/policies.h"
#include "verbena/rpc/client/spec.h"
#include "verbena/rpc/policy.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

// AttemptMaker: makes one attempt of a call, for RetriedCall and HedgedCall. Tests script it.
//
// Outlives the calls; on their executor's thread. An absl::FunctionRef would do, but clang rejects
// its functions, which return a Task and are no coroutines.
class AttemptMaker {
 public:
  // Makes one attempt, on a server that is not in spec.tried if another one is ready. Adds this
  // server to spec.tried as soon as it knows it, which may be after a wait.
  virtual Task<absl::Status> Attempt(CallSpec spec) = 0;

 protected:
  ~AttemptMaker() = default;
};

// A call whose method has a RetryPolicy: one attempt after another, until one ends well or none may
// follow.
//
// Two attempts of an IDEMPOTENT call never run at once at one server (AttemptFence).
//
// spec.deadline holds for all attempts together. `account` is this executor's. All references are
// borrowed until the Task ends. A failure has the last attempt's Status, and the outcome of all
// attempts.
VERBENA_CORO_WRAPPER Task<absl::Status> RetriedCall(AttemptMaker& maker, RetryAccount& account,
                                                    const RetryPolicy& policy, CallSpec spec);

// Whether a call may be hedged: its method may run at once at several servers, and it brings no
// memory of the caller's.
bool MayBeHedged(const MethodDescriptor& method, const CallOptions& options);

// A call whose method has a HedgingPolicy: attempts that begin one after another and run side by
// side, until one of them has a good answer. Precondition: MayBeHedged().
//
// No attempt begins while another one waits for a server. A loser is cancelled, and awaited to its
// end: an interceptor that ignores its cancellation delays the call. All references are borrowed
// until the Task ends. If no attempt ends well, the failure is that of the last one to end, with
// the outcome of all attempts.
Task<absl::Status> HedgedCall(AttemptMaker& maker, RetryAccount& account,
                              const HedgingPolicy& policy, CallSpec spec);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_ATTEMPTS_H_
