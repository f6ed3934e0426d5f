// SoftName: the device names that mean the software device, taken apart.
//
//   "soft"                   shared memory: processes of this host and user
//   "soft:tcp"               TCP, at any free port of every address
//   "soft:tcp:PORT"          TCP, at that port of every address
//   "soft:tcp:ADDRESS:PORT"  TCP, at that address and port; "soft:tcp:[ADDRESS]:PORT" for IPv6
//   "soft:PORT"              shared memory, and TCP at that port: two devices
//
// PORT is 0 to 65535; 0 takes a free one. ADDRESS is numeric.

#ifndef VERBENA_RPC_SHARD_SOFT_NAME_H_
#define VERBENA_RPC_SHARD_SOFT_NAME_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal {

struct SoftName {
  bool shared_memory = false;
  std::optional<TcpWireOptions> tcp = std::nullopt;
};

// "soft", or anything that begins with "soft:".
bool IsSoftName(const std::string& name);

// INVALID_ARGUMENT names the text, what is wrong with it, and the forms. Precondition:
// IsSoftName(name).
absl::StatusOr<SoftName> ParseSoftName(const std::string& name);

// The name of the TCP part alone.
std::string TcpName(const TcpWireOptions& tcp);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SHARD_SOFT_NAME_H_
