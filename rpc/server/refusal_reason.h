// RefusalReason: why a server starts none of a call.

#ifndef VERBENA_RPC_SERVER_REFUSAL_REASON_H_
#define VERBENA_RPC_SERVER_REFUSAL_REASON_H_

#include <cstddef>
#include <cstdint>

namespace verbena::internal {

enum class RefusalReason : uint8_t {
  kShuttingDown,  // UNAVAILABLE
  kNoSuchMethod,  // UNIMPLEMENTED
  kTooManyCalls,  // RESOURCE_EXHAUSTED, as are those down to kTooMuchMetadata
  kTooManyOfAClient,
  kTooManyOfASource,
  kTooManyOfAMethod,
  kTooManyBytes,
  kTooManyBytesOfAClient,
  kTooManyBytesOfAMethod,
  kQueueFull,
  kQueueTooOld,
  kRequestTooLarge,
  kTooMuchMetadata,
  kStreamsOtherwise,  // UNIMPLEMENTED
};
inline constexpr size_t kRefusalReasons = 14;

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_REFUSAL_REASON_H_
