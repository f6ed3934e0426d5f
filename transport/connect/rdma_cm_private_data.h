// The private data of rdma_cm's messages: what a link's two sides say inside them (proto/WIRE.md).
//
// InfiniBand and RoCE pad private data with zeros to a length of their own, iWARP does not. So
// readers take the bytes that they know, and ignore the rest. Pure functions over any bytes.

#ifndef VERBENA_TRANSPORT_CONNECT_RDMA_CM_PRIVATE_DATA_H_
#define VERBENA_TRANSPORT_CONNECT_RDMA_CM_PRIVATE_DATA_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace verbena::internal {

// Bytes of our private data. InfiniBand leaves 56 in a request, and 148 in a rejection.
inline constexpr size_t kConnectDataBytes = 16;
inline constexpr size_t kRejectDataBytes = 8;

// The private data of a connection request: the token that the server gave out for it.
std::string EncodeConnectData(uint64_t token);
// nullopt if the bytes are not ours, or of another version.
std::optional<uint64_t> ParseConnectData(std::string_view bytes);

// The reason in a rejection's private data. The values are those of the wire; a reader takes any
// other for kOther.
enum class RejectReason : uint8_t {
  kOther = 0,
  kMalformed = 1,     // the request's private data is not what proto/WIRE.md says
  kUnknownToken = 2,  // never given out, used before, or out of time
  kWrongQueuePair = 3,
  kGone = 4,  // the server no longer waits for the request
};

const char* RejectReasonText(RejectReason reason);

std::string EncodeRejectData(RejectReason reason);
// nullopt if the bytes are not ours.
std::optional<RejectReason> ParseRejectData(std::string_view bytes);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_CONNECT_RDMA_CM_PRIVATE_DATA_H_
