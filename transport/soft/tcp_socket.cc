#include "verbena/transport/soft/tcp_socket.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/device/verbs_status.h"

namespace verbena::internal::soft {
namespace {

// Connections that the kernel keeps for us until we accept them.
constexpr int kBacklog = 256;

ibv_gid MappedGid(const in_addr& address) {
  ibv_gid gid{};
  std::memcpy(gid.raw, kIpv4GidPrefix, sizeof(kIpv4GidPrefix));
  std::memcpy(gid.raw + sizeof(kIpv4GidPrefix), &address, sizeof(address));
  return gid;
}

bool IsWildcard(const ibv_gid& gid) {
  const ibv_gid v4 = MappedGid({});
  const ibv_gid v6{};
  return std::memcmp(gid.raw, v4.raw, sizeof(gid.raw)) == 0 ||
         std::memcmp(gid.raw, v6.raw, sizeof(gid.raw)) == 0;
}

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

SocketAddress ToSocketAddress(const DeviceAddress& address) {
  SocketAddress result;
  if (IsIpv4Gid(address.gid)) {
    auto& to = reinterpret_cast<sockaddr_in&>(result.storage);
    to.sin_family = AF_INET;
    to.sin_port = htons(address.lid);
    std::memcpy(&to.sin_addr, address.gid.raw + sizeof(kIpv4GidPrefix), sizeof(to.sin_addr));
    result.bytes = sizeof(to);
  } else {
    auto& to = reinterpret_cast<sockaddr_in6&>(result.storage);
    to.sin6_family = AF_INET6;
    to.sin6_port = htons(address.lid);
    std::memcpy(&to.sin6_addr, address.gid.raw, sizeof(to.sin6_addr));
    result.bytes = sizeof(to);
  }
  return result;
}

absl::StatusOr<ibv_gid> ParseNumeric(const std::string& text) {
  in_addr v4{};
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) return MappedGid(v4);
  ibv_gid gid{};
  in6_addr v6{};
  if (inet_pton(AF_INET6, text.c_str(), &v6) != 1) {
    return absl::InvalidArgumentError(
        fmt::format("the TCP wire's address \"{}\" is no numeric IPv4 or IPv6 address: name one "
                    "of this host, or none for all of them",
                    text));
  }
  if (IN6_IS_ADDR_LINKLOCAL(&v6)) {
    return absl::InvalidArgumentError(
        fmt::format("the TCP wire's address {} is link-local, and means nothing on other hosts: "
                    "name another one",
                    text));
  }
  std::memcpy(gid.raw, &v6, sizeof(gid.raw));
  return gid;
}

// IPv4 goes before IPv6. Link-local addresses mean nothing without their interface.
ibv_gid FirstAddress() {
  ibv_gid found = MappedGid({.s_addr = htonl(INADDR_LOOPBACK)});
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return found;
  bool any = false;
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_UP) == 0 ||
        (each->ifa_flags & IFF_LOOPBACK) != 0) {
      continue;
    }
    if (each->ifa_addr->sa_family == AF_INET) {
      found = MappedGid(reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr);
      break;
    }
    if (each->ifa_addr->sa_family != AF_INET6 || any) continue;
    const in6_addr& v6 = reinterpret_cast<const sockaddr_in6*>(each->ifa_addr)->sin6_addr;
    if (IN6_IS_ADDR_LINKLOCAL(&v6)) continue;
    std::memcpy(found.raw, &v6, sizeof(found.raw));
    any = true;
  }
  freeifaddrs(all);
  return found;
}

void SetOption(int fd, int level, int option, int value) {
  setsockopt(fd, level, option, &value, sizeof(value));
}

absl::Status ListenError(int error, const DeviceAddress& at) {
  const std::string host = IsWildcard(at.gid) ? "every address" : IpText(at.gid);
  const std::string name =
      at.lid == 0 ? "any TCP port of " + host : fmt::format("TCP port {} of {}", at.lid, host);
  switch (error) {
    case EADDRINUSE:
      return absl::FailedPreconditionError(fmt::format(
          "{} is in use (EADDRINUSE): name another port, or 0 for any that is free", name));
    case EACCES:
      return absl::PermissionDeniedError(
          fmt::format("{} needs privileges (EACCES): name a port of 1024 or above", name));
    case EADDRNOTAVAIL:
      return absl::InvalidArgumentError(
          fmt::format("{}: this host has no such address (EADDRNOTAVAIL); name one of its own, or "
                      "none for all of them",
                      name));
    default:
      return ErrnoStatus(error, "listening on " + name);
  }
}

absl::StatusOr<UniqueFd> ListenAt(const DeviceAddress& at, bool both_families) {
  SocketAddress address = ToSocketAddress(at);
  UniqueFd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return ErrnoStatus(errno, "the TCP socket of a soft device");
  // A port of a process that has just ended may be taken at once.
  SetOption(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.storage.ss_family == AF_INET6) {
    SetOption(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, both_families ? 0 : 1);
  }
  if (bind(fd.get(), address.get(), address.bytes) != 0 || listen(fd.get(), kBacklog) != 0) {
    return ListenError(errno, at);
  }
  return fd;
}

absl::StatusOr<uint16_t> PortOf(int fd) {
  SocketAddress bound;
  bound.bytes = sizeof(bound.storage);
  if (getsockname(fd, bound.get(), &bound.bytes) != 0) return ErrnoStatus(errno, "getsockname");
  return bound.storage.ss_family == AF_INET
             ? ntohs(reinterpret_cast<const sockaddr_in&>(bound.storage).sin_port)
             : ntohs(reinterpret_cast<const sockaddr_in6&>(bound.storage).sin6_port);
}

bool Same(const ibv_gid& a, const ibv_gid& b) {
  return std::memcmp(a.raw, b.raw, sizeof(a.raw)) == 0;
}

std::optional<ibv_gid> GidOf(const sockaddr* address) {
  if (address == nullptr) return std::nullopt;
  if (address->sa_family == AF_INET) {
    return MappedGid(reinterpret_cast<const sockaddr_in*>(address)->sin_addr);
  }
  if (address->sa_family != AF_INET6) return std::nullopt;
  const auto& v6 = *reinterpret_cast<const sockaddr_in6*>(address);
  ibv_gid gid{};
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

absl::StatusOr<TcpWireListener> ListenTcp(const std::string& address, uint16_t port) {
  TcpWireListener listener;
  absl::StatusOr<UniqueFd> socket;
  if (!address.empty()) {
    VERBENA_ASSIGN_OR_RETURN(listener.address.gid, ParseNumeric(address));
  }
  listener.everywhere = address.empty() || IsWildcard(listener.address.gid);
  if (listener.everywhere) {
    listener.address.gid = FirstAddress();
    socket = ListenAt({.gid = {}, .lid = port}, true);
    // A kernel without IPv6. If somebody has the port, it is theirs over IPv4, too.
    if (!socket.ok() && !absl::IsFailedPrecondition(socket.status())) {
      auto v4 = ListenAt({.gid = MappedGid({}), .lid = port}, false);
      if (v4.ok()) socket = std::move(v4);
    }
  } else {
    socket = ListenAt({.gid = listener.address.gid, .lid = port}, false);
  }
  VERBENA_RETURN_IF_ERROR(socket.status());
  listener.socket = *std::move(socket);
  VERBENA_ASSIGN_OR_RETURN(listener.address.lid, PortOf(listener.socket.get()));
  return listener;
}

absl::StatusOr<UniqueFd> DialTcp(const DeviceAddress& to, const DeviceAddress* from) {
  if (to.lid == 0) {
    return absl::InvalidArgumentError(
        fmt::format("{} names no TCP port: the device there has no TCP wire", AddressText(to)));
  }
  SocketAddress target = ToSocketAddress(to);
  UniqueFd fd(socket(target.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return ErrnoStatus(errno, "a TCP socket to another soft device");
  if (from != nullptr && IsIpv4Gid(from->gid) == IsIpv4Gid(to.gid)) {
    // Best effort: without it the kernel chooses.
    SocketAddress source = ToSocketAddress({.gid = from->gid, .lid = 0});
    SetOption(fd.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
    std::ignore = bind(fd.get(), source.get(), source.bytes);
  }
  SetOption(fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  if (connect(fd.get(), target.get(), target.bytes) != 0 && errno != EINPROGRESS) {
    return ErrnoStatus(errno, "connecting to " + AddressText(to));
  }
  return fd;
}

absl::Status DialResult(int fd) {
  int error = 0;
  socklen_t bytes = sizeof(error);
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
  return error == 0 ? absl::OkStatus() : ErrnoStatus(error, "connecting to a soft device");
}

absl::StatusOr<UniqueFd> AcceptTcp(int listener) {
  UniqueFd fd(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (fd) {
    SetOption(fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
    return fd;
  }
  switch (errno) {
    case EAGAIN:
      return absl::UnavailableError("no connection waits");
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
      return absl::ResourceExhaustedError(
          ErrnoStatus(errno, "accepting another soft device").message());
    default:
      // The new connection's own error, which accept(2) returns in its place.
      return absl::CancelledError("the connection ended before it was accepted");
  }
}

void DetectDeadHost(int fd, int seconds) {
  // Probes in the second half of the time, if nothing was heard in the first.
  constexpr int kProbes = 3;
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, std::max(1, seconds / 2));
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, std::max(1, seconds / 2 / kProbes));
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, seconds * 1000);
}

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
