#include "verbena/transport/base/socket.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <system_error>
#include <utility>

#include "absl/status/status.h"

namespace verbena::internal {
namespace {

constexpr std::array<uint8_t, 12> kMappedPrefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

IpAddress Mapped(const void* ipv4) {
  IpAddress ip{};
  std::ranges::copy(kMappedPrefix, ip.begin());
  std::memcpy(&ip[kMappedPrefix.size()], ipv4, sizeof(in_addr));
  return ip;
}

std::string TextOf(int family, const void* address) {
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(family, address, text, sizeof(text));
  return text;
}

void SetOption(int fd, int level, int option, int value) {
  // Only tuning: a kernel without one of these still serves.
  (void)setsockopt(fd, level, option, &value, sizeof(value));
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

std::optional<IpAddress> ParseIp(const std::string& text) {
  in_addr ipv4{};
  if (inet_pton(AF_INET, text.c_str(), &ipv4) == 1) return Mapped(&ipv4);
  IpAddress ip{};
  if (inet_pton(AF_INET6, text.c_str(), ip.data()) == 1) return ip;
  return std::nullopt;
}

std::string FormatIp(const IpAddress& ip) {
  return IsIpv4(ip) ? TextOf(AF_INET, &ip[kMappedPrefix.size()]) : TextOf(AF_INET6, ip.data());
}

bool IsIpv4(const IpAddress& ip) {
  return std::equal(kMappedPrefix.begin(), kMappedPrefix.end(), ip.begin());
}

bool IsLoopback(const IpAddress& ip) {
  static constexpr IpAddress kIpv6 = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  return IsIpv4(ip) ? ip[kMappedPrefix.size()] == IN_LOOPBACKNET : ip == kIpv6;
}

bool IsLinkLocal(const IpAddress& ip) { return ip[0] == 0xfe && (ip[1] & 0xc0) == 0x80; }

bool IsWildcard(const IpAddress& ip) {
  const in_addr any{};
  return ip == IpAddress{} || ip == Mapped(&any);
}

IpAddress RangeOf(const IpAddress& ip) {
  IpAddress range = ip;
  if (!IsIpv4(ip)) std::fill(range.begin() + 8, range.end(), 0);
  return range;
}

std::vector<IpAddress> HostAddresses(bool reachable) {
  std::vector<IpAddress> addresses;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return addresses;
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr) continue;
    const SocketAddress address(*each->ifa_addr);
    if (!address.has_value()) continue;
    const bool usable = (each->ifa_flags & IFF_UP) != 0 && (each->ifa_flags & IFF_LOOPBACK) == 0 &&
                        !IsLinkLocal(address.ip());
    if (usable || !reachable) addresses.push_back(address.ip());
  }
  freeifaddrs(all);
  return addresses;
}

absl::StatusOr<HostPort> ParseHostPort(const std::string& text) {
  if (text.find("://") != std::string::npos) return BadAddress(text, "it is a URL");
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

std::string FormatHostPort(const std::string& host, uint16_t port) {
  const bool ipv6 = host.find(':') != std::string::npos;
  return ipv6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

std::string SourceOf(const std::string& peer) {
  const absl::StatusOr<HostPort> parsed = ParseHostPort(peer);
  if (!parsed.ok()) return peer;
  // A link-local address may have its interface behind it.
  const std::optional<IpAddress> ip = ParseIp(parsed->host.substr(0, parsed->host.find('%')));
  if (!ip.has_value()) return peer;
  return IsIpv4(*ip) || IsLoopback(*ip) ? FormatIp(*ip) : FormatIp(RangeOf(*ip)) + "/64";
}

SocketAddress::SocketAddress(const IpAddress& ip, uint16_t port) {
  if (IsIpv4(ip)) {
    auto& ipv4 = reinterpret_cast<sockaddr_in&>(storage_);
    ipv4.sin_family = AF_INET;
    std::memcpy(&ipv4.sin_addr, &ip[kMappedPrefix.size()], sizeof(ipv4.sin_addr));
  } else {
    auto& ipv6 = reinterpret_cast<sockaddr_in6&>(storage_);
    ipv6.sin6_family = AF_INET6;
    std::memcpy(&ipv6.sin6_addr, ip.data(), ip.size());
  }
  set_port(port);
}

SocketAddress::SocketAddress(const sockaddr& address) {
  storage_.ss_family = address.sa_family;
  std::memcpy(&storage_, &address, size());
}

SocketAddress SocketAddress::OfSocket(int fd) {
  SocketAddress address;
  socklen_t bytes = sizeof(address.storage_);
  if (getsockname(fd, address.get(), &bytes) != 0 || !address.has_value()) return {};
  return address;
}

SocketAddress SocketAddress::OfPeer(int fd) {
  SocketAddress address;
  socklen_t bytes = sizeof(address.storage_);
  if (getpeername(fd, address.get(), &bytes) != 0 || !address.has_value()) return {};
  return address;
}

socklen_t SocketAddress::size() const {
  if (family() == AF_INET) return sizeof(sockaddr_in);
  return family() == AF_INET6 ? sizeof(sockaddr_in6) : 0;
}

IpAddress SocketAddress::ip() const {
  if (family() == AF_INET) return Mapped(&reinterpret_cast<const sockaddr_in&>(storage_).sin_addr);
  IpAddress ip{};
  std::memcpy(ip.data(), &reinterpret_cast<const sockaddr_in6&>(storage_).sin6_addr, ip.size());
  return ip;
}

// Both families have the port at the same place.
static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));

uint16_t SocketAddress::port() const {
  return ntohs(reinterpret_cast<const sockaddr_in&>(storage_).sin_port);
}

void SocketAddress::set_port(uint16_t port) {
  reinterpret_cast<sockaddr_in&>(storage_).sin_port = htons(port);
}

std::string SocketAddress::host() const {
  return family() == AF_INET ? FormatIp(ip()) : TextOf(AF_INET6, ip().data());
}

std::optional<TcpSource> TcpSource::Of(int fd) {
  const SocketAddress there = SocketAddress::OfPeer(fd);
  const SocketAddress here = SocketAddress::OfSocket(fd);
  if (!there.has_value() || !here.has_value()) return std::nullopt;
  const IpAddress ip = there.ip();
  return TcpSource{.address = ip, .this_host = IsLoopback(ip) || ip == here.ip()};
}

bool TcpSource::MayHave(const IpAddress& named) const {
  if (named == address) return true;
  if (!this_host) return false;
  if (IsLoopback(named)) return true;
  const std::vector<IpAddress> own = HostAddresses(/*reachable=*/false);
  return std::ranges::find(own, named) != own.end();
}

UniqueFd OpenTcpSocket(int family) {
  UniqueFd fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  if (fd) SetOption(fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  return fd;
}

bool BindTcpSocket(int fd, const SocketAddress& at, SocketBinding options) {
  if (options.reuse) SetOption(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  if (at.family() == AF_INET6) {
    SetOption(fd, IPPROTO_IPV6, IPV6_V6ONLY, options.both_families ? 0 : 1);
  }
  return bind(fd, at.get(), at.size()) == 0;
}

int StartConnect(int fd, const SocketAddress& to) {
  return connect(fd, to.get(), to.size()) == 0 || errno == EINPROGRESS ? 0 : errno;
}

int ConnectResult(int fd) {
  int error = 0;
  socklen_t bytes = sizeof(error);
  return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 ? error : errno;
}

absl::StatusOr<AcceptedSocket> AcceptSocket(int listener, const std::string& what) {
  sockaddr_storage peer{};
  socklen_t bytes = sizeof(peer);
  auto* const address = reinterpret_cast<sockaddr*>(&peer);
  UniqueFd fd(accept4(listener, address, &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd) {
    AcceptedSocket accepted{std::move(fd), SocketAddress(*address)};
    if (accepted.peer.has_value()) SetOption(accepted.fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
    return accepted;
  }
  switch (errno) {
    case EAGAIN:
      return absl::UnavailableError("no connection waits");
    // The new connection's own error, which accept(2) returns in its place.
    case ECONNABORTED:
    case ECONNRESET:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case EINTR:
    case ENETDOWN:
    case ENETUNREACH:
    case ENONET:
    case ENOPROTOOPT:
    case EPROTO:
    case ETIMEDOUT:
      return absl::CancelledError("the connection ended before it was accepted");
    default:
      return absl::ResourceExhaustedError(std::string(SocketStatus(errno, what).message()));
  }
}

void DetectDeadHost(int fd, AllowedSilence limits) {
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, limits.idle_seconds);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, limits.interval_seconds);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, AllowedSilence::kProbes);
  // Keepalive rests while data is unacknowledged, so that case has a limit of its own.
  SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, limits.limit_seconds * 1000);
}

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

}  // namespace verbena::internal
