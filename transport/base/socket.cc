#include "verbena/transport/base/socket.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <system_error>

#include "absl/status/status.h"

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

// The longest name that DNS allows; longer texts are no host names, and are not repeated in
// messages.
constexpr size_t kMaxHostBytes = 253;

absl::Status BadAddress(const std::string& text, const char* why) {
  return absl::InvalidArgumentError(
      fmt::format("bad address \"{}\": {}; expected host:port, such as storage-7:4000, "
                  "127.0.0.1:4000 or [::1]:4000",
                  text.substr(0, kMaxHostBytes), why));
}

// Control characters, blanks and a NUL would reach the resolver, or a terminal.
bool IsHostCharacter(char c) { return c > ' ' && c < 0x7f && c != '[' && c != ']' && c != '"'; }

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

absl::StatusOr<HostPort> ParseHostPort(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return BadAddress(text, "it has no port");
  std::string host = text.substr(0, colon);
  const bool bracketed = host.starts_with('[') && host.ends_with(']') && host.size() >= 2;
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (host.empty()) return BadAddress(text, "it has no host");
  if (host.size() > kMaxHostBytes) return BadAddress(text, "the host is longer than 253 bytes");
  if (host.find(',') != std::string::npos) {
    return BadAddress(text, "it names several servers: write static:host:port,host:port");
  }
  if (!bracketed && host.find(':') != std::string::npos) {
    return BadAddress(text, "an IPv6 address needs brackets");
  }
  for (char c : host) {
    if (!IsHostCharacter(c)) return BadAddress(text, "the host has a character that none has");
  }
  const std::string digits = text.substr(colon + 1);
  uint16_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || end != digits.data() + digits.size()) {
    return BadAddress(text, "the port is not a number from 0 to 65535");
  }
  return HostPort{std::move(host), port};
}

std::string SourceOf(const std::string& peer) {
  const absl::StatusOr<HostPort> parsed = ParseHostPort(peer);
  if (!parsed.ok()) return peer;
  in_addr ipv4{};
  if (inet_pton(AF_INET, parsed->host.c_str(), &ipv4) == 1) return parsed->host;
  // A link-local address may have its interface behind it.
  in6_addr ipv6{};
  if (inet_pton(AF_INET6, parsed->host.substr(0, parsed->host.find('%')).c_str(), &ipv6) != 1) {
    return peer;
  }
  char text[INET6_ADDRSTRLEN] = "";
  if (IN6_IS_ADDR_V4MAPPED(&ipv6)) {
    inet_ntop(AF_INET, &ipv6.s6_addr[12], text, sizeof(text));
    return text;
  }
  if (IN6_IS_ADDR_LOOPBACK(&ipv6)) return parsed->host;
  std::memset(&ipv6.s6_addr[8], 0, 8);
  inet_ntop(AF_INET6, &ipv6, text, sizeof(text));
  return fmt::format("{}/64", text);
}

std::string FormatHostPort(const std::string& host, uint16_t port) {
  const bool ipv6 = host.find(':') != std::string::npos;
  return ipv6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

}  // namespace verbena::internal
