// PeerAddress: the IP address of a bootstrap connection's peer, and what it says of the addresses
// that peers announce. Pure functions.

#ifndef VERBENA_TRANSPORT_CONNECT_PEER_ADDRESS_H_
#define VERBENA_TRANSPORT_CONNECT_PEER_ADDRESS_H_

#include <netinet/in.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace verbena::internal {

// `peer` is MessageStream::peer(). An IPv4 address is mapped into IPv6, as in a GID. None if `peer`
// is no IP address with a port, or an address that only counts on one interface ("fe80::1%eth0").
std::optional<in6_addr> PeerAddress(const std::string& peer);

// 127.0.0.0/8, also mapped, and ::1.
bool IsLoopback(const in6_addr& address);

// 0.0.0.0/8, also mapped, and ::.
bool IsUnspecified(const in6_addr& address);

// True if the peer has an IP address that other hosts can have a route to: neither loopback nor
// unspecified.
bool IsBeyondLoopback(const std::string& peer);

// The address at which a client reaches the TCP wire of a server that announces the GID
// `announced`: that address, or the one by which the client reached the server's bootstrap (`peer`)
// if the server announces a loopback address or none. So a server behind a wildcard address needs
// no configuration, and no server makes a client connect to the client's own host.
std::array<uint8_t, 16> ReachableAddress(const std::array<uint8_t, 16>& announced,
                                         const std::string& peer);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_CONNECT_PEER_ADDRESS_H_
