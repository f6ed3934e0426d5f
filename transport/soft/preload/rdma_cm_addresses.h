// Socket addresses of ids.

#ifndef VERBENA_TRANSPORT_SOFT_PRELOAD_RDMA_CM_ADDRESSES_H_
#define VERBENA_TRANSPORT_SOFT_PRELOAD_RDMA_CM_ADDRESSES_H_

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

}  // namespace verbena::internal::preload

#endif  // VERBENA_TRANSPORT_SOFT_PRELOAD_RDMA_CM_ADDRESSES_H_
