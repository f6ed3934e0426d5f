#include "verbena/transport/connect/claimed_address.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>

#include <cstring>
#include <optional>

#include "absl/status/statusor.h"
#include "verbena/transport/connect/host_port.h"

namespace verbena::internal {
namespace {

constexpr uint8_t kIpv4Loopback = 127;

// An IPv4 address is mapped into IPv6, as in a GID.
std::optional<in6_addr> AddressOf(const std::string& peer) {
  const absl::StatusOr<HostPort> parsed = ParseHostPort(peer);
  if (!parsed.ok()) return std::nullopt;
  in_addr ipv4{};
  in6_addr address{};
  if (inet_pton(AF_INET, parsed->host.c_str(), &ipv4) == 1) {
    address.s6_addr[10] = address.s6_addr[11] = 0xff;
    std::memcpy(&address.s6_addr[12], &ipv4, sizeof(ipv4));
    return address;
  }
  // An address with its interface behind it ("fe80::1%eth0") does not parse. Only link-local
  // addresses have one, and they are not compared.
  if (inet_pton(AF_INET6, parsed->host.c_str(), &address) == 1) return address;
  return std::nullopt;
}

bool IsComparable(const in6_addr& address) {
  if (IN6_IS_ADDR_V4MAPPED(&address)) return address.s6_addr[12] != kIpv4Loopback;
  return !IN6_IS_ADDR_LOOPBACK(&address) && !IN6_IS_ADDR_LINKLOCAL(&address);
}

std::string TextOf(const in6_addr& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (IN6_IS_ADDR_V4MAPPED(&address)) {
    inet_ntop(AF_INET, &address.s6_addr[12], text, sizeof(text));
  } else {
    inet_ntop(AF_INET6, &address, text, sizeof(text));
  }
  return text;
}

}  // namespace

absl::Status CheckClaimedAddress(const std::string& peer, const LinkParameters& offer) {
  if (offer.kind != LinkKind::kRoce) return absl::OkStatus();
  const std::optional<in6_addr> from = AddressOf(peer);
  in6_addr claimed{};
  std::memcpy(&claimed, offer.gid.data(), sizeof(claimed));
  if (!from.has_value() || !IsComparable(*from) || !IsComparable(claimed)) return absl::OkStatus();
  if (IN6_IS_ADDR_V4MAPPED(&*from) != IN6_IS_ADDR_V4MAPPED(&claimed)) return absl::OkStatus();
  if (std::memcmp(&*from, &claimed, sizeof(claimed)) == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(fmt::format(
      "{} claims the GID of {}, but connects from another address", peer, TextOf(claimed)));
}

}  // namespace verbena::internal
