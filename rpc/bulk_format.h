// The bytes that tell of what a call moves one-sided, beside its frames: payloads, and messages
// that are too large for a frame. proto/WIRE.md is the specification.
//
// A frame with kFrameHasBulk begins its body with one of these. The Parse functions are the only
// readers of a peer's: pure functions, which take any bytes and name what is wrong.

#ifndef VERBENA_RPC_BULK_FORMAT_H_
#define VERBENA_RPC_BULK_FORMAT_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "verbena/transport/link/transfer.h"

namespace verbena {

// Pieces of a request: eight of its payload, and its message.
inline constexpr size_t kMaxBulkSources = 9;

// What a RequestBulk takes in a frame, at most.
inline constexpr size_t kMaxRequestBulkBytes = 48 + kMaxBulkSources * 24;

struct RequestBulk {
  uint64_t payload_bytes = 0;
  uint64_t message_bytes = 0;  // 0: the message follows in the frame
  // CRC32C of the payload and then the message, on links that check payloads.
  uint32_t checksum = 0;
  // The payload was written to the landing of this slot, which the server had granted ahead.
  static constexpr uint32_t kNoGrant = ~0u;
  uint32_t grant = kNoGrant;
  // Where the server reads the rest, payload first.
  uint32_t source_count = 0;
  std::array<RemoteRange, kMaxBulkSources> sources{};
  // Where it may write the response's payload; no bytes: nowhere yet.
  RemoteRange landing{};

  size_t encoded_bytes() const;
  void Encode(char* to) const;
};

struct ResponseBulk {
  uint64_t payload_bytes = 0;
  uint64_t message_bytes = 0;  // 0: the message follows in the frame
  uint32_t checksum = 0;
  // The payload lies in the landing that was asked for with kLandingNeeded, ahead of the message;
  // else in that of the request.
  bool payload_in_asked = false;

  static constexpr size_t kEncodedBytes = 24;
  void Encode(char* to) const;
};

// The body of kLandingNeeded.
struct LandingRequest {
  uint64_t payload_bytes = 0;  // 0 unless the request brought no landing
  uint64_t message_bytes = 0;

  static constexpr size_t kEncodedBytes = 16;
  void Encode(char* to) const;
};

// The body of kLanding.
inline constexpr size_t kLandingBytes = 24;
void EncodeLanding(const RemoteRange& landing, char* to);

// Each reads from the beginning of a frame's body of `bytes`; more may follow. INVALID_ARGUMENT
// when it is shorter, a reserved byte is not 0, or sizes contradict each other.
absl::StatusOr<RequestBulk> ParseRequestBulk(const char* body, size_t bytes);
absl::StatusOr<ResponseBulk> ParseResponseBulk(const char* body, size_t bytes);
absl::StatusOr<LandingRequest> ParseLandingRequest(const char* body, size_t bytes);
absl::StatusOr<RemoteRange> ParseLanding(const char* body, size_t bytes);

}  // namespace verbena

#endif  // VERBENA_RPC_BULK_FORMAT_H_
