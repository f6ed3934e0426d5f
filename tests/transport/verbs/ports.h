// Ports as a host may have them, for tests of how a port and its GID are chosen.

#ifndef VERBENA_TESTS_TRANSPORT_VERBS_PORTS_H_
#define VERBENA_TESTS_TRANSPORT_VERBS_PORTS_H_

#include <arpa/inet.h>

#include <string>
#include <utility>
#include <vector>

#include "verbena/transport/verbs/port.h"

namespace verbena::internal {

// `address` is IPv4 or IPv6.
inline ibv_gid Gid(const std::string& address) {
  ibv_gid gid{};
  if (inet_pton(AF_INET6, address.c_str(), gid.raw) == 1) return gid;
  gid.raw[10] = gid.raw[11] = 0xff;
  inet_pton(AF_INET, address.c_str(), gid.raw + 12);
  return gid;
}

// A RoCE port as mlx5 lists it: each address of the interface as v1 and as v2.
inline PortInfo RocePort(std::string device, const std::string& netdev,
                         const std::vector<std::string>& addresses) {
  PortInfo port{.device = std::move(device), .active = true};
  for (const std::string& address : addresses) {
    for (GidType type : {GidType::kRoceV1, GidType::kRoceV2}) {
      port.gids.push_back({.index = static_cast<int>(port.gids.size()),
                           .gid = Gid(address),
                           .type = type,
                           .netdev = netdev});
    }
  }
  return port;
}

inline PortInfo InfiniBandPort(std::string device, uint8_t number) {
  return {.device = std::move(device),
          .port = number,
          .link = PortLink::kInfiniBand,
          .active = true,
          .gids = {{.gid = Gid("fe80::5054:ff:fe12:3456")}}};
}

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_TRANSPORT_VERBS_PORTS_H_
