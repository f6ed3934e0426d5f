// The sockets of the TCP wire: how a device listens, dials and accepts, and which host is at the
// other end. All are non-blocking.

#ifndef VERBENA_TRANSPORT_SOFT_TCP_SOCKET_H_
#define VERBENA_TRANSPORT_SOFT_TCP_SOCKET_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/process.h"
#include "verbena/transport/soft/address.h"

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

// TcpSource: the host at the other end of a TCP connection, as the kernel knows it.
//
// A peer may claim any name. The address that its packets come from is proven, unless somebody on
// the way forges packets. So bounds count by this address, and claims are compared with it.
// A value; the functions may be called on any thread.
struct TcpSource {
  ibv_gid address{};       // IPv4 as ::ffff:a.b.c.d
  bool this_host = false;  // the connection does not leave this host
};

// ABORTED if the other side has reset the connection already.
absl::StatusOr<TcpSource> SourceOf(int fd);

// Whether a device that connects from `source` may have the name `gid`. It may have its own
// address; a device of this host may have any loopback address and each address of this host's
// interfaces.
bool MayHaveName(const TcpSource& source, const ibv_gid& gid);

// The first address of the range that bounds count as one: an IPv4 address alone, or the /64 of an
// IPv6 address.
ibv_gid RangeOf(const ibv_gid& address);

// True for 127.0.0.0/8 and ::1.
bool IsLoopbackGid(const ibv_gid& gid);
// True for an IPv4 address: the rest behind this prefix.
inline constexpr uint8_t kIpv4GidPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
bool IsIpv4Gid(const ibv_gid& gid);

// As people write it: 10.0.0.7, 2001:db8::7.
std::string IpText(const ibv_gid& gid);

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_TCP_SOCKET_H_
