#include "verbena/transport/preload/rdma_cm_addresses.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/process.h"
#include "verbena/transport/soft/tcp_socket.h"

namespace verbena::internal::preload {
namespace {

// The GID of a device without a TCP wire, which is reached on this host alone (context.cc).
bool IsLocalGid(const ibv_gid& gid) {
  static constexpr uint8_t kPrefix[] = {0xfd, 'v', 'b', 'n'};
  return std::memcmp(gid.raw, kPrefix, sizeof(kPrefix)) == 0;
}

bool IsAddress(const ibv_gid& gid) {
  constexpr uint8_t kLinkLocal = 0xfe;
  return soft::IsIpv4Gid(gid) ||
         (gid.raw[0] >= 0x20 && gid.raw[0] < kLinkLocal && !IsLocalGid(gid));
}

bool AnySource() {
  const char* any = std::getenv("VERBENA_SOFT_ANY_SOURCE");
  return any != nullptr && std::strcmp(any, "1") == 0;
}

}  // namespace

socklen_t AddressBytes(const sockaddr& address) {
  if (address.sa_family == AF_INET) return sizeof(sockaddr_in);
  return address.sa_family == AF_INET6 ? sizeof(sockaddr_in6) : 0;
}

bool IsAnyAddress(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr == htonl(INADDR_ANY);
  }
  const auto& six = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  return address.sa_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&six);
}

in_port_t AddressPort(const sockaddr& address) {
  if (address.sa_family == AF_INET) return reinterpret_cast<const sockaddr_in&>(address).sin_port;
  if (address.sa_family == AF_INET6) {
    return reinterpret_cast<const sockaddr_in6&>(address).sin6_port;
  }
  return 0;
}

int SourceAddressFor(const sockaddr& destination, sockaddr_storage& source) {
  // Connecting a datagram socket sends nothing; it asks the routing tables.
  const UniqueFd probe(socket(destination.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!probe) return errno;
  sockaddr_storage target = {};
  // Port 0 is refused by some kernels.
  if (destination.sa_family == AF_INET) {
    auto& four = reinterpret_cast<sockaddr_in&>(target);
    four = reinterpret_cast<const sockaddr_in&>(destination);
    four.sin_port = htons(1);
  } else {
    auto& six = reinterpret_cast<sockaddr_in6&>(target);
    six = reinterpret_cast<const sockaddr_in6&>(destination);
    six.sin6_port = htons(1);
  }
  const auto& address = reinterpret_cast<const sockaddr&>(target);
  if (connect(probe.get(), &address, AddressBytes(address)) != 0) return errno;
  socklen_t bytes = sizeof(source);
  source = {};
  if (getsockname(probe.get(), reinterpret_cast<sockaddr*>(&source), &bytes) != 0) return errno;
  if (source.ss_family == AF_INET) reinterpret_cast<sockaddr_in&>(source).sin_port = 0;
  if (source.ss_family == AF_INET6) reinterpret_cast<sockaddr_in6&>(source).sin6_port = 0;
  return 0;
}

bool MayNameGid(int fd, const ibv_gid& own, const ibv_gid& named) {
  static ThrottledLog& refused = *new ThrottledLog({});
  if (!IsAddress(own) || AnySource()) return true;
  const absl::StatusOr<soft::TcpSource> source = soft::SourceOf(fd);
  if (!source.ok()) return false;
  if (soft::MayHaveName(*source, named) || (source->this_host && IsLocalGid(named))) return true;
  refused.Write(LogLevel::kWarning, Clock::Real().Now(),
                "rdma_cm: a request from " + soft::IpText(source->address) + " names the GID of " +
                    soft::IpText(named) + "; VERBENA_SOFT_ANY_SOURCE=1 allows it");
  return false;
}

}  // namespace verbena::internal::preload
