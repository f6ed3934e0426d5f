#include "verbena/transport/preload/cm_message.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/status.h"

namespace verbena::internal::preload {
namespace {

constexpr uint32_t kMagic = 0x5662434d;  // "VbCM"
constexpr uint8_t kVersion = 1;
constexpr uint8_t kReliableConnected = 2;  // IBV_QPT_RC
constexpr uint32_t kMost24Bits = 0xffffff;
constexpr uint8_t kMostRetries = 7;
constexpr uint8_t kSmallestMtu = 1;
constexpr uint8_t kLargestMtu = 5;

// Offsets of the fields.
constexpr size_t kAtVersion = 4;
constexpr size_t kAtKind = 5;
constexpr size_t kAtTransport = 6;
constexpr size_t kAtFlowControl = 7;
constexpr size_t kAtSrq = 8;
constexpr size_t kAtRetryCount = 9;
constexpr size_t kAtRnrRetryCount = 10;
constexpr size_t kAtZero = 11;
constexpr size_t kAtGid = 16;
constexpr size_t kAtLid = 32;
constexpr size_t kAtReason = 34;
constexpr size_t kAtQpn = 36;
constexpr size_t kAtPsn = 40;
constexpr size_t kAtResponderResources = 44;
constexpr size_t kAtInitiatorDepth = 45;
constexpr size_t kAtMtu = 46;
constexpr size_t kAtPrivateBytes = 47;
constexpr size_t kAtMoreZero = 48;
constexpr size_t kAtPrivateData = 60;
static_assert(kAtPrivateData + kCmReplyPrivateBytes == kCmMessageBytes);

void Store(uint8_t* to, uint32_t value, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) to[i] = static_cast<uint8_t>(value >> (8 * (bytes - 1 - i)));
}

uint32_t Load(const uint8_t* from, size_t bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < bytes; ++i) value = value << 8 | from[i];
  return value;
}

absl::Status Wrong(std::string_view field, uint32_t value, std::string_view expected) {
  return absl::InvalidArgumentError(
      fmt::format("connection message: {} is {}, but must be {}", field, value, expected));
}

absl::Status AtMost(std::string_view field, uint32_t value, uint32_t most) {
  if (value <= most) return absl::OkStatus();
  return Wrong(field, value, fmt::format("at most {}", most));
}

bool AllZero(std::span<const uint8_t> bytes) {
  return std::ranges::all_of(bytes, [](uint8_t byte) { return byte == 0; });
}

// Checks what only some kinds carry, and the private data's length.
absl::Status CheckKind(const CmMessage& message) {
  const bool connects = message.kind == CmKind::kRequest || message.kind == CmKind::kReply;
  CmMessage bare;
  bare.kind = message.kind;
  bare.reason = message.reason;
  bare.private_bytes = message.private_bytes;
  bare.private_data = message.private_data;
  if (!connects && message != bare) {
    return Wrong("kind", static_cast<uint32_t>(message.kind),
                 "a request's or a reply's: it describes a queue pair");
  }
  if (connects && (message.mtu < kSmallestMtu || message.mtu > kLargestMtu)) {
    return Wrong("MTU", message.mtu, "from 1 (256 bytes) to 5 (4,096 bytes)");
  }
  if (message.kind != CmKind::kReject && message.reason != 0) {
    return Wrong("reason", message.reason, "0 in a message that rejects nothing");
  }
  return AtMost("private data's length", message.private_bytes,
                static_cast<uint32_t>(CmPrivateLimit(message.kind)));
}

absl::Status CheckNumbers(const CmMessage& message) {
  VERBENA_RETURN_IF_ERROR(AtMost("queue pair number", message.qpn, kMost24Bits));
  VERBENA_RETURN_IF_ERROR(AtMost("PSN", message.psn, kMost24Bits));
  VERBENA_RETURN_IF_ERROR(AtMost("retry count", message.retry_count, kMostRetries));
  return AtMost("RNR retry count", message.rnr_retry_count, kMostRetries);
}

// Checks the bytes that are the same in all messages, and those that hold one of two values.
absl::Status CheckFrame(std::span<const uint8_t, kCmMessageBytes> bytes) {
  if (const uint32_t magic = Load(bytes.data(), 4); magic != kMagic) {
    return Wrong("magic", magic, fmt::format("{}", kMagic));
  }
  if (bytes[kAtVersion] != kVersion) {
    return Wrong("version", bytes[kAtVersion],
                 fmt::format("{}: run the same version of Verbena on both sides", kVersion));
  }
  const uint8_t kind = bytes[kAtKind];
  if (kind < static_cast<uint8_t>(CmKind::kRequest) ||
      kind > static_cast<uint8_t>(CmKind::kDisconnect)) {
    return Wrong("kind", kind, "from 1 to 5");
  }
  if (bytes[kAtTransport] != kReliableConnected) {
    return Wrong("transport", bytes[kAtTransport], "2 (RC)");
  }
  if (bytes[kAtFlowControl] > 1) return Wrong("flow control", bytes[kAtFlowControl], "0 or 1");
  if (bytes[kAtSrq] > 1) return Wrong("SRQ", bytes[kAtSrq], "0 or 1");
  if (!AllZero(bytes.subspan(kAtZero, kAtGid - kAtZero)) ||
      !AllZero(bytes.subspan(kAtMoreZero, kAtPrivateData - kAtMoreZero))) {
    return absl::InvalidArgumentError("connection message: reserved bytes are not zero");
  }
  return absl::OkStatus();
}

}  // namespace

size_t CmPrivateLimit(CmKind kind) {
  switch (kind) {
    case CmKind::kRequest:
      return kCmRequestPrivateBytes;
    case CmKind::kReply:
      return kCmReplyPrivateBytes;
    case CmKind::kReject:
      return kCmRejectPrivateBytes;
    case CmKind::kReady:
    case CmKind::kDisconnect:
      return 0;
  }
  return 0;
}

std::array<uint8_t, kCmMessageBytes> EncodeCmMessage(const CmMessage& message) {
  VERBENA_CHECK(CheckNumbers(message).ok() && CheckKind(message).ok())
      << "kind " << static_cast<int>(message.kind) << ", queue pair " << message.qpn;
  std::array<uint8_t, kCmMessageBytes> bytes = {};
  Store(bytes.data(), kMagic, 4);
  bytes[kAtVersion] = kVersion;
  bytes[kAtKind] = static_cast<uint8_t>(message.kind);
  bytes[kAtTransport] = kReliableConnected;
  bytes[kAtFlowControl] = message.flow_control ? 1 : 0;
  bytes[kAtSrq] = message.srq ? 1 : 0;
  bytes[kAtRetryCount] = message.retry_count;
  bytes[kAtRnrRetryCount] = message.rnr_retry_count;
  std::ranges::copy(message.gid, bytes.begin() + kAtGid);
  Store(&bytes[kAtLid], message.lid, 2);
  Store(&bytes[kAtReason], message.reason, 2);
  Store(&bytes[kAtQpn], message.qpn, 4);
  Store(&bytes[kAtPsn], message.psn, 4);
  bytes[kAtResponderResources] = message.responder_resources;
  bytes[kAtInitiatorDepth] = message.initiator_depth;
  bytes[kAtMtu] = message.mtu;
  bytes[kAtPrivateBytes] = message.private_bytes;
  std::copy_n(message.private_data.begin(), message.private_bytes, bytes.begin() + kAtPrivateData);
  return bytes;
}

absl::StatusOr<CmMessage> DecodeCmMessage(std::span<const uint8_t, kCmMessageBytes> bytes) {
  VERBENA_RETURN_IF_ERROR(CheckFrame(bytes));
  CmMessage message;
  message.kind = static_cast<CmKind>(bytes[kAtKind]);
  message.flow_control = bytes[kAtFlowControl] == 1;
  message.srq = bytes[kAtSrq] == 1;
  message.retry_count = bytes[kAtRetryCount];
  message.rnr_retry_count = bytes[kAtRnrRetryCount];
  std::ranges::copy(bytes.subspan(kAtGid, message.gid.size()), message.gid.begin());
  message.lid = static_cast<uint16_t>(Load(&bytes[kAtLid], 2));
  message.reason = static_cast<uint16_t>(Load(&bytes[kAtReason], 2));
  message.qpn = Load(&bytes[kAtQpn], 4);
  message.psn = Load(&bytes[kAtPsn], 4);
  message.responder_resources = bytes[kAtResponderResources];
  message.initiator_depth = bytes[kAtInitiatorDepth];
  message.mtu = bytes[kAtMtu];
  message.private_bytes = bytes[kAtPrivateBytes];
  VERBENA_RETURN_IF_ERROR(CheckNumbers(message));
  VERBENA_RETURN_IF_ERROR(CheckKind(message));
  // CheckKind bounds the length; this keeps the copy inside even if a limit is raised by mistake.
  const size_t used = std::min<size_t>(message.private_bytes, message.private_data.size());
  std::ranges::copy(bytes.subspan(kAtPrivateData, used), message.private_data.begin());
  if (!AllZero(bytes.subspan(kAtPrivateData + used))) {
    return absl::InvalidArgumentError(
        "connection message: bytes behind the private data are not zero");
  }
  return message;
}

}  // namespace verbena::internal::preload
