// ReturnWithMemory: gives a landing's share back when its memory is free, and no sooner.
//
// The peer of a lost link may still write to what it was granted, so the link's leases keep that
// memory until its queue pair is gone. A client that closes its links and connects anew must not be
// granted more meanwhile. Call it on the thread of the executor that has the memory.

#ifndef VERBENA_RPC_SERVER_GRANTED_SHARE_H_
#define VERBENA_RPC_SERVER_GRANTED_SHARE_H_

#include <cstddef>
#include <memory>

#include "verbena/rpc/call/memory.h"
#include "verbena/rpc/server/server_client.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

// Ends the grant of `bytes` to `client` when the memory of `landing` is free. If `holders` is not
// null, the bytes count among its grants until then.
void ReturnWithMemory(Buffer landing, size_t bytes, ServerClient& client,
                      std::shared_ptr<MemoryHolders> holders);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_GRANTED_SHARE_H_
