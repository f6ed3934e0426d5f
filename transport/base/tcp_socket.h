// TCP sockets for the bootstrap: CLOEXEC and non-blocking from birth, with Nagle's algorithm off
// and keepalive on. Also the Status for an errno of connecting or listening.

#ifndef VERBENA_TRANSPORT_BASE_TCP_SOCKET_H_
#define VERBENA_TRANSPORT_BASE_TCP_SOCKET_H_

#include <sys/socket.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena::internal {

// A host that vanishes without a word is seen after kKeepaliveIdleSeconds + kKeepaliveProbes ×
// kKeepaliveIntervalSeconds of silence, or of unacknowledged data.
inline constexpr int kKeepaliveIdleSeconds = 10;
inline constexpr int kKeepaliveIntervalSeconds = 5;
inline constexpr int kKeepaliveProbes = 3;

// Each returns a descriptor that the caller owns, or the status of `what` ("connect to …").
absl::StatusOr<int> OpenTcpSocket(int family, const std::string& what);
// Sets SO_REUSEADDR. An IPv6 wildcard takes IPv4 connections, too.
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

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_BASE_TCP_SOCKET_H_
