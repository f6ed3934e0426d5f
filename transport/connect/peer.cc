#include "verbena/transport/connect/peer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/random.h>

#include <cerrno>
#include <cstring>
#include <optional>

#include "absl/status/statusor.h"
#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/socket.h"

namespace verbena::internal {
namespace {

constexpr uint8_t kIpv4Loopback = 127;

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

RuntimeId RuntimeId::Random() {
  RuntimeId id;
  ssize_t got = 0;
  do {
    got = getrandom(id.bytes.data(), id.bytes.size(), 0);
  } while (got < 0 && errno == EINTR);
  // The kernel never cuts a request of up to 256 bytes short (getrandom(2)).
  VERBENA_CHECK(got == static_cast<ssize_t>(kBytes)) << "getrandom: " << got << ", errno " << errno;
  return id;
}

std::string RuntimeId::ToString() const {
  std::string text;
  for (uint8_t byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

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
