// A failed Status as the body of a response frame, and back.
//
// The code travels in the frame's header; message and details (what absl calls payloads) in a
// verbena.wire.StatusBody, as bytes of any kind. A body that fits no frame travels one-sided; if
// that cannot be, it loses its details first, then the end of its message. Pure functions.

#ifndef VERBENA_RPC_CALL_STATUS_CODEC_H_
#define VERBENA_RPC_CALL_STATUS_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "verbena/rpc/detail/message.h"

namespace verbena::internal {

// The detail that holds an Outcome. It does not travel with the others: the frame's header has it.
inline constexpr char kOutcomePayloadUrl[] = "type.verbena/outcome";
// The detail that marks the refusal of one call by its handler (ServerContext::NotExecuted). It
// stays in this process.
inline constexpr char kRefusalPayloadUrl[] = "type.verbena/refusal";
// The detail that says which lost link ended a call: the same for all calls of that link, and for
// no others. It stays in this process.
inline constexpr char kLostLinkPayloadUrl[] = "type.verbena/lost_link";
// Marks the refusal of a deduplicated call whose server cannot prove that it has not run before. It
// travels, and says that this server has not run it now.
inline constexpr char kUnprovenPayloadUrl[] = "type.verbena/unproven";

// A Status that takes more bytes does not travel one-sided, and a reader takes no more details than
// this. Parsed details take many times their bytes, and an absl::Status looks at all of them for
// each one.
inline constexpr size_t kMaxFailureBytes = 256 * 1024;
inline constexpr int kMaxDetails = 64;

// All of `status` that travels, as a verbena.wire.StatusBody.
std::unique_ptr<MessageLite> StatusBodyOf(const absl::Status& status);
// Whether all of `status` that travels fits `max_bytes`. Cheap for a status without details.
bool StatusFits(const absl::Status& status, size_t max_bytes);
// As much of `status` as fits `max_bytes`.
std::string EncodeStatusBody(const absl::Status& status, size_t max_bytes);

// `code` is a peer's claim: one that is not canonical gives UNKNOWN. The code arrives whatever the
// body is; a body that does not parse gives a message that says so. Never OK.
absl::Status DecodeStatus(uint8_t code, const char* body, size_t body_bytes);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CALL_STATUS_CODEC_H_
