// HandshakeLimits: how much of a server its clients may take by connecting.
//
// Owned by the caller of Server::Start(), which copies it. Each bound holds for one server, over
// all its executors. Each number is in [1, 2^32 - 1], except that links_per_source may be 0. For
// any other 0, Server::Start() returns INVALID_ARGUMENT and names the field. Over a bound of
// handshakes, the server closes one of those under way (docs/peers.md says which). Over a bound of
// links, it refuses the new link with RESOURCE_EXHAUSTED. Over offers_per_source, it refuses the
// new offer in the same way while the source's oldest offer is younger than a second.

#ifndef VERBENA_RPC_HANDSHAKE_LIMITS_H_
#define VERBENA_RPC_HANDSHAKE_LIMITS_H_

#include <cstdint>

namespace verbena {

// A server's policy for a client over RoCE version 2 or TCP whose GID, an IP address, is not the
// one that it connects from (docs/peers.md).
enum class ClaimedAddress : uint8_t {
  kIgnore,  // not compared
  kLog,     // serves it, and warns in the log, once in ten minutes
  kRefuse,  // PERMISSION_DENIED
};

struct HandshakeLimits {
  // Handshakes under way. Also never more than a quarter of the descriptors that the process may
  // have (RLIMIT_NOFILE). (start)
  uint32_t handshakes = 1024;
  uint32_t handshakes_per_source = 128;
  // Handshakes whose Hello has come, so that a queue pair is made for them. (start)
  uint32_t offers = 256;
  // offers_per_source is no bound for clients of a FileBootstrap, which names no hosts.
  uint32_t offers_per_source = 64;
  // Open links of one runtime, per source address that it has. (start)
  uint32_t links_per_client = 256;
  // Links of one source address, pending ones included. 0, the default: three quarters of
  // LinkLimits::max_links on each executor, and at most half of the descriptors that the process
  // may have (each link keeps one descriptor). The rest is for other addresses. The default does
  // not bound processes of the server's own host, which share everything else with it anyway, nor
  // clients of a FileBootstrap, whose addresses it does not know. Any other value bounds these,
  // too, over all executors together. Set it if many clients share one address behind a NAT, or one
  // /64 of IPv6.
  uint32_t links_per_source = 0;
  // By default the server only warns, since hosts may have a network for storage beside the one
  // that they connect by. kRefuse suits a site where clients connect by the network of their RDMA
  // devices. kRefuse does not stop a client from making the server send to another host if the two
  // addresses cannot be compared: one is IPv4 and the other IPv6, or one is a loopback or
  // link-local address.
  ClaimedAddress claimed_address = ClaimedAddress::kLog;
};

}  // namespace verbena

#endif  // VERBENA_RPC_HANDSHAKE_LIMITS_H_
