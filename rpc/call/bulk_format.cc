#include "verbena/rpc/call/bulk_format.h"

#include <cstring>
#include <limits>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/memory/carved_arena.h"

namespace verbena::internal {
namespace {

// As it lies on the wire.
struct WireRange {
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint32_t rkey = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(WireRange) == kLandingBytes);

struct WireRequest {
  uint64_t payload_bytes = 0;
  uint64_t message_bytes = 0;
  uint32_t checksum = 0;
  uint8_t source_count = 0;
  uint8_t flags = 0;   // kHasPayload, …
  uint16_t grant = 0;  // 0: none; otherwise the slot + 1
  WireRange landing;
};
static_assert(sizeof(WireRequest) == kRequestBulkBytes);

// Flags of a request.
constexpr uint8_t kHasPayload = 1;
constexpr uint8_t kPayloadInFrame = 2;
constexpr uint8_t kRoomInFrame = 4;
constexpr uint8_t kKnownFlags = kHasPayload | kPayloadInFrame | kRoomInFrame;

struct WireResponse {
  uint64_t payload_bytes = 0;
  uint64_t message_bytes = 0;
  uint32_t checksum = 0;
  uint16_t payload_place = 0;  // kInLanding, …
  uint16_t has_payload = 0;
};
// Places of a response's payload.
constexpr uint16_t kInLanding = 0;
constexpr uint16_t kInAsked = 1;
constexpr uint16_t kInFrame = 2;
static_assert(sizeof(WireResponse) == ResponseBulk::kEncodedBytes);

struct WireLandingRequest {
  uint64_t payload_bytes = 0;
  uint64_t message_bytes = 0;
};
static_assert(sizeof(WireLandingRequest) == LandingRequest::kEncodedBytes);

WireRange ToWire(const RemoteRange& range) {
  return {.address = range.address, .bytes = range.bytes, .rkey = range.rkey};
}

absl::StatusOr<RemoteRange> FromWire(const WireRange& range, const char* what) {
  if (range.reserved != 0 || range.bytes > kMaxBufferBytes ||
      range.address > std::numeric_limits<uint64_t>::max() - range.bytes) {
    return absl::InvalidArgumentError(fmt::format("{} of {} bytes at {:#x}, reserved {:#x}", what,
                                                  range.bytes, range.address, range.reserved));
  }
  return RemoteRange{.address = range.address, .bytes = range.bytes, .rkey = range.rkey};
}

template <typename T>
absl::StatusOr<T> Copy(const char* body, size_t bytes, const char* what) {
  T copy;
  if (bytes < sizeof(copy)) {
    return absl::InvalidArgumentError(
        fmt::format("{} in {} bytes, which takes {}", what, bytes, sizeof(copy)));
  }
  std::memcpy(&copy, body, sizeof(copy));
  return copy;
}

absl::Status TooLarge(const char* what, uint64_t payload_bytes, uint64_t message_bytes) {
  return absl::InvalidArgumentError(fmt::format("{} with a payload of {} bytes and a message of {}",
                                                what, payload_bytes, message_bytes));
}

// An empty payload is a payload. Without a payload there are no bytes.
absl::Status CheckPresence(uint32_t has_payload, uint64_t payload_bytes) {
  if (has_payload == 1 || (has_payload == 0 && payload_bytes == 0)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("{} bytes of a payload of which the peer says {}", payload_bytes, has_payload));
}

// `left` are the bytes of the body behind the header.
absl::Status CheckInFrame(uint64_t payload_bytes, size_t left) {
  if (payload_bytes > 0 && payload_bytes <= left) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("a payload of {} bytes in a frame with {} for it", payload_bytes, left));
}

uint8_t FlagsOf(const RequestBulk& request) {
  uint8_t flags = 0;
  if (request.has_payload) flags |= kHasPayload;
  if (request.payload_in_frame) flags |= kPayloadInFrame;
  if (request.room_in_frame) flags |= kRoomInFrame;
  return flags;
}

// The flags must agree with the rest. `left` as in CheckInFrame().
absl::Status CheckFlags(const WireRequest& wire, size_t left) {
  if ((wire.flags & ~kKnownFlags) != 0) {
    return absl::InvalidArgumentError(fmt::format("a request's bulk with flags {:#x}", wire.flags));
  }
  VERBENA_RETURN_IF_ERROR(CheckPresence(wire.flags & kHasPayload, wire.payload_bytes));
  if ((wire.flags & kPayloadInFrame) != 0) {
    if (wire.source_count != 0 || wire.grant != 0 || wire.message_bytes != 0) {
      return absl::InvalidArgumentError(
          fmt::format("a payload in the frame beside {} pieces, grant {} and a message of {} bytes",
                      wire.source_count, wire.grant, wire.message_bytes));
    }
    VERBENA_RETURN_IF_ERROR(CheckInFrame(wire.payload_bytes, left));
  }
  const WireRange& room = wire.landing;
  if ((wire.flags & kRoomInFrame) != 0 &&
      (room.bytes == 0 || room.address != 0 || room.rkey != 0)) {
    return absl::InvalidArgumentError(
        fmt::format("room in a frame for {} bytes at {:#x}", room.bytes, room.address));
  }
  return absl::OkStatus();
}

bool IsTooLarge(uint64_t payload_bytes, uint64_t message_bytes) {
  return payload_bytes > kMaxBufferBytes || message_bytes > kMaxBufferBytes;
}

}  // namespace

size_t RequestBulk::encoded_bytes() const {
  return sizeof(WireRequest) + source_count * sizeof(WireRange);
}

void RequestBulk::Encode(char* to) const {
  VERBENA_DCHECK(source_count <= kMaxBulkSources) << source_count << " sources";
  const WireRequest request{.payload_bytes = payload_bytes,
                            .message_bytes = message_bytes,
                            .checksum = checksum,
                            .source_count = static_cast<uint8_t>(source_count),
                            .flags = FlagsOf(*this),
                            .grant = static_cast<uint16_t>(grant + 1),
                            .landing = ToWire(landing)};
  std::memcpy(to, &request, sizeof(request));
  to += sizeof(request);
  for (uint32_t i = 0; i < source_count; ++i, to += sizeof(WireRange)) {
    EncodeLanding(sources[i], to);
  }
}

absl::StatusOr<RequestBulk> ParseRequestBulk(const char* body, size_t bytes) {
  VERBENA_ASSIGN_OR_RETURN(WireRequest wire, Copy<WireRequest>(body, bytes, "a request's bulk"));
  if (IsTooLarge(wire.payload_bytes, wire.message_bytes)) {
    return TooLarge("a request", wire.payload_bytes, wire.message_bytes);
  }
  VERBENA_RETURN_IF_ERROR(CheckFlags(wire, bytes - sizeof(WireRequest)));
  if (wire.source_count > kMaxBulkSources ||
      bytes - sizeof(WireRequest) < wire.source_count * sizeof(WireRange)) {
    return absl::InvalidArgumentError(
        fmt::format("a request's bulk in {} pieces and {} bytes", wire.source_count, bytes));
  }
  RequestBulk request{.has_payload = (wire.flags & kHasPayload) != 0,
                      .payload_in_frame = (wire.flags & kPayloadInFrame) != 0,
                      .room_in_frame = (wire.flags & kRoomInFrame) != 0,
                      .payload_bytes = wire.payload_bytes,
                      .message_bytes = wire.message_bytes,
                      .checksum = wire.checksum,
                      .grant = wire.grant - uint32_t{1},
                      .source_count = wire.source_count};
  VERBENA_ASSIGN_OR_RETURN(RemoteRange landing, FromWire(wire.landing, "a landing"));
  request.landing = landing;
  uint64_t sum = 0;
  for (uint32_t i = 0; i < request.source_count; ++i) {
    VERBENA_ASSIGN_OR_RETURN(
        RemoteRange source,
        ParseLanding(body + sizeof(WireRequest) + i * sizeof(WireRange), sizeof(WireRange)));
    if (source.bytes == 0) return absl::InvalidArgumentError("an empty piece of a request's bulk");
    request.sources[i] = source;
    sum += source.bytes;
  }
  const bool granted = request.grant != RequestBulk::kNoGrant;
  if (granted && (request.payload_bytes == 0 || request.message_bytes > 0 || sum > 0)) {
    return absl::InvalidArgumentError(
        fmt::format("a grant was used for a payload of {} bytes, a message of {}, and pieces of {}",
                    request.payload_bytes, request.message_bytes, sum));
  }
  if (!granted && !request.payload_in_frame &&
      sum != request.payload_bytes + request.message_bytes) {
    return absl::InvalidArgumentError(
        fmt::format("pieces of {} bytes for a payload of {} and a message of {}", sum,
                    request.payload_bytes, request.message_bytes));
  }
  return request;
}

void ResponseBulk::Encode(char* to) const {
  VERBENA_DCHECK(!payload_in_frame || !payload_in_asked) << "a payload in two places";
  const WireResponse response{.payload_bytes = payload_bytes,
                              .message_bytes = message_bytes,
                              .checksum = checksum,
                              .payload_place = payload_in_frame   ? kInFrame
                                               : payload_in_asked ? kInAsked
                                                                  : kInLanding,
                              .has_payload = has_payload ? uint16_t{1} : uint16_t{0}};
  std::memcpy(to, &response, sizeof(response));
}

absl::StatusOr<ResponseBulk> ParseResponseBulk(const char* body, size_t bytes) {
  VERBENA_ASSIGN_OR_RETURN(WireResponse wire, Copy<WireResponse>(body, bytes, "a response's bulk"));
  if (IsTooLarge(wire.payload_bytes, wire.message_bytes) || wire.payload_place > kInFrame) {
    return TooLarge("a response", wire.payload_bytes, wire.message_bytes);
  }
  VERBENA_RETURN_IF_ERROR(CheckPresence(wire.has_payload, wire.payload_bytes));
  if (wire.payload_place == kInFrame) {
    VERBENA_RETURN_IF_ERROR(CheckInFrame(wire.payload_bytes, bytes - sizeof(WireResponse)));
  }
  return ResponseBulk{.has_payload = wire.has_payload != 0,
                      .payload_bytes = wire.payload_bytes,
                      .message_bytes = wire.message_bytes,
                      .checksum = wire.checksum,
                      .payload_in_asked = wire.payload_place == kInAsked,
                      .payload_in_frame = wire.payload_place == kInFrame};
}

void LandingRequest::Encode(char* to) const {
  const WireLandingRequest wire{.payload_bytes = payload_bytes, .message_bytes = message_bytes};
  std::memcpy(to, &wire, sizeof(wire));
}

absl::StatusOr<LandingRequest> ParseLandingRequest(const char* body, size_t bytes) {
  VERBENA_ASSIGN_OR_RETURN(WireLandingRequest wire,
                           Copy<WireLandingRequest>(body, bytes, "a request for a landing"));
  if (bytes != sizeof(wire) || wire.payload_bytes + wire.message_bytes == 0 ||
      IsTooLarge(wire.payload_bytes, wire.message_bytes)) {
    return TooLarge("a request for a landing", wire.payload_bytes, wire.message_bytes);
  }
  return LandingRequest{.payload_bytes = wire.payload_bytes, .message_bytes = wire.message_bytes};
}

void EncodeLanding(const RemoteRange& landing, char* to) {
  const WireRange wire = ToWire(landing);
  std::memcpy(to, &wire, sizeof(wire));
}

absl::StatusOr<RemoteRange> ParseLanding(const char* body, size_t bytes) {
  VERBENA_ASSIGN_OR_RETURN(WireRange wire, Copy<WireRange>(body, bytes, "a landing"));
  return FromWire(wire, "a landing");
}

}  // namespace verbena::internal
