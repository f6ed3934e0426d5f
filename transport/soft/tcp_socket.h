// The sockets of the TCP wire: how a device listens, dials and accepts. All are non-blocking.

#ifndef VERBENA_TRANSPORT_SOFT_TCP_SOCKET_H_
#define VERBENA_TRANSPORT_SOFT_TCP_SOCKET_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/soft/address.h"
#include "verbena/transport/soft/control_socket.h"

namespace verbena::internal::soft {

// A listening socket, and the address by which others reach it.
struct TcpWireListener {
  UniqueFd socket;
  DeviceAddress address;
  bool everywhere = false;  // it listens on every address
};

// `address`: numeric, IPv4 or IPv6. Empty, 0.0.0.0 or ::: listens on every address, and announces
// that of the first interface that is up and not loopback, or loopback if there is none. `port` 0:
// any.
// INVALID_ARGUMENT for an address that is none, is link-local, or is not of this host;
// FAILED_PRECONDITION for a port in use; PERMISSION_DENIED for one that needs privileges; otherwise
// the errors of socket(2) and bind(2). Each message names the address and the port.
absl::StatusOr<TcpWireListener> ListenTcp(const std::string& address, uint16_t port);

// Begins to connect. The socket becomes writable when that is over; DialResult() then says how it
// ended. `from` is our own address: a device that listens on one address dials from it.
absl::StatusOr<UniqueFd> DialTcp(const DeviceAddress& to, const DeviceAddress* from);
absl::Status DialResult(int fd);

// The next connection. UNAVAILABLE when there is none, RESOURCE_EXHAUSTED when there are no
// descriptors, CANCELLED when it has ended.
absl::StatusOr<UniqueFd> AcceptTcp(int listener);

// Has the kernel end a connection whose other host is dead, after about `seconds`.
void DetectDeadHost(int fd, int seconds);

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_TCP_SOCKET_H_
