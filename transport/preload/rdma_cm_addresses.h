// Socket addresses of ids.

#ifndef VERBENA_TRANSPORT_PRELOAD_RDMA_CM_ADDRESSES_H_
#define VERBENA_TRANSPORT_PRELOAD_RDMA_CM_ADDRESSES_H_

#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace verbena::internal::preload {

// The length of an IPv4 or IPv6 address; 0 of any other.
socklen_t AddressBytes(const sockaddr& address);

// True for 0.0.0.0 and ::.
bool IsAnyAddress(const sockaddr& address);

// In network byte order.
in_port_t AddressPort(const sockaddr& address);

// The address from which this host reaches `destination`, without a port. 0 or an errno.
int SourceAddressFor(const sockaddr& destination, sockaddr_storage& source);

// Whether the peer at the other end of the connected socket `fd` may name the GID `named`, to which
// our device, whose GID is `own`, would connect. If ours is an IP address, so is the peer's: the
// one that it connects from. VERBENA_SOFT_ANY_SOURCE=1 allows others.
bool MayNameGid(int fd, const ibv_gid& own, const ibv_gid& named);

}  // namespace verbena::internal::preload

#endif  // VERBENA_TRANSPORT_PRELOAD_RDMA_CM_ADDRESSES_H_
