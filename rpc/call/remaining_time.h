// The time that a call has left, as it travels in its request.

#ifndef VERBENA_RPC_CALL_REMAINING_TIME_H_
#define VERBENA_RPC_CALL_REMAINING_TIME_H_

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "verbena/transport/base/clock.h"

namespace verbena::internal {

// At least 1, since 0 means that there is no deadline.
inline uint64_t RemainingUs(TimePoint deadline, TimePoint now) {
  const int64_t left =
      std::chrono::duration_cast<std::chrono::microseconds>(deadline - now).count();
  return static_cast<uint64_t>(std::max<int64_t>(left, 1));
}

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CALL_REMAINING_TIME_H_
