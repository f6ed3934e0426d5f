// OpenLinkOf: the open link of a runtime, for tests that close it or look at it.

#ifndef VERBENA_TESTS_RPC_OPEN_LINK_H_
#define VERBENA_TESTS_RPC_OPEN_LINK_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/transport/link/endpoint.h"

namespace verbena::internal {

// An open link on the runtime's first executor and device; nullptr if there is none. Finds only the
// first LinkLimits::max_links links that were made there. On that executor; the link is valid until
// the next await.
inline Link* OpenLinkOf(Runtime& runtime) {
  absl::StatusOr<Endpoint*> endpoint = CoreOf(runtime).shard(0).EndpointOn(0);
  if (!endpoint.ok()) return nullptr;
  // A slot gets its second generation when each other one has had a link.
  for (uint32_t slot = 0; slot < (*endpoint)->limits().max_links; ++slot) {
    if (Link* link = (*endpoint)->OpenLink({slot, 0})) return link;
  }
  return nullptr;
}

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_RPC_OPEN_LINK_H_
