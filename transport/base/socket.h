// IP addresses, and the sockets that have them: IpAddress, HostPort, SocketAddress and TcpSource;
// how a TCP socket is opened, bound, connected and accepted, and how it finds that a host is dead.
//
// Every socket is CLOEXEC and non-blocking, and has Nagle's algorithm off. No function waits. The
// loops that wait for sockets are their users'. Any thread.

#ifndef VERBENA_TRANSPORT_BASE_SOCKET_H_
#define VERBENA_TRANSPORT_BASE_SOCKET_H_

#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/export.h"
#include "verbena/transport/base/process.h"

namespace verbena::internal {

// IPv6, or IPv4 mapped (::ffff:a.b.c.d): the bytes of a GID that is an IP address.
using IpAddress = std::array<uint8_t, 16>;

// None if `text` is no numeric address, or one with an interface behind it.
VERBENA_EXPORT std::optional<IpAddress> ParseIp(const std::string& text);
// As people write it: 10.0.0.7, 2001:db8::7.
VERBENA_EXPORT std::string FormatIp(const IpAddress& ip);

VERBENA_EXPORT bool IsIpv4(const IpAddress& ip);
// 127.0.0.0/8 and ::1.
VERBENA_EXPORT bool IsLoopback(const IpAddress& ip);
// fe80::/10
VERBENA_EXPORT bool IsLinkLocal(const IpAddress& ip);
// 0.0.0.0 and ::.
VERBENA_EXPORT bool IsWildcard(const IpAddress& ip);

// The first address of the range that bounds count as one host, which may use every address in it:
// an IPv4 address alone, or the /64 of an IPv6 address.
VERBENA_EXPORT IpAddress RangeOf(const IpAddress& ip);

// The addresses of this host's interfaces, in the kernel's order. `reachable`: only those that mean
// something on other hosts, of interfaces that are up; neither loopback nor link-local.
VERBENA_EXPORT std::vector<IpAddress> HostAddresses(bool reachable);

// HostPort: "storage-7:4000", "127.0.0.1:4000" or "[::1]:4000", taken apart.
struct HostPort {
  std::string host;  // without brackets
  uint16_t port = 0;
};

// INVALID_ARGUMENT names the text and what is wrong with it.
VERBENA_EXPORT absl::StatusOr<HostPort> ParseHostPort(const std::string& text);

// The reverse: an IPv6 address gets its brackets.
VERBENA_EXPORT std::string FormatHostPort(const std::string& host, uint16_t port);

// The source that servers count a peer "host:port" under: RangeOf its address, as in "10.0.0.7" or
// "2001:db8:1:2::/64". `peer` itself if it has no IP address.
VERBENA_EXPORT std::string SourceOf(const std::string& peer);

// SocketAddress: an IPv4 or IPv6 address and a port, as the kernel takes them. A value.
class VERBENA_EXPORT SocketAddress {
 public:
  SocketAddress() = default;
  // IPv4 if `ip` is mapped.
  SocketAddress(const IpAddress& ip, uint16_t port);
  // Copies the address, with the interface of a link-local one; of other families nothing.
  explicit SocketAddress(const sockaddr& address);

  // The address that the socket `fd` is bound to, or connected to.
  static SocketAddress OfSocket(int fd);
  static SocketAddress OfPeer(int fd);

  // False if it has none, or one of another family: then size(), ip() and port() are 0.
  bool has_value() const { return size() != 0; }
  socklen_t size() const;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage_); }

  int family() const { return storage_.ss_family; }
  IpAddress ip() const;
  uint16_t port() const;
  void set_port(uint16_t port);
  // As its family writes it: "10.0.0.7:4000", "[::ffff:10.0.0.7]:4000"; host() without the port.
  std::string host() const;
  std::string text() const { return FormatHostPort(host(), port()); }

 private:
  sockaddr_storage storage_{};
};

// TcpSource: the host at the other end of a TCP connection, as the kernel knows it.
//
// A peer may claim any name. The address that its packets come from is proven, unless somebody on
// the way forges packets. So bounds count by this address, and claims are compared with it. A
// value.
struct VERBENA_EXPORT TcpSource {
  IpAddress address{};
  bool this_host = false;  // the connection does not leave this host

  // None if the other side has reset the connection already.
  static std::optional<TcpSource> Of(int fd);
  // Whether the peer may have the address `named`. It may have the one that it connects from; a
  // peer on this host may have any loopback address and each address of this host's interfaces.
  bool MayHave(const IpAddress& named) const;
};

// None if there is none to be had; errno then says why.
VERBENA_EXPORT UniqueFd OpenTcpSocket(int family);

struct SocketBinding {
  bool reuse = true;          // also a port of a process that has just ended
  bool both_families = true;  // an IPv6 wildcard takes IPv4 connections, too
};
// For a socket that is to listen. False, with errno, if the address is not to be had.
VERBENA_EXPORT bool BindTcpSocket(int fd, const SocketAddress& at, SocketBinding options = {});

// Begins to connect. 0: the socket becomes writable when that is over, and ConnectResult() then
// returns 0 or the errno. Otherwise the errno of an attempt that has failed at once.
VERBENA_EXPORT int StartConnect(int fd, const SocketAddress& to);
VERBENA_EXPORT int ConnectResult(int fd);

struct AcceptedSocket {
  UniqueFd fd;
  SocketAddress peer;  // of a TCP socket; known also when the connection has been reset by now
};
// Takes the next connection of a TCP or Unix socket. UNAVAILABLE: none waits. CANCELLED: it was
// gone again before it could be taken; take the next. RESOURCE_EXHAUSTED, whose message begins with
// `what`: descriptors or memory are out, or the socket accepts nothing now; try again later.
VERBENA_EXPORT absl::StatusOr<AcceptedSocket> AcceptSocket(int listener, const std::string& what);

// How long a host may say nothing before its connection ends.
struct AllowedSilence {
  static constexpr int kProbes = 3;
  int idle_seconds = 10;     // until the first probe
  int interval_seconds = 5;  // between two of them
  int limit_seconds = 25;    // also of data that is not acknowledged; 0: as the kernel has it
};
VERBENA_EXPORT void DetectDeadHost(int fd, AllowedSilence limits = {});

// The message is `what` with the errno's description and name. UNAVAILABLE if another attempt may
// go better.
VERBENA_EXPORT absl::Status SocketStatus(int error, const std::string& what);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_BASE_SOCKET_H_
