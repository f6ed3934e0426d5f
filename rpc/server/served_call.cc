#include "verbena/rpc/server/served_call.h"

#include "fmt/format.h"
#include "verbena/rpc/server/server_session.h"
#include "verbena/transport/link/endpoint.h"

namespace verbena::internal {

absl::StatusOr<Link*> ServedCall::OpenLink() const {
  Link* link = session->link();
  if (link == nullptr || !link->open()) return absl::UnavailableError("the link was lost");
  return link;
}

absl::Status CheckBulkLimit(const char* what, uint64_t bytes, const Link& link) {
  const uint64_t limit = link.endpoint().limits().max_payload_bytes;
  if (bytes <= limit) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      fmt::format("{} of {} bytes is over this server's LinkLimits::max_payload_bytes of {}: send "
                  "it in pieces, or raise that (at most {} MiB)",
                  what, bytes, limit, kMaxBufferBytes >> 20));
}

}  // namespace verbena::internal
