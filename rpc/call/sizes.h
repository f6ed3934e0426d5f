// CheckPayloadSize, CheckMessageSize, CheckTogether: whether a part of a call is small enough for
// one side's LinkLimits. Each side checks what it sends and what the other announces.
//
// RESOURCE_EXHAUSTED otherwise, which names the part, its bytes, the limit and what to do. `what`
// is the part in words, as "a request"; `whose` is the side, "client" or "server". From any thread.

#ifndef VERBENA_RPC_CALL_SIZES_H_
#define VERBENA_RPC_CALL_SIZES_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "verbena/transport/link/limits.h"

namespace verbena::internal {

absl::Status CheckPayloadSize(std::string_view what, uint64_t bytes, std::string_view whose,
                              const LinkLimits& limits);
absl::Status CheckMessageSize(std::string_view what, uint64_t bytes, std::string_view whose,
                              const LinkLimits& limits);

// A message and a payload that do not fit a frame share one buffer.
absl::Status CheckTogether(std::string_view what, uint64_t message_bytes, uint64_t payload_bytes);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CALL_SIZES_H_
