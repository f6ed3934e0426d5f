// CheckClaimedAddress: compares the GID that a peer claims with the address that it connects from.
//
// On RoCE version 2 and over TCP a GID is an IP address, to which the server sends or connects. A
// peer that connects from another address of the same family may claim an address that is not its
// own, so that the server reaches for a third host. Or its host has a network for storage beside
// the one that it connects by.

#ifndef VERBENA_TRANSPORT_CONNECT_CLAIMED_ADDRESS_H_
#define VERBENA_TRANSPORT_CONNECT_CLAIMED_ADDRESS_H_

#include <string>

#include "absl/status/status.h"
#include "verbena/transport/connect/link_parameters.h"

namespace verbena::internal {

// `peer` is MessageStream::peer(). PERMISSION_DENIED, with both addresses, if `offer` claims
// another address than the peer has. OK if the addresses are equal, or cannot be compared: the link
// is neither RoCE version 2 nor TCP, `peer` is not an IP address, the families differ, or one of
// the addresses is loopback or link-local. Over TCP a peer beyond loopback may claim neither a
// loopback address nor none: each would be an address of the server's own host.
absl::Status CheckClaimedAddress(const std::string& peer, const LinkParameters& offer);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_CONNECT_CLAIMED_ADDRESS_H_
