// HandshakeGate: bounds what clients may take of a server by connecting: handshakes under way, in
// all and per source address, and links per client and per source. It also chooses the executor of
// each link, and compares the address that a client claims with the one that it connects from.
//
// A connection is silent until its Hello has come, pending until its Ready has come, and then open
// until its link ends. When too many are under way, the gate evicts a silent one of the source that
// has most of these: the one that has waited longest. If none is silent, it evicts a pending one of
// the source that has most: one that the server answered more than a second ago; otherwise the
// newest if it has no answer; otherwise the oldest. So a source that floods closes its own
// connections, and a client of another source gets in. Offers of one source, and of sources that
// have as many, do not close each other until a second after the server's answer: the gate refuses
// a new one instead.
//
// A client that is refused for a bound of handshakes, or evicted before the server's answer, hears
// when to come again. The clients of all sources that the bounds in all refuse get turns one after
// another, and so do the clients that the bounds of one source refuse. Each gets a later turn than
// the client before it, but at most 10 s from now, or 4 s if it was silent. A refused connection
// counts no more, and closes once the refusal is sent. The gate wraps each stream: Receive() and
// Send() of an evicted one return the refusal, and Send() sends it first. A stream counts until its
// link, once torn down, destroys it.
//
// Used by the accept loop; streams are destroyed on any executor's thread. Bounded by its limits,
// and by the links of the endpoints.

#ifndef VERBENA_RPC_SERVER_HANDSHAKE_GATE_H_
#define VERBENA_RPC_SERVER_HANDSHAKE_GATE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/server.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/connect/peer.h"

namespace verbena {
class Executor;
}  // namespace verbena

namespace verbena::internal {

struct HandshakeStats {
  uint64_t evicted_silent = 0;
  uint64_t evicted_pending = 0;  // their Hello had come, their Ready had not
  uint64_t refused = 0;  // over the bound of their client or source, or by their claimed address
  uint32_t under_way = 0;
  std::vector<uint32_t> links = {};  // placed on each executor, pending ones included
};

// INVALID_ARGUMENT names a field that is 0.
absl::Status CheckLimits(const HandshakeLimits& limits);

class HandshakeGate {
 public:
  // `limits` are as CheckLimits() takes them; `executors` are the server's, of which the first runs
  // the accept loop; they outlive the gate. Each takes `links_per_executor` links.
  HandshakeGate(const HandshakeLimits& limits, std::vector<Executor*> executors,
                uint32_t links_per_executor);
  HandshakeGate(const HandshakeGate&) = delete;
  HandshakeGate& operator=(const HandshakeGate&) = delete;
  ~HandshakeGate();

  // `stream`, counted until it is destroyed. Closes others if too many are under way.
  std::unique_ptr<MessageStream> Admit(std::unique_ptr<MessageStream> stream);

  // The executor that a link gets, by its index: as the client wishes, or the one with the fewest
  // links. From now on `stream`, which Admit() returned, belongs to that executor's thread.
  // RESOURCE_EXHAUSTED if its client or source has too many links, or there are too many offers
  // that are young, or it was just evicted; PERMISSION_DENIED as HandshakeLimits::claimed_address
  // says. On the thread that runs the accept loop.
  absl::StatusOr<size_t> Place(MessageStream& stream, const LinkParameters& offer);

  HandshakeStats stats() const;

 private:
  class State;
  class Stream;

  const std::shared_ptr<State> state_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_HANDSHAKE_GATE_H_
