// The Status of a response that says that its call failed, with what the server says of its
// outcome.

#ifndef VERBENA_RPC_CLIENT_FAILURE_OF_H_
#define VERBENA_RPC_CLIENT_FAILURE_OF_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "verbena/rpc/call/status_codec.h"
#include "verbena/rpc/outcome.h"
#include "verbena/transport/link/wire_format.h"

namespace verbena::internal {

// `body` is the encoded status. Precondition: the frame's status_code is not 0.
inline absl::Status FailureOf(const FrameHeader& frame, const char* body, size_t body_bytes) {
  const bool known = frame.outcome >= static_cast<uint8_t>(Outcome::kNotExecuted) &&
                     frame.outcome <= static_cast<uint8_t>(Outcome::kMaybeExecuted);
  return WithOutcome(DecodeStatus(frame.status_code, body, body_bytes),
                     known ? static_cast<Outcome>(frame.outcome) : Outcome::kMaybeExecuted);
}

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_FAILURE_OF_H_
