// CallId: a call's slot in its client's table, and the slot's generation, by which a late frame of
// an earlier call is told. Both travel in each frame of the call.

#ifndef VERBENA_RPC_INTERNAL_CALL_ID_H_
#define VERBENA_RPC_INTERNAL_CALL_ID_H_

#include <cstdint>

namespace verbena {

// On one link. Slots are below this.
inline constexpr uint32_t kMaxCallsInFlight = 1u << 16;

struct CallId {
  uint32_t slot = 0;
  uint32_t generation = 0;
};

}  // namespace verbena

#endif  // VERBENA_RPC_INTERNAL_CALL_ID_H_
