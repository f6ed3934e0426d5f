#include "verbena/transport/link/one_sided_awaits.h"

#include <infiniband/verbs.h>

#include <string>

#include "fmt/format.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/transfers.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {
namespace {

int AccessFor(Device& device, Transfer::Direction direction) {
  if (direction == Transfer::Direction::kWrite) return 0;
  // On iWARP what a READ of ours fills is written by the peer (RFC 5040, 3.1).
  const bool iwarp = device.context()->device->transport_type == IBV_TRANSPORT_IWARP;
  return IBV_ACCESS_LOCAL_WRITE | (iwarp ? IBV_ACCESS_REMOTE_WRITE : 0);
}

}  // namespace

absl::Status CheckLocalMemory(const Link& link, Transfer::Direction direction,
                              const BufferView& view) {
  VERBENA_RETURN_IF_ERROR(CheckRegistered(view, link.pd(), link.device()));
  const int access = AccessFor(link.device(), direction);
  if ((view.region().access() & access) == access) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("the local memory is registered with access {:#x}, but to read into it takes "
                  "{:#x} (IBV_ACCESS_*)",
                  view.region().access(), access));
}

}  // namespace verbena::internal
