// Attempt: one attempt of a unary call, with the channel's interceptors around it.
//
// In the frame of the coroutine that makes the call, on its executor's thread.

#ifndef VERBENA_RPC_CLIENT_ATTEMPT_H_
#define VERBENA_RPC_CLIENT_ATTEMPT_H_

#include "absl/status/status.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/client/connection.h"
#include "verbena/rpc/client/full_call.h"
#include "verbena/transport/base/compiler.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

// Makes one attempt of the call over `use`. Without `use`, the channel finds a connection first,
// and its server joins `tried`, which may be null. The first form keeps `spec`, the second one
// borrows it until the Task ends. The failures are FullCall()'s, or an interceptor's.
VERBENA_CORO_WRAPPER Task<absl::Status> Attempt(ConnectionUse use, CallSpec&& spec);
VERBENA_CORO_WRAPPER Task<absl::Status> Attempt(ConnectionUse use, CallSpec& spec,
                                                TriedServers* tried);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_ATTEMPT_H_
