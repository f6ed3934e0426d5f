// TCP sockets as the bootstrap wants them: CLOEXEC and non-blocking from birth, Nagle off, and a
// dead peer noticed. And what errno means to a caller who connects or listens.

#ifndef VERBENA_TRANSPORT_CONNECT_TCP_SOCKET_H_
#define VERBENA_TRANSPORT_CONNECT_TCP_SOCKET_H_

#include <sys/socket.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena {

// A host that vanishes without a word is seen after kKeepaliveIdleSeconds + kKeepaliveProbes ×
// kKeepaliveIntervalSeconds of silence, or of unacknowledged data.
inline constexpr int kKeepaliveIdleSeconds = 10;
inline constexpr int kKeepaliveIntervalSeconds = 5;
inline constexpr int kKeepaliveProbes = 3;

// Each returns a descriptor that the caller owns, or the status of `what` ("connect to …").
absl::StatusOr<int> OpenTcpSocket(int family, const std::string& what);
// SO_REUSEADDR; on an IPv6 wildcard also IPv4.
absl::StatusOr<int> ListenTcp(const sockaddr* address, socklen_t bytes, const std::string& name);
struct AcceptedSocket {
  int fd;
  std::string peer;  // known also when the connection has been reset by now
};
// The next connection; UNAVAILABLE when none waits, CANCELLED when it was gone again before it
// could be taken (take the next), RESOURCE_EXHAUSTED when descriptors or memory are out (try again
// later).
absl::StatusOr<AcceptedSocket> AcceptTcp(int listener);

// UNAVAILABLE where another attempt may go better; the message has the errno's name.
absl::Status SocketStatus(int error, const std::string& what);

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_CONNECT_TCP_SOCKET_H_
