// CallId: a call's slot in its client's table, and the slot's generation, which tells its frames
// from late frames of an earlier call. Both travel in each frame of the call.

#ifndef VERBENA_RPC_CALL_CALL_ID_H_
#define VERBENA_RPC_CALL_CALL_ID_H_

#include <cstdint>

namespace verbena::internal {

// On one link. Slots are below this.
inline constexpr uint32_t kMaxCallsInFlight = 1u << 16;

struct CallId {
  uint32_t slot = 0;
  uint32_t generation = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CALL_CALL_ID_H_
