#include "verbena/transport/base/tcp_socket.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "verbena/transport/base/host_port.h"

namespace verbena::internal {
namespace {

constexpr int kTcpFlags = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;

void SetOption(int fd, int level, int option, int value) {
  // Only tuning: a kernel without one of these still serves.
  (void)setsockopt(fd, level, option, &value, sizeof(value));
}

void TuneConnection(int fd) {
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, kKeepaliveIdleSeconds);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, kKeepaliveIntervalSeconds);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, kKeepaliveProbes);
  // Keepalive rests while data is unacknowledged, so that case has a limit of its own.
  constexpr int kSilenceSeconds =
      kKeepaliveIdleSeconds + kKeepaliveProbes * kKeepaliveIntervalSeconds;
  SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kSilenceSeconds * 1000);
}

std::string AddressName(const sockaddr_storage& address) {
  char host[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET6) {
    const auto& ipv6 = reinterpret_cast<const sockaddr_in6&>(address);
    inet_ntop(AF_INET6, &ipv6.sin6_addr, host, sizeof(host));
    return FormatHostPort(host, ntohs(ipv6.sin6_port));
  }
  const auto& ipv4 = reinterpret_cast<const sockaddr_in&>(address);
  inet_ntop(AF_INET, &ipv4.sin_addr, host, sizeof(host));
  return FormatHostPort(host, ntohs(ipv4.sin_port));
}

absl::Status ListenError(int error, const std::string& name) {
  switch (error) {
    case EADDRINUSE:
      return absl::FailedPreconditionError(fmt::format(
          "{} is in use (EADDRINUSE): choose another port or stop the other server", name));
    case EACCES:
      return absl::PermissionDeniedError(
          fmt::format("{} needs privileges (EACCES): choose a port of 1024 or above", name));
    case EADDRNOTAVAIL:
      return absl::InvalidArgumentError(
          fmt::format("{} is no address of this host (EADDRNOTAVAIL)", name));
    default:
      return SocketStatus(error, "listen on " + name);
  }
}

}  // namespace

absl::Status SocketStatus(int error, const std::string& what) {
  const char* name = strerrorname_np(error);
  const std::string message = name == nullptr
                                  ? fmt::format("{}: error {}", what, error)
                                  : fmt::format("{}: {} ({})", what, strerrordesc_np(error), name);
  switch (error) {
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
      return absl::ResourceExhaustedError(message);
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(message);
    case ECANCELED:
      return absl::CancelledError(message);
    case EAFNOSUPPORT:
    case EINVAL:
      return absl::InvalidArgumentError(message);
    default:
      return absl::UnavailableError(message);
  }
}

absl::StatusOr<int> OpenTcpSocket(int family, const std::string& what) {
  const int fd = socket(family, kTcpFlags, IPPROTO_TCP);
  if (fd < 0) return SocketStatus(errno, what);
  TuneConnection(fd);
  return fd;
}

absl::StatusOr<int> ListenTcp(const sockaddr* address, socklen_t bytes, const std::string& name) {
  const int fd = socket(address->sa_family, kTcpFlags, IPPROTO_TCP);
  if (fd < 0) return ListenError(errno, name);
  SetOption(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  if (address->sa_family == AF_INET6) SetOption(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (bind(fd, address, bytes) != 0 || listen(fd, SOMAXCONN) != 0) {
    const int error = errno;
    close(fd);
    return ListenError(error, name);
  }
  return fd;
}

absl::StatusOr<AcceptedSocket> AcceptTcp(int listener) {
  sockaddr_storage peer{};
  socklen_t bytes = sizeof(peer);
  const int fd =
      accept4(listener, reinterpret_cast<sockaddr*>(&peer), &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd >= 0) {
    TuneConnection(fd);
    return AcceptedSocket{fd, AddressName(peer)};
  }
  switch (errno) {
    case EAGAIN:
      return absl::UnavailableError("no connection waits");
    // The new connection's own error, which accept(2) returns in its place.
    case ECONNABORTED:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case EINTR:
    case ENETDOWN:
    case ENETUNREACH:
    case ENONET:
    case ENOPROTOOPT:
    case EPERM:
    case EPROTO:
      return absl::CancelledError("the connection ended before it was accepted");
    default:
      return absl::ResourceExhaustedError(
          std::string(SocketStatus(errno, "accept a connection").message()));
  }
}

}  // namespace verbena::internal
