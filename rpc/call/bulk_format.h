// Bulk headers: the bytes in a frame that describe a call's payloads, and its messages that are too
// large for a frame. proto/WIRE.md is the specification.
//
// The body of a frame with kFrameHasBulk begins with one of these. A payload that travels in the
// frame follows it, and then the message. Only the Parse functions read a peer's bytes. They are
// pure functions, which take any bytes and name what is wrong.

#ifndef VERBENA_RPC_CALL_BULK_FORMAT_H_
#define VERBENA_RPC_CALL_BULK_FORMAT_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "verbena/rpc/call.h"
#include "verbena/transport/link/transfers.h"
#include "verbena/transport/memory/buffer.h"
#include "verbena/transport/memory/crc32c.h"

namespace verbena::internal {

// Pieces of a request: eight of its payload, and its message.
inline constexpr size_t kMaxBulkSources = 9;

// Grants that a link's client can hold at once: each has a slot below this.
inline constexpr uint32_t kMaxGrantSlots = 16;

// The bytes that a RequestBulk takes in a frame: without sources, and at most.
inline constexpr size_t kRequestBulkBytes = 48;
inline constexpr size_t kMaxRequestBulkBytes = kRequestBulkBytes + kMaxBulkSources * 24;

struct RequestBulk {
  bool has_payload = false;       // perhaps an empty one
  bool payload_in_frame = false;  // behind this header: there are no sources, and no grant
  // The response's payload should come in its frame: nothing is leased, and of `landing` only the
  // size counts.
  bool room_in_frame = false;
  uint64_t payload_bytes = 0;
  uint64_t message_bytes = 0;  // 0: the message follows in the frame
  // CRC32C of the payload and then the message, on links that check payloads.
  uint32_t checksum = 0;
  // The payload was written to the landing that the server had granted in this slot.
  static constexpr uint32_t kNoGrant = ~0u;
  uint32_t grant = kNoGrant;
  // The ranges that the server READs: the payload, then the message. None if a grant was used, or
  // if both are in the frame.
  uint32_t source_count = 0;
  std::array<RemoteRange, kMaxBulkSources> sources{};
  // The range to which the server may write the response's payload; no bytes: none yet.
  RemoteRange landing{};

  size_t encoded_bytes() const;
  // The bytes ahead of the message in the frame: this header, and the payload if it is there.
  size_t frame_bytes() const { return encoded_bytes() + (payload_in_frame ? payload_bytes : 0); }
  void Encode(char* to) const;
};

struct ResponseBulk {
  bool has_payload = false;  // perhaps an empty one
  uint64_t payload_bytes = 0;
  uint64_t message_bytes = 0;  // 0: the message follows in the frame
  uint32_t checksum = 0;
  // True: the payload lies in the landing that kLandingNeeded asked for, ahead of the message.
  bool payload_in_asked = false;
  // The payload lies behind this header. If neither is true, it lies in the request's landing.
  bool payload_in_frame = false;

  static constexpr size_t kEncodedBytes = 24;
  // The bytes ahead of the message in the frame, as RequestBulk::frame_bytes().
  size_t frame_bytes() const { return kEncodedBytes + (payload_in_frame ? payload_bytes : 0); }
  void Encode(char* to) const;
};

// The body of kLandingNeeded.
struct LandingRequest {
  uint64_t payload_bytes = 0;  // 0 if the request brought a landing
  uint64_t message_bytes = 0;

  static constexpr size_t kEncodedBytes = 16;
  void Encode(char* to) const;
};

// The body of kLanding.
inline constexpr size_t kLandingBytes = 24;
void EncodeLanding(const RemoteRange& landing, char* to);

// Each function reads a header from the beginning of a frame's body of `bytes`. More may follow it,
// except behind a LandingRequest. INVALID_ARGUMENT when the body is too short for the header or for
// a payload that should be in it, a reserved byte is not 0, or sizes are too large or contradict
// each other.
absl::StatusOr<RequestBulk> ParseRequestBulk(const char* body, size_t bytes);
absl::StatusOr<ResponseBulk> ParseResponseBulk(const char* body, size_t bytes);
absl::StatusOr<LandingRequest> ParseLandingRequest(const char* body, size_t bytes);
absl::StatusOr<RemoteRange> ParseLanding(const char* body, size_t bytes);

// The checksum of the bytes that a call moves one-sided: CRC32C of its payload, then of its
// message.

// A coroutine lets others run behind each so many bytes of a checksum. (start)
inline constexpr size_t kChecksumSliceBytes = size_t{256} << 10;

// Continues `checksum` with the bytes of a view; begin with 0.
inline uint32_t ExtendChecksum(uint32_t checksum, const BufferView& view) {
  return ExtendCrc32c(checksum, view.data(), view.size());
}

inline uint32_t ChecksumOf(const Payload& payload) {
  uint32_t checksum = 0;
  for (size_t i = 0; i < payload.part_count(); ++i) {
    checksum = ExtendChecksum(checksum, payload.part(i));
  }
  return checksum;
}

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CALL_BULK_FORMAT_H_
