// AllocateResponse: send memory for the responses to one client.
//
// A client that reads slowly, or takes no response at all, keeps the memory of its responses. So
// each client, and each source address, has a quota for the buffers that
// ServerContext::AllocateBuffer() gives the handlers of its calls, and for its large replies. A
// buffer counts until its memory is free again, even if a handler keeps it beyond its call. On the
// client's executor's thread.

#ifndef VERBENA_RPC_SERVER_RESPONSE_MEMORY_H_
#define VERBENA_RPC_SERVER_RESPONSE_MEMORY_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "verbena/rpc/call/memory.h"
#include "verbena/rpc/server/server_client.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

// A buffer of `bytes` from the send memory of `endpoint`. Fails as AllocateWithin(). `beside` is
// how many parts the payload of the same call has. If the client has no more buffers than that, a
// wait for its quota would be a wait for the call itself, so its buffer comes beyond the quota. One
// call of each source has such a buffer at a time. `client` and `endpoint` outlive the Task.
Task<absl::StatusOr<Buffer>> AllocateResponse(ServerClient& client, const Endpoint& endpoint,
                                              size_t bytes, MemoryWait wait, size_t beside = 0);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_RESPONSE_MEMORY_H_
