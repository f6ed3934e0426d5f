// OpenDevice: the device that a runtime's option names.
//
//   "soft"        the software device, which reaches processes of this host and user
//   "rdma"        the first RDMA port that is active
//   "rdma:NAME"   that RDMA device, interface or address (transport/verbs/port_choice.h)
//   "auto", ""    what the environment variable VERBENA_DEVICE says; without it "rdma" where a port
//                 is active (iWARP apart) and can be opened, else "soft"
//
// Any other word is taken for the NAME of an RDMA device.

#ifndef VERBENA_RPC_OPEN_DEVICE_H_
#define VERBENA_RPC_OPEN_DEVICE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "verbena/transport/device/device.h"

namespace verbena {

// What was chosen is logged. "auto" logs why there is no RDMA, too, if there is a device.
absl::StatusOr<std::unique_ptr<Device>> OpenDevice(const std::string& name);

}  // namespace verbena

#endif  // VERBENA_RPC_OPEN_DEVICE_H_
