// OpenDevices: the devices that a runtime's option names.
//
//   "soft"        the software device over shared memory: processes of this host and user
//   "soft:tcp…"   the software device over TCP; "soft:PORT" is both (SoftName)
//   "rdma"        the first RDMA port that is active; iWARP only if there is no other
//   "rdma:NAME"   that RDMA device, interface or address (transport/verbs/port.h)
//   "auto", ""    what the environment variable VERBENA_DEVICE says; without it the software device
//                 and the first active port of each kind (InfiniBand, RoCE, iWARP); a port that
//                 cannot be opened is left out. The software device over TCP is kept in reserve:
//                 the runtime opens it when a link needs it. If the process may not share memory,
//                 TCP is opened in place of the software device, and the log says why
//
// Any other word is taken for the NAME of an RDMA device.

#ifndef VERBENA_RPC_SHARD_OPEN_DEVICE_H_
#define VERBENA_RPC_SHARD_OPEN_DEVICE_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "verbena/transport/base/export.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal {

// The name of the software device over TCP.
inline constexpr char kTcpDeviceName[] = "tcp0";

// Opens one device, or several of different kinds. Logs the choice; "auto" also logs the devices
// that it left out. An error says if VERBENA_DEVICE gave the name.
absl::StatusOr<std::vector<std::unique_ptr<Device>>> OpenDevices(const std::string& name);

// Whether `name`, or VERBENA_DEVICE in its place, is "auto", which leaves the choice to
// OpenDevices().
bool IsAutomatic(const std::string& name);

// A name by which OpenDevice() opens `device` again. OpenDevices(name) gave `device`.
std::string NameToReopen(const std::string& name, const Device& device);

// The first RDMA device that OpenDevices() gives, or its first device if none is RDMA: for programs
// that use one device.
VERBENA_EXPORT absl::StatusOr<std::unique_ptr<Device>> OpenDevice(const std::string& name);

// SoftName: the device names that mean the software device, taken apart.
//
//   "soft"                   shared memory: processes of this host and user
//   "soft:tcp"               TCP, at any free port of every address
//   "soft:tcp:PORT"          TCP, at that port of every address
//   "soft:tcp:ADDRESS:PORT"  TCP, at that address and port; "soft:tcp:[ADDRESS]:PORT" for IPv6
//   "soft:PORT"              shared memory, and TCP at that port: two devices
//
// PORT is 0 to 65535; 0 takes a free one. ADDRESS is numeric.
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

#endif  // VERBENA_RPC_SHARD_OPEN_DEVICE_H_
