#include "verbena/transport/connect/peer_address.h"

#include <arpa/inet.h>

#include <cstring>

#include "absl/status/statusor.h"
#include "verbena/transport/base/host_port.h"

namespace verbena::internal {
namespace {

constexpr uint8_t kIpv4Loopback = 127;

}  // namespace

std::optional<in6_addr> PeerAddress(const std::string& peer) {
  const absl::StatusOr<HostPort> parsed = ParseHostPort(peer);
  if (!parsed.ok()) return std::nullopt;
  in_addr ipv4{};
  in6_addr address{};
  if (inet_pton(AF_INET, parsed->host.c_str(), &ipv4) == 1) {
    address.s6_addr[10] = address.s6_addr[11] = 0xff;
    std::memcpy(&address.s6_addr[12], &ipv4, sizeof(ipv4));
    return address;
  }
  if (inet_pton(AF_INET6, parsed->host.c_str(), &address) == 1) return address;
  return std::nullopt;
}

bool IsLoopback(const in6_addr& address) {
  if (IN6_IS_ADDR_V4MAPPED(&address)) return address.s6_addr[12] == kIpv4Loopback;
  return IN6_IS_ADDR_LOOPBACK(&address);
}

bool IsUnspecified(const in6_addr& address) {
  if (!IN6_IS_ADDR_V4MAPPED(&address)) return IN6_IS_ADDR_UNSPECIFIED(&address);
  return address.s6_addr[12] == 0;  // 0.0.0.0/8: "this host"
}

bool IsBeyondLoopback(const std::string& peer) {
  const std::optional<in6_addr> address = PeerAddress(peer);
  return address.has_value() && !IsLoopback(*address) && !IsUnspecified(*address);
}

std::array<uint8_t, 16> ReachableAddress(const std::array<uint8_t, 16>& announced,
                                         const std::string& peer) {
  in6_addr address{};
  std::memcpy(&address, announced.data(), announced.size());
  const bool useless = IsLoopback(address) || IsUnspecified(address);
  if (!useless || !IsBeyondLoopback(peer)) return announced;
  const in6_addr reached = *PeerAddress(peer);
  std::array<uint8_t, 16> taken{};
  std::memcpy(taken.data(), &reached, taken.size());
  return taken;
}

}  // namespace verbena::internal
