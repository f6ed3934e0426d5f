#include "verbena/transport/connect/peer.h"

#include <sys/random.h>

#include <cerrno>
#include <optional>

#include "absl/status/statusor.h"
#include "fmt/format.h"
#include "verbena/transport/base/check.h"

namespace verbena::internal {
namespace {

bool IsComparable(const IpAddress& address) {
  return !IsLoopback(address) && !IsLinkLocal(address);
}

// None if `peer` is no IP address with a port, or an address that only counts on one interface
// ("fe80::1%eth0").
std::optional<IpAddress> PeerAddress(const std::string& peer) {
  const absl::StatusOr<HostPort> parsed = ParseHostPort(peer);
  return parsed.ok() ? ParseIp(parsed->host) : std::nullopt;
}

// 0.0.0.0/8, also mapped, and ::.
bool IsUnspecified(const IpAddress& address) {
  return IsWildcard(address) || (IsIpv4(address) && address[12] == 0);  // "this host"
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

bool IsBeyondLoopback(const std::string& peer) {
  const std::optional<IpAddress> address = PeerAddress(peer);
  return address.has_value() && !IsLoopback(*address) && !IsUnspecified(*address);
}

IpAddress ReachableAddress(const IpAddress& announced, const std::string& peer) {
  const bool useless = IsLoopback(announced) || IsUnspecified(announced);
  if (!useless || !IsBeyondLoopback(peer)) return announced;
  return *PeerAddress(peer);
}

absl::Status CheckClaimedAddress(const std::string& peer, const LinkParameters& offer) {
  const bool tcp = offer.kind == LinkKind::kTcp;
  if (offer.kind != LinkKind::kRoce && !tcp) return absl::OkStatus();
  const std::optional<IpAddress> from = PeerAddress(peer);
  const IpAddress& claimed = offer.gid;
  // This side would connect to a port of its own host, whichever the peer has named.
  const bool own_host = IsLoopback(claimed) || IsUnspecified(claimed);
  if (tcp && own_host && IsBeyondLoopback(peer)) {
    return absl::PermissionDeniedError(
        fmt::format("{} claims the GID of {}, an address of this host", peer, FormatIp(claimed)));
  }
  if (!from.has_value() || !IsComparable(*from) || !IsComparable(claimed)) return absl::OkStatus();
  if (IsIpv4(*from) != IsIpv4(claimed) || *from == claimed) return absl::OkStatus();
  return absl::PermissionDeniedError(fmt::format(
      "{} claims the GID of {}, but connects from another address", peer, FormatIp(claimed)));
}

}  // namespace verbena::internal
