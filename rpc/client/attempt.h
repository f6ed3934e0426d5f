// Attempt: one attempt of a unary call, with the channel's interceptors around it.
//
// In the frame of the coroutine that makes the call, on its executor's thread.

#ifndef VERBENA_RPC_CLIENT_ATTEMPT_H_
#define VERBENA_RPC_CLIENT_ATTEMPT_H_

#include "absl/status/status.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/call/context_block.h"
#include "verbena/rpc/client/connection.h"
#include "verbena/rpc/client/full_call.h"
#include "verbena/transport/base/compiler.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

// The context block of a call in `scope`, which may be null. Takes the metadata of `options`.
CallContext ContextOf(CallOptions& options, const CancelScope* scope);

// Over `use`; without one, over a connection that the channel finds, once a server is ready. That
// server joins `tried`, which may be null. Precondition: spec.channel is not null.
VERBENA_CORO_WRAPPER Task<absl::Status> Attempt(ConnectionUse use, SpecHandle spec,
                                                TriedServers* tried = nullptr);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_ATTEMPT_H_
