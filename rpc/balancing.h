// Balancing: how a channel to a set of servers chooses the server of a call; ChannelServer: one of
// these servers, as an executor sees it.
//
// Each executor chooses by itself, among the servers that it has a link to (ready). A stream
// chooses once, when it begins.

#ifndef VERBENA_RPC_BALANCING_H_
#define VERBENA_RPC_BALANCING_H_

#include <cstdint>

#include "absl/status/status.h"
#include "verbena/rpc/resolver.h"

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
  // as with kRoundRobin.
  kRouteKey,
};

struct ChannelServer {
  enum class State : uint8_t {
    kIdle,        // no link is wanted yet
    kConnecting,  // the first attempt, or the first after a link was lost
    kReady,       // takes calls
    kFailing,     // the last attempt failed, and others follow
  };

  ResolvedServer server = {};
  State state = State::kIdle;
  // Calls and streams of this executor, of all channels that share the connection.
  uint32_t in_flight = 0;
  // Attempts to connect that failed since a link was last of use.
  uint32_t failures = 0;
  // Why the last attempt failed; OK otherwise.
  absl::Status last_error = {};
};

}  // namespace verbena

#endif  // VERBENA_RPC_BALANCING_H_
