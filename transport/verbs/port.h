// ChoosePort: the port and GID that a user means by the name of a device.
//
//   ""             the first active port that has a GID (iWARP last: it needs rdma_cm)
//   "mlx5_0"       that device, its first active port
//   "mlx5_0:2"     port 2 of it
//   "mlx5_0:2:3"   GID 3 of port 2
//   "eth0"         the port behind that network interface
//   "10.0.0.1"     the port that has that address; IPv6 as well
//
// All but ListPorts(), PortsOf() and ReadGid() are pure functions.

#ifndef VERBENA_TRANSPORT_VERBS_PORT_H_
#define VERBENA_TRANSPORT_VERBS_PORT_H_

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "verbena/transport/base/socket.h"

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

// PortInfo: one port of one RDMA device, with its GIDs, as choosing between ports needs it.
//
// Plain values, so that the choice is a pure function (ChoosePort) and can be tested
// without a device. PortsOf() reads them of an open device; ListPorts() opens each device for a
// moment.
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

// Every port of the device of `context`, which is open. Opens nothing.
std::vector<PortInfo> PortsOf(ibv_context* context);

// The GID that a RoCE port has for an interface without any address: fe80::/64, and the hardware
// address as an EUI-64.
IpAddress DefaultGid(const std::array<uint8_t, 6>& hardware);

// The GIDs that the interfaces of this network namespace may give a RoCE port: their addresses, and
// the default GIDs of their hardware. Empty if the kernel does not tell.
std::vector<IpAddress> GidsOfInterfaces();

// A GID of a port, as the kernel lists it. On RoCE it belongs to another network namespace unless
// its interface exists here and it is among `here`, the GidsOfInterfaces(). The interface's index
// alone proves nothing: the kernel tells the index that it has in its own namespace, and another
// interface may have the same here. If `here` is empty, the index must do.
GidInfo ReadGid(const ibv_gid_entry& entry, PortLink link, const std::vector<IpAddress>& here);

// "::ffff:10.0.0.1" as "10.0.0.1", others as IPv6 addresses.
std::string FormatGid(const ibv_gid& gid);

// "rxe0 port 1 (active, eth0 10.0.0.1)": for messages that list what there is.
std::string DescribePort(const PortInfo& port);

struct PortChoice {
  std::string device;
  uint8_t port = 1;
  int gid_index = 0;
  bool roce_v1 = false;
  // The indexes of the port's other RoCE GIDs that `name` and the version of RoCE admit.
  std::vector<int> alike = {};
};

// NOT_FOUND lists the devices that there are, with their interfaces and addresses. UNAVAILABLE when
// the port is down, with the command that brings it up. Otherwise the error of ChooseGid().
absl::StatusOr<PortChoice> ChoosePort(const std::vector<PortInfo>& ports, const std::string& name);

// ChooseGid: which GID of a port links use, when the user names none.
//
// A port has several GIDs. Each address of its interface has one, on RoCE one in a v1 and one in a
// v2 flavour. Interfaces in other network namespaces have more, through which nothing can be sent
// from here. ChooseGid is a pure function, and prefers a GID in this order:
//
//   1. not one of another network namespace
//   2. of the interface, with the address, or at the index that was asked for
//   3. RoCE v2 before v1: v2 is UDP, which routers and today's switches carry
//   4. routable before link-local: a link-local GID reaches one subnet, and needs a scope
//   5. IPv4 before IPv6: it is what hosts are usually addressed by
//   6. the lowest index

// Conditions on the GID; unset fields leave the choice open.
struct GidWish {
  std::string netdev = {};
  std::optional<ibv_gid> address = {};
  std::optional<int> index = {};
};

// NOT_FOUND lists the GIDs of the port; OUT_OF_RANGE names the index, which may never exceed 255,
// because no address handle can name more; FAILED_PRECONDITION when all that fits lies in other
// network namespaces.
absl::StatusOr<GidInfo> ChooseGid(const PortInfo& port, const GidWish& wish = {});

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_VERBS_PORT_H_
