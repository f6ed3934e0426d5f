#include "verbena/rpc/server/clients.h"

#include <algorithm>
#include <utility>

#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/quota.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/memory/carved_arena.h"

namespace verbena::internal {

size_t ClientShare(size_t option, size_t budget) { return option != 0 ? option : budget / 2; }

size_t SourceShare(size_t option, size_t budget, size_t of_client, bool names_source) {
  if (option != 0) return option;
  return std::max(names_source ? budget - budget / 4 : budget, of_client);
}

Task<absl::StatusOr<Buffer>> AllocateResponse(ServerClient& client, const Endpoint& endpoint,
                                              size_t bytes, MemoryWait wait, size_t beside) {
  BufferPool& pool = endpoint.memory().send();
  // The pool refuses so many bytes, and names the number.
  if (bytes > kMaxBufferBytes) {
    co_return co_await AllocateUntil(endpoint, pool, bytes, wait);
  }
  QuotaHold hold(client.responses(), SizeClassBytes(SizeClassOf(bytes)));
  if (!hold.TryTake()) {
    const size_t buffers = client.responses().kept();
    QuotaHold extra(client.source().extra_response(), 1);
    if (buffers > 0 && buffers <= beside && extra.TryTake()) hold = std::move(extra);
  }
  VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer,
                              co_await AllocateWithin(hold, endpoint, pool, bytes, wait));
  buffer.HoldUntilFree(std::move(hold), client.shared_from_this());
  co_return buffer;
}

}  // namespace verbena::internal
