// CmMessage: the one message by which the connection managers of two processes connect queue pairs.
//
// Messages travel over a TCP connection of its own for each pair of ids. Each message is
// kCmMessageBytes long, in network byte order:
//
//   0   4  magic "VbCM"           32  2  LID                      46  1  port's active MTU
//   4   1  version, 1             34  2  reason of a rejection    47  1  private data's bytes
//   5   1  kind                   36  4  queue pair number        48 12  zero
//   6   1  transport, 2 (RC)      40  4  first PSN                60 196 private data, then zeros
//   7   1  flow control (0, 1)    44  1  responder resources
//   8   1  SRQ (0, 1)             45  1  initiator depth
//   9   1  retry count
//   10  1  RNR retry count
//   11  5  zero
//   16 16  GID
//
// Encode and decode are pure functions. Decode refuses every byte sequence that encode cannot make.

#ifndef VERBENA_TRANSPORT_PRELOAD_CM_MESSAGE_H_
#define VERBENA_TRANSPORT_PRELOAD_CM_MESSAGE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"

namespace verbena::internal::preload {

inline constexpr size_t kCmMessageBytes = 256;
// InfiniBand's limits, which programs know: those of a request, a reply and a rejection.
inline constexpr size_t kCmRequestPrivateBytes = 56;
inline constexpr size_t kCmReplyPrivateBytes = 196;
inline constexpr size_t kCmRejectPrivateBytes = 148;

enum class CmKind : uint8_t {
  kRequest = 1,     // connects; the first message of the active side
  kReply = 2,       // accepts; the passive side's queue pair can receive
  kReady = 3,       // the active side's queue pair can receive
  kReject = 4,      // ends an attempt; from either side
  kDisconnect = 5,  // ends a connection; from either side
};

// Reasons of a rejection: numbers of the InfiniBand specification, which programs print.
inline constexpr uint16_t kCmInvalidService = 8;
inline constexpr uint16_t kCmConsumerDefined = 28;
inline constexpr uint16_t kCmVendorOption = 35;

struct CmMessage {
  CmKind kind = CmKind::kRequest;
  // Requests and replies have these; zero in others.
  std::array<uint8_t, 16> gid = {};
  uint16_t lid = 0;
  uint32_t qpn = 0;  // 24 bits
  uint32_t psn = 0;  // 24 bits
  uint8_t mtu = 0;   // ibv_mtu
  uint8_t responder_resources = 0;
  uint8_t initiator_depth = 0;
  uint8_t retry_count = 0;      // at most 7
  uint8_t rnr_retry_count = 0;  // at most 7
  bool flow_control = false;
  bool srq = false;
  // Rejections have it; zero in others.
  uint16_t reason = 0;

  uint8_t private_bytes = 0;
  std::array<uint8_t, kCmReplyPrivateBytes> private_data = {};

  bool operator==(const CmMessage&) const = default;
};

// The most private data that a message of this kind carries.
size_t CmPrivateLimit(CmKind kind);

// Precondition: the fields are within the bounds above.
std::array<uint8_t, kCmMessageBytes> EncodeCmMessage(const CmMessage& message);

// InvalidArgument names the field that is wrong, and its value.
absl::StatusOr<CmMessage> DecodeCmMessage(std::span<const uint8_t, kCmMessageBytes> bytes);

}  // namespace verbena::internal::preload

#endif  // VERBENA_TRANSPORT_PRELOAD_CM_MESSAGE_H_
