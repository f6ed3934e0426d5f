// Lending: makes a Loan and a RemoteMemory (memory.h) over a link.
//
// Call both on the link's executor. The link may be lost while Lend() waits: then it fails with
// UNAVAILABLE.

#ifndef VERBENA_RPC_CALL_LENDING_H_
#define VERBENA_RPC_CALL_LENDING_H_

#include "absl/status/statusor.h"
#include "verbena/rpc/memory.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/compiler.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/link/lease_access.h"
#include "verbena/transport/link/link_ref.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

class Endpoint;
class Link;

class Lending {
 public:
  // Lend() of channels and of handlers' contexts. `deadline` bounds the wait for a window, too.
  VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS static Task<absl::StatusOr<Loan>> Lend(
      Link& link, BufferView view, LeaseAccess access, TimePoint deadline);

  // The memory of `link`'s peer that `handle` names. INVALID_ARGUMENT for a handle that names
  // nothing, FAILED_PRECONDITION for one of another link.
  static absl::StatusOr<RemoteMemory> Remote(Link& link, const RemoteMemoryHandle& handle);

 private:
  // The pin keeps the memory while a window is waited for.
  static Task<absl::StatusOr<Loan>> LendOver(LinkRef over, Endpoint& endpoint, BufferView view,
                                             BufferPin pin, LeaseAccess access, TimePoint deadline);
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CALL_LENDING_H_
