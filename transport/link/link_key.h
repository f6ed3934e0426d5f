// LinkKey: names a link for longer than the link lives.
//
// A slot of its endpoint, and the slot's generation, which the next link there does not share.

#ifndef VERBENA_TRANSPORT_LINK_LINK_KEY_H_
#define VERBENA_TRANSPORT_LINK_LINK_KEY_H_

#include <cstdint>

namespace verbena::internal {

struct LinkKey {
  uint32_t slot = 0;
  uint32_t generation = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_LINK_KEY_H_
