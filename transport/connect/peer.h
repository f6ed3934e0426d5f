// The terms that one side of a link tells the other: RuntimeId, LinkKind, RdmaCmService,
// ExecutorWish, OfferedMethod and LinkParameters.
//
// Values; any thread. A peer's are claims; the handshake (handshake.h) checks them before it
// returns them.

#ifndef VERBENA_TRANSPORT_CONNECT_PEER_H_
#define VERBENA_TRANSPORT_CONNECT_PEER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "verbena/transport/base/socket.h"

namespace verbena::internal {

// RuntimeId: 128 random bits that name a runtime to the servers it connects to.
//
// A runtime draws its id once, from the kernel's generator, and sends it in the Hello of each link.
// Servers bound what one client may take by this id. It is a claim, not an identity: a hostile
// client may draw a new id per link, so servers also bound each source address. Immutable.
struct RuntimeId {
  static constexpr size_t kBytes = 16;

  // Fresh random bits. Aborts if the kernel gives none.
  static RuntimeId Random();

  // 32 hexadecimal digits, for logs.
  std::string ToString() const;

  friend bool operator==(const RuntimeId&, const RuntimeId&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const RuntimeId& id) {
    return H::combine(std::move(state), id.bytes);
  }

  std::array<uint8_t, kBytes> bytes{};
};

// The kind of network that a queue pair runs on; both sides must have the same. The values are
// those of the wire. kRoce is version 2; packets of the other version are dropped without a word.
// kSoft is the software device over shared memory, kTcp the software device over TCP: there the GID
// is an IP address (IPv4 mapped), and the LID its TCP port.
enum class LinkKind : uint8_t {
  kSoft = 1,
  kInfiniBand = 2,
  kRoce = 3,
  kIwarp = 4,
  kRoceV1 = 5,
  kTcp = 6,
};

const char* LinkKindName(LinkKind kind);

// The bounds that the handshake enforces. A side whose own limits are lower refuses by itself.
inline constexpr uint32_t kMaxIssuedCredits = 1u << 15;
inline constexpr uint32_t kMinEagerBytes = 1024;
inline constexpr uint32_t kMaxEagerBytes = 1024 * 1024;
inline constexpr uint32_t kMaxExecutors = 1024;
inline constexpr size_t kMaxPeerNameBytes = 256;
// A bootstrap message has room for them.
inline constexpr size_t kMaxMethods = 4096;

// The address of a server's connection manager, and the token that its client shows there.
struct RdmaCmService {
  IpAddress address{};
  uint16_t port = 0;  // 0: there is none
  uint64_t token = 0;
};

// Which executor of the server a client asks for.
enum class ExecutorChoice : uint8_t {
  kAny = 0,     // the server chooses, usually the one with the fewest links
  kNumber = 1,  // by number, modulo how many the server has
  kKey = 2,     // by key: equal keys give the same executor of one server
};

struct ExecutorWish {
  ExecutorChoice choice = ExecutorChoice::kAny;
  uint32_t number = 0;  // kNumber; less than kMaxExecutors
  uint64_t key = 0;     // kKey
};

// A method that a server tells its clients of.
struct OfferedMethod {
  // The shape of a method whose server tells none, as servers of earlier versions do.
  static constexpr uint8_t kShapeUntold = 0xff;
  // The bits that a shape has; a client ignores others.
  static constexpr uint8_t kShapeBits = 0x0f;

  friend bool operator==(const OfferedMethod&, const OfferedMethod&) = default;

  uint64_t id = 0;               // MethodId()
  uint8_t shape = kShapeUntold;  // rpc/call/method_shape.h
};

// LinkParameters: what one side of a link tells the other so that their queue pairs can connect.
struct LinkParameters {
  // For logs; what is not printable arrives escaped.
  std::string name;

  LinkKind kind = LinkKind::kSoft;
  uint32_t wire_revision = 0;  // of kSoft and kTcp: both sides must have the same
  std::array<uint8_t, 16> gid{};
  uint16_t lid = 0;
  uint32_t qp_number = 0;               // 24 bits, not 0
  uint32_t packet_sequence_number = 0;  // the first that this side sends; 24 bits
  uint32_t mtu_bytes = 4096;            // the port's; the link uses the smaller of both
  uint8_t max_reads = 16;               // READs and atomics that this side serves at once

  uint32_t initial_credits = 0;  // SENDs that the peer may post before it is issued more
  uint32_t eager_bytes = 4096;   // the longest SEND that this side receives

  // In an offer with ExecutorChoice::kNumber the executor that the client wants; in an answer the
  // one that it got.
  uint32_t executor_index = 0;
  uint32_t executor_count = 1;  // of this side

  // Only in an offer: the rest of the client's wish, and the id of its runtime.
  ExecutorChoice executor_choice = ExecutorChoice::kAny;
  uint64_t executor_key = 0;
  RuntimeId runtime_id = {};

  // Only in an answer: the server's methods, in the order of their numbers. Either all have a
  // shape, or none.
  std::vector<OfferedMethod> methods = {};
  // Only in an answer: the server's incarnation; 0 if it tells none.
  uint64_t incarnation = 0;
  // Only in an answer whose features have kFeatureRdmaCm.
  RdmaCmService rdma_cm = {};

  // The version and features that both sides speak: the handshake returns them, and ignores them in
  // its arguments.
  uint32_t version = 0;
  uint64_t features = 0;
};

// The use of the addresses that peers announce. Pure functions; `peer` is MessageStream::peer().

// True if the peer has an IP address that other hosts can have a route to: neither loopback nor
// unspecified.
bool IsBeyondLoopback(const std::string& peer);

// The address at which a client reaches the TCP wire of a server that announces the GID
// `announced`: that address, or the one by which the client reached the server's bootstrap (`peer`)
// if the server announces a loopback address or none. So a server behind a wildcard address needs
// no configuration, and no server makes a client connect to the client's own host.
IpAddress ReachableAddress(const IpAddress& announced, const std::string& peer);

// CheckClaimedAddress: compares the GID that a peer claims with the address that it connects from.
//
// On RoCE version 2 and over TCP a GID is an IP address, to which the server sends or connects. A
// peer that connects from another address of the same family may claim an address that is not its
// own, so that the server reaches for a third host. Or its host has a network for storage beside
// the one that it connects by.
//
// PERMISSION_DENIED, with both addresses, if `offer` claims another address than the peer has. OK
// if the addresses are equal, or cannot be compared: the link is neither RoCE version 2 nor TCP,
// `peer` is not an IP address, the families differ, or one of the addresses is loopback or
// link-local. Over TCP a peer beyond loopback may claim neither a loopback address nor none: each
// would be an address of the server's own host.
absl::Status CheckClaimedAddress(const std::string& peer, const LinkParameters& offer);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_CONNECT_PEER_H_
