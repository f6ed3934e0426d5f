// Balancing: how a channel to a set of servers chooses the server of a call; EjectionOptions: when
// it stops calling one; ChannelServer: one of these servers, as an executor sees it.
//
// Each executor chooses by itself, among the servers that it has a link to (ready). A stream
// chooses once, when it begins.

#ifndef VERBENA_RPC_BALANCING_H_
#define VERBENA_RPC_BALANCING_H_

#include <chrono>
#include <cstdint>

#include "absl/status/status.h"
#include "verbena/rpc/resolver.h"
#include "verbena/transport/base/clock.h"

namespace verbena {

enum class Balancing : uint8_t {
  // The first server, in the order of the set, that can be reached. Later ones are connected only
  // while all before them fail: for a primary and its stand-ins.
  kPickFirst,
  // One after another.
  kRoundRobin,
  // One after another, each as often as its weight says.
  kWeighted,
  // The one of two random servers that has fewer calls of this executor in flight, in proportion to
  // its weight: for calls that differ in cost, and servers that differ in speed.
  kLeastInFlight,
  // By CallOptions::route_key, among the servers that are ready here and, with
  // ChannelOptions::zone, in that zone. Executors that see the same servers send a key to the same
  // one. When a server comes or goes, only its own keys move (rendezvous hashing). While a key's
  // server is not connected, as at the start, its calls go to another one: use keys for caches, not
  // for ownership. A server gets keys in proportion to its weight. Calls without a key take turns,
  // as with kRoundRobin. With ChannelOptions::executors_per_server, a key has an executor of its
  // own, too.
  kRouteKey,
};

// A server that fails or is slow, while the others are not, gets no calls for some time. It stays
// connected (ChannelServer::State::kEjected), and gets calls again when the time is over. Each
// executor judges for itself, once in each interval, by the calls that it made.
//
// A failure is a link that was lost under calls, a deadline that passed before the server answered,
// or an answer of UNAVAILABLE or INTERNAL with Outcome::kMaybeExecuted, as of a handler that threw.
// Any other answer is no failure, whatever its code: an application's errors eject nobody. A fault
// that more than half of the servers share ejects nobody, either.
//
//   Channel channel(*runtime, target, {.ejection = {.interval = 1s, .latency_factor = 5}});
struct EjectionOptions {
  // 0, the default: nobody is ejected, and no call pays for it. Otherwise 1 ms to 1 h.
  Duration interval = std::chrono::seconds(0);
  // This many failures, without an answer in between, eject a server. 0: not judged by this.
  uint32_t consecutive_failures = 5;
  // Ejects a server if at least this many percent of its calls failed in an interval, 1 to 100. 0:
  // not judged by this.
  uint32_t failure_percent = 50;
  // failure_percent does not judge a server that had fewer calls in an interval. At least 1.
  uint32_t min_calls = 20;
  // Ejects a server whose calls took longer on average than the median of the servers' averages, by
  // this factor: 1.5 to 1000. One call in 16 is timed. A server needs 4 timed calls in an interval
  // to be judged. 0, the default: not judged by this. For servers and calls that should not differ
  // much.
  double latency_factor = 0;
  // The length of the first ejection; the n-th is n times as long. The count falls by one if the
  // server is not ejected again for as long as its last ejection took. 1 ms to longest_ejection.
  Duration first_ejection = std::chrono::seconds(10);
  // At most 24 h.
  Duration longest_ejection = std::chrono::minutes(5);
  // At most this many percent of the ready servers are ejected at once: 1 to 50.
  uint32_t max_ejected_percent = 50;
};

struct ChannelServer {
  enum class State : uint8_t {
    kIdle,        // no link is wanted yet
    kConnecting,  // the first attempt, or the first after a link was lost
    kReady,       // takes calls
    kFailing,     // the last attempt failed, and further ones follow
    kEjected,  // connected, but takes no calls for a while (EjectionOptions); last_error says why
  };

  ResolvedServer server = {};
  State state = State::kIdle;
  // Calls and streams of this executor, of all channels that share the connection.
  uint32_t in_flight = 0;
  // Attempts to connect that have failed since the last link was usable.
  uint32_t failures = 0;
  // Why the last attempt failed, why the server is ejected, or why it is not connected though the
  // policy wants it. OK otherwise.
  absl::Status last_error = {};
};

}  // namespace verbena

#endif  // VERBENA_RPC_BALANCING_H_
