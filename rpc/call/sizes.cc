#include "verbena/rpc/call/sizes.h"

#include "fmt/format.h"
#include "verbena/transport/memory/carved_arena.h"

namespace verbena::internal {

absl::Status CheckPayloadSize(std::string_view what, uint64_t bytes, std::string_view whose,
                              const LinkLimits& limits) {
  if (bytes <= limits.max_payload_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      fmt::format("{} of {} bytes is over the {}'s LinkLimits::max_payload_bytes of {}: send "
                  "parts of it by several calls, or raise the limit on both sides (at most {} MiB)",
                  what, bytes, whose, limits.max_payload_bytes, kMaxBufferBytes >> 20));
}

absl::Status CheckMessageSize(std::string_view what, uint64_t bytes, std::string_view whose,
                              const LinkLimits& limits) {
  if (bytes <= limits.max_message_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(fmt::format(
      "{} of {} bytes is over the {}'s LinkLimits::max_message_bytes of {}: send large bytes as "
      "a payload, many parts as a stream, or raise the limit on both sides (at most {} MiB)",
      what, bytes, whose, limits.max_message_bytes, kMaxBufferBytes >> 20));
}

absl::Status CheckTogether(std::string_view what, uint64_t message_bytes, uint64_t payload_bytes) {
  if (message_bytes <= kMaxBufferBytes && payload_bytes <= kMaxBufferBytes - message_bytes) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      fmt::format("{} of {} bytes with a payload of {}; together at most {} travel: send parts of "
                  "them by several calls",
                  what, message_bytes, payload_bytes, kMaxBufferBytes));
}

}  // namespace verbena::internal
