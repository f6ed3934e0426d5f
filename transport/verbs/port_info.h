// PortInfo: one port of one RDMA device, with its GIDs, as choosing between ports needs it.
//
// Plain values, so that the choice is a pure function (gid_choice.h, port_choice.h) and can be
// tested without a device. ListPorts() reads them; it opens each device for a moment.

#ifndef VERBENA_TRANSPORT_VERBS_PORT_INFO_H_
#define VERBENA_TRANSPORT_VERBS_PORT_INFO_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>
#include <vector>

namespace verbena::internal {

enum class GidType : uint8_t { kInfiniBand, kRoceV1, kRoceV2, kIwarp };

const char* GidTypeName(GidType type);

struct GidInfo {
  int index = 0;
  ibv_gid gid = {};
  GidType type = GidType::kInfiniBand;
  // The interface that it belongs to, as this network namespace knows it; "" if it belongs to none
  // (InfiniBand), or to one of another namespace.
  std::string netdev = {};
  bool other_namespace = false;
};

enum class PortLink : uint8_t { kInfiniBand, kEthernet, kIwarp };

struct PortInfo {
  std::string device;
  uint8_t port = 1;
  PortLink link = PortLink::kEthernet;
  bool active = false;
  std::vector<GidInfo> gids = {};  // those that exist, by index
};

// Every port of every device, in the order in which libibverbs lists them. Empty if the kernel has
// no RDMA; a device that cannot be opened is left out.
std::vector<PortInfo> ListPorts();

// "::ffff:10.0.0.1" as "10.0.0.1", others as IPv6 addresses.
std::string FormatGid(const ibv_gid& gid);

// "rxe0 port 1 (active, eth0 10.0.0.1)": for messages that list what there is.
std::string DescribePort(const PortInfo& port);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_VERBS_PORT_INFO_H_
