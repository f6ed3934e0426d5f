#include "verbena/transport/soft/tcp_source.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>

#include "verbena/transport/device/verbs_status.h"

namespace verbena::internal::soft {
namespace {

bool Same(const ibv_gid& a, const ibv_gid& b) {
  return std::memcmp(a.raw, b.raw, sizeof(a.raw)) == 0;
}

std::optional<ibv_gid> GidOf(const sockaddr* address) {
  ibv_gid gid{};
  if (address == nullptr) return std::nullopt;
  if (address->sa_family == AF_INET) {
    const auto& v4 = *reinterpret_cast<const sockaddr_in*>(address);
    std::memcpy(gid.raw, kIpv4GidPrefix, sizeof(kIpv4GidPrefix));
    std::memcpy(gid.raw + sizeof(kIpv4GidPrefix), &v4.sin_addr, sizeof(v4.sin_addr));
    return gid;
  }
  if (address->sa_family != AF_INET6) return std::nullopt;
  const auto& v6 = *reinterpret_cast<const sockaddr_in6*>(address);
  std::memcpy(gid.raw, &v6.sin6_addr, sizeof(gid.raw));
  return gid;
}

bool IsOfThisHost(const ibv_gid& gid) {
  if (IsLoopbackGid(gid)) return true;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return false;
  bool found = false;
  for (const ifaddrs* each = all; each != nullptr && !found; each = each->ifa_next) {
    const std::optional<ibv_gid> one = GidOf(each->ifa_addr);
    found = one.has_value() && Same(*one, gid);
  }
  freeifaddrs(all);
  return found;
}

}  // namespace

absl::StatusOr<TcpSource> SourceOf(int fd) {
  sockaddr_storage there{};
  sockaddr_storage here{};
  socklen_t there_bytes = sizeof(there);
  socklen_t here_bytes = sizeof(here);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&there), &there_bytes) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&here), &here_bytes) != 0) {
    return absl::AbortedError(ErrnoStatus(errno, "a TCP connection's addresses").message());
  }
  const std::optional<ibv_gid> source = GidOf(reinterpret_cast<const sockaddr*>(&there));
  const std::optional<ibv_gid> own = GidOf(reinterpret_cast<const sockaddr*>(&here));
  if (!source.has_value() || !own.has_value()) {
    return absl::AbortedError("a TCP connection that is neither IPv4 nor IPv6");
  }
  return TcpSource{.address = *source, .this_host = IsLoopbackGid(*source) || Same(*source, *own)};
}

bool MayHaveName(const TcpSource& source, const ibv_gid& gid) {
  return Same(source.address, gid) || (source.this_host && IsOfThisHost(gid));
}

ibv_gid RangeOf(const ibv_gid& address) {
  ibv_gid range = address;
  if (!IsIpv4Gid(address)) range.global.interface_id = 0;
  return range;
}

bool IsLoopbackGid(const ibv_gid& gid) {
  in6_addr address{};
  std::memcpy(&address, gid.raw, sizeof(address));
  return IN6_IS_ADDR_LOOPBACK(&address) ||
         (IsIpv4Gid(gid) && gid.raw[sizeof(kIpv4GidPrefix)] == IN_LOOPBACKNET);
}

bool IsIpv4Gid(const ibv_gid& gid) {
  return std::memcmp(gid.raw, kIpv4GidPrefix, sizeof(kIpv4GidPrefix)) == 0;
}

std::string IpText(const ibv_gid& gid) {
  char text[INET6_ADDRSTRLEN] = "";
  if (IsIpv4Gid(gid)) {
    inet_ntop(AF_INET, gid.raw + sizeof(kIpv4GidPrefix), text, sizeof(text));
  } else {
    inet_ntop(AF_INET6, gid.raw, text, sizeof(text));
  }
  return text;
}

}  // namespace verbena::internal::soft
