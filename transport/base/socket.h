// TCP sockets for the bootstrap: CLOEXEC and non-blocking from birth, with Nagle's algorithm off
// and keepalive on. Also the Status for an errno of connecting or listening.

#ifndef VERBENA_TRANSPORT_BASE_SOCKET_H_
#define VERBENA_TRANSPORT_BASE_SOCKET_H_

#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena::internal {

// A host that vanishes without a word is seen after kKeepaliveIdleSeconds + kKeepaliveProbes ×
// kKeepaliveIntervalSeconds of silence, or of unacknowledged data.
inline constexpr int kKeepaliveIdleSeconds = 10;
inline constexpr int kKeepaliveIntervalSeconds = 5;
inline constexpr int kKeepaliveProbes = 3;

// Returns a descriptor that the caller owns. An error begins with `what` ("connect to …").
absl::StatusOr<int> OpenTcpSocket(int family, const std::string& what);
// Returns a descriptor that listens, which the caller owns. Sets SO_REUSEADDR. An IPv6 wildcard
// takes IPv4 connections, too.
absl::StatusOr<int> ListenTcp(const sockaddr* address, socklen_t bytes, const std::string& name);
struct AcceptedSocket {
  int fd;
  std::string peer;  // known also when the connection has been reset by now
};
// Takes the next connection. UNAVAILABLE: none waits. CANCELLED: it was gone again before it could
// be taken; take the next. RESOURCE_EXHAUSTED: descriptors or memory are out; try again later.
absl::StatusOr<AcceptedSocket> AcceptTcp(int listener);

// UNAVAILABLE if another attempt may go better; the message has the errno's name.
absl::Status SocketStatus(int error, const std::string& what);

// HostPort: "storage-7:4000", "127.0.0.1:4000" or "[::1]:4000", taken apart.
struct HostPort {
  std::string host;  // without brackets
  uint16_t port = 0;
};

// INVALID_ARGUMENT names the text and what is wrong with it.
absl::StatusOr<HostPort> ParseHostPort(const std::string& text);

// The reverse: an IPv6 address gets its brackets.
std::string FormatHostPort(const std::string& host, uint16_t port);

// The source that servers count a peer "host:port" under: an IPv4 address without its port, also if
// it is mapped into IPv6, or the first 64 bits of an IPv6 address ("2001:db8:1:2::/64"), since one
// host may use every address that begins with them. `peer` itself if it has no IP address.
std::string SourceOf(const std::string& peer);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_BASE_SOCKET_H_
