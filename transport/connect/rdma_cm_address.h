// The choice of the IP address of this host that stands for a port of an RDMA device: rdma_cm names
// devices by addresses.
//
// The choice is a pure function of the interfaces' addresses and the port's GID; ListAddresses()
// reads them from the kernel. Only rdma_bind_addr tells whether the port really has the address.

#ifndef VERBENA_TRANSPORT_CONNECT_RDMA_CM_ADDRESS_H_
#define VERBENA_TRANSPORT_CONNECT_RDMA_CM_ADDRESS_H_

#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "verbena/transport/connect/link_parameters.h"

namespace verbena::internal {

// IPv6, or IPv4 mapped.
using IpAddress = std::array<uint8_t, 16>;

struct HostAddress {
  std::string interface;
  std::vector<uint8_t> hardware;  // the interface's; empty if it has none
  IpAddress ip{};
};

// Lists the addresses of the interfaces that are up, in the kernel's order; neither loopback nor
// link-local.
std::vector<HostAddress> ListAddresses();

// Returns the addresses that may be the port's: first the GID itself (RoCE), then those of the
// interface whose hardware address the GID was made of (iWARP, IPoIB). If there is none, returns
// all.
std::vector<HostAddress> RankAddresses(const std::vector<HostAddress>& all, LinkKind kind,
                                       const ibv_gid& gid);

bool IsIpv4(const IpAddress& ip);
sockaddr_storage SocketAddress(const IpAddress& ip, uint16_t port);
// "10.0.0.1" or "fd00::1".
std::string FormatIp(const IpAddress& ip);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_CONNECT_RDMA_CM_ADDRESS_H_
