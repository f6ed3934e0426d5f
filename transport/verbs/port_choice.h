// ChoosePort: the port and GID that a user means by the name of a device.
//
//   ""             the first active port that has a GID (iWARP last: it needs rdma_cm)
//   "mlx5_0"       that device, its first active port
//   "mlx5_0:2"     port 2 of it
//   "mlx5_0:2:3"   GID 3 of port 2
//   "eth0"         the port behind that network interface
//   "10.0.0.1"     the port that has that address; IPv6 as well
//
// Pure functions of what ListPorts() found.

#ifndef VERBENA_TRANSPORT_VERBS_PORT_CHOICE_H_
#define VERBENA_TRANSPORT_VERBS_PORT_CHOICE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "verbena/transport/verbs/port_info.h"

namespace verbena::internal {

struct PortChoice {
  std::string device;
  uint8_t port = 1;
  int gid_index = 0;
  bool roce_v1 = false;
};

// NOT_FOUND lists the devices that there are, with their interfaces and addresses. UNAVAILABLE when
// the port is down, with the command that brings it up. Otherwise the error of ChooseGid().
absl::StatusOr<PortChoice> ChoosePort(const std::vector<PortInfo>& ports, const std::string& name);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_VERBS_PORT_CHOICE_H_
