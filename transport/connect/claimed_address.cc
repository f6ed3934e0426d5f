#include "verbena/transport/connect/claimed_address.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>

#include <cstring>
#include <optional>

#include "verbena/transport/connect/peer_address.h"

namespace verbena::internal {
namespace {

bool IsComparable(const in6_addr& address) {
  return !IsLoopback(address) && !IN6_IS_ADDR_LINKLOCAL(&address);
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
  const bool tcp = offer.kind == LinkKind::kTcp;
  if (offer.kind != LinkKind::kRoce && !tcp) return absl::OkStatus();
  const std::optional<in6_addr> from = PeerAddress(peer);
  in6_addr claimed{};
  std::memcpy(&claimed, offer.gid.data(), sizeof(claimed));
  // This side would connect to a port of its own host, whichever the peer has named.
  const bool own_host = IsLoopback(claimed) || IsUnspecified(claimed);
  if (tcp && own_host && IsBeyondLoopback(peer)) {
    return absl::PermissionDeniedError(
        fmt::format("{} claims the GID of {}, an address of this host", peer, TextOf(claimed)));
  }
  if (!from.has_value() || !IsComparable(*from) || !IsComparable(claimed)) return absl::OkStatus();
  if (IN6_IS_ADDR_V4MAPPED(&*from) != IN6_IS_ADDR_V4MAPPED(&claimed)) return absl::OkStatus();
  if (std::memcmp(&*from, &claimed, sizeof(claimed)) == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(fmt::format(
      "{} claims the GID of {}, but connects from another address", peer, TextOf(claimed)));
}

}  // namespace verbena::internal
