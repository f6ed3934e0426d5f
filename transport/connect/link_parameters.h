// LinkParameters: what one side of a link tells the other so that their queue pairs can connect.

#ifndef VERBENA_TRANSPORT_CONNECT_LINK_PARAMETERS_H_
#define VERBENA_TRANSPORT_CONNECT_LINK_PARAMETERS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "verbena/transport/connect/runtime_id.h"

namespace verbena::internal {

// The kind of network that a queue pair runs on; both sides must have the same. The values are
// those of the wire. kRoce is version 2; packets of the other version are dropped without a word.
// kSoft is the software device over shared memory, kTcp the same over TCP: there the GID is an IP
// address (IPv4 mapped), and the LID its TCP port.
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
  std::array<uint8_t, 16> address{};  // IPv6, or IPv4 mapped
  uint16_t port = 0;                  // 0: there is none
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

struct LinkParameters {
  // For logs; what is not printable arrives escaped.
  std::string name;

  LinkKind kind = LinkKind::kSoft;
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

  // Only in an answer: the ids of the server's methods, in the order of their numbers.
  std::vector<uint64_t> methods = {};
  // Only in an answer: the server's incarnation; 0 if it tells none.
  uint64_t incarnation = 0;
  // Only in an answer whose features have kFeatureRdmaCm.
  RdmaCmService rdma_cm = {};

  // The version and features that both sides speak: the handshake returns them, and ignores them in
  // its arguments.
  uint32_t version = 0;
  uint64_t features = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_CONNECT_LINK_PARAMETERS_H_
