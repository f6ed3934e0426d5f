#include "tests/rpc/open_link.h"

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {

Link* OpenLinkOf(Runtime& runtime, size_t device) {
  absl::StatusOr<Endpoint*> endpoint = CoreOf(runtime).shard(0).EndpointOn(device);
  if (!endpoint.ok()) return nullptr;
  // A slot gets its second generation when each other one has had a link.
  for (uint32_t slot = 0; slot < (*endpoint)->limits().max_links; ++slot) {
    if (Link* link = (*endpoint)->OpenLink({slot, 0})) return link;
  }
  return nullptr;
}

absl::Status CloseLinkOf(Runtime& runtime, size_t device) {
  Link* const link = OpenLinkOf(runtime, device);
  if (link == nullptr) return absl::NotFoundError("there is no link");
  link->Close(absl::UnavailableError("as was asked"));
  return absl::OkStatus();
}

uint64_t PeerIdentityOf(Runtime& runtime) {
  const Link* const link = OpenLinkOf(runtime);
  return link == nullptr ? 0 : link->peer_identity();
}

}  // namespace verbena::internal
