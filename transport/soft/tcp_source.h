// TcpSource: the host at the other end of a TCP connection, as the kernel knows it.
//
// A peer may claim any name. The address that its packets come from is proven, unless somebody on
// the way forges packets. So bounds count by this address, and claims are compared with it.
// A value; the functions may be called on any thread.

#ifndef VERBENA_TRANSPORT_SOFT_TCP_SOURCE_H_
#define VERBENA_TRANSPORT_SOFT_TCP_SOURCE_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace verbena::internal::soft {

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

#endif  // VERBENA_TRANSPORT_SOFT_TCP_SOURCE_H_
