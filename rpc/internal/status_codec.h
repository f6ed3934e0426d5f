// A failed Status as the body of a response frame, and back.
//
// The code travels in the frame's header; message and payloads (details) in a
// verbena.wire.StatusBody, as bytes of any kind. Bounded: a body that would pass `max_bytes` loses
// its details first, then the end of its message. Pure functions.

#ifndef VERBENA_RPC_INTERNAL_STATUS_CODEC_H_
#define VERBENA_RPC_INTERNAL_STATUS_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace verbena::internal {

// The payload that holds an Outcome. It does not travel as a detail: the frame's header has it.
inline constexpr char kOutcomePayloadUrl[] = "type.verbena/outcome";
// The payload that marks the refusal of one call by its handler (ServerContext::NotExecuted). It
// stays in this process.
inline constexpr char kRefusalPayloadUrl[] = "type.verbena/refusal";

std::string EncodeStatusBody(const absl::Status& status, size_t max_bytes);

// `code` is a peer's claim: one that is not canonical gives UNKNOWN. The code arrives whatever the
// body is; a body that does not parse gives a message that says so. Never OK.
absl::Status DecodeStatus(uint8_t code, const char* body, size_t body_bytes);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_INTERNAL_STATUS_CODEC_H_
