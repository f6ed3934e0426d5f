#include "verbena/transport/connect/rdma_cm_private_data.h"

namespace verbena::internal {
namespace {

constexpr uint32_t kMagic = 0x4d435256;  // "VRCM" in little-endian order
constexpr uint8_t kVersion = 1;
constexpr size_t kTokenOffset = 8;

void Append(std::string& bytes, uint64_t value, int size) {
  for (int i = 0; i < size; ++i) bytes.push_back(static_cast<char>((value >> (8 * i)) & 0xff));
}

uint64_t Read(std::string_view bytes, size_t offset, int size) {
  uint64_t value = 0;
  for (int i = 0; i < size; ++i) {
    const auto byte = static_cast<uint8_t>(bytes[offset + static_cast<size_t>(i)]);
    value |= static_cast<uint64_t>(byte) << (8 * i);
  }
  return value;
}

bool IsOurs(std::string_view bytes, size_t size) {
  return bytes.size() >= size && Read(bytes, 0, 4) == kMagic && Read(bytes, 4, 1) == kVersion;
}

}  // namespace

std::string EncodeConnectData(uint64_t token) {
  std::string bytes;
  Append(bytes, kMagic, 4);
  Append(bytes, kVersion, 1);
  Append(bytes, 0, 3);
  Append(bytes, token, 8);
  return bytes;
}

std::optional<uint64_t> ParseConnectData(std::string_view bytes) {
  if (!IsOurs(bytes, kConnectDataBytes)) return std::nullopt;
  return Read(bytes, kTokenOffset, 8);
}

const char* RejectReasonText(RejectReason reason) {
  switch (reason) {
    case RejectReason::kOther:
      break;
    case RejectReason::kMalformed:
      return "the server does not understand the request's private data";
    case RejectReason::kUnknownToken:
      return "the server does not know the token: it was used before, or came too late";
    case RejectReason::kWrongQueuePair:
      return "the request is for another queue pair than the handshake named";
    case RejectReason::kGone:
      return "the server gave up waiting for it";
  }
  return "the server refuses it";
}

std::string EncodeRejectData(RejectReason reason) {
  std::string bytes;
  Append(bytes, kMagic, 4);
  Append(bytes, kVersion, 1);
  Append(bytes, static_cast<uint8_t>(reason), 1);
  Append(bytes, 0, 2);
  return bytes;
}

std::optional<RejectReason> ParseRejectData(std::string_view bytes) {
  if (!IsOurs(bytes, kRejectDataBytes)) return std::nullopt;
  const uint64_t reason = Read(bytes, 5, 1);
  const bool known = reason <= static_cast<uint64_t>(RejectReason::kGone);
  return known ? static_cast<RejectReason>(reason) : RejectReason::kOther;
}

}  // namespace verbena::internal
