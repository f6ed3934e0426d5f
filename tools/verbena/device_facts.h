// DeviceFacts: the RDMA devices of this machine as /sys/class/infiniband shows them, and the result
// of opening each.
//
// Reading /sys needs no permission and no driver library, so devices that cannot be opened are seen
// too.

#ifndef VERBENA_TOOLS_VERBENA_DEVICE_FACTS_H_
#define VERBENA_TOOLS_VERBENA_DEVICE_FACTS_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "verbena/transport/device/device.h"

namespace verbena::doctor {

struct GidFacts {
  int index = 0;
  std::string gid;        // "0000:0000:0000:0000:0000:ffff:0a00:0001"
  std::string address;    // the same as an IP address: "10.0.0.1"
  std::string type;       // "RoCE v2", "IB/RoCE v1"
  std::string interface;  // "eth0"
};

struct PortFacts {
  int port = 1;
  std::string state;       // "ACTIVE"
  std::string link_layer;  // "Ethernet", "InfiniBand"
  std::string rate;        // "100 Gb/sec (4X EDR)"
  uint64_t lid = 0;
  int mtu_bytes = 0;           // active, of RDMA; 0: not known
  std::vector<GidFacts> gids;  // only GIDs that are set
};

struct DeviceFacts {
  std::string name;
  std::string node_type;  // "CA", "RNIC" (iWARP)
  std::string firmware;
  int numa_node = -1;
  std::vector<PortFacts> ports;

  // The result of opening the device.
  absl::Status opened = absl::UnknownError("not tried");
  std::optional<ibv_device_attr> attributes;
  internal::DeviceCapabilities capabilities;
};

// Reads /sys below `root`. Sorted by name.
std::vector<DeviceFacts> ReadDeviceFacts(const std::string& root);

// Opens the device, and fills in `opened`, `attributes`, `capabilities` and the ports' MTU.
void OpenAndProbe(DeviceFacts& device);

}  // namespace verbena::doctor

#endif  // VERBENA_TOOLS_VERBENA_DEVICE_FACTS_H_
