#include "verbena/transport/link/link_ref.h"

#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {

LinkRef::LinkRef(const Link& link)
    : endpoint_alive_(link.endpoint().alive()),
      endpoint_(&link.endpoint()),
      scheduler_(&link.endpoint().executor()),
      slot_(link.key().slot),
      generation_(link.key().generation),
      identity_(link.identity()) {}

// The generation of a slot wraps around, so the identity is compared, too.
Link* LinkRef::Open() const {
  if (endpoint_alive_.expired()) return nullptr;
  Link* link = endpoint_->OpenLink({slot_, generation_});
  return link != nullptr && link->identity() == identity_ ? link : nullptr;
}

}  // namespace verbena::internal
