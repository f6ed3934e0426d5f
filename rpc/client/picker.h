// Picker: chooses one of the servers that are ready, as a policy says.
//
// The owner sets the members whenever they change, which prepares whatever can be prepared; a pick
// then costs a few instructions. Knows members by ids of the owner's. A value; one thread.
//
//   Picker picker(Balancing::kRoundRobin, seed);
//   picker.Set({{.id = 0}, {.id = 1}});
//   uint32_t id = picker.Pick(route_key, [&](uint32_t id) { return servers[id].load(); });

#ifndef VERBENA_RPC_CLIENT_PICKER_H_
#define VERBENA_RPC_CLIENT_PICKER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "verbena/rpc/balancing.h"
#include "verbena/rpc/client/route_table.h"
#include "verbena/transport/coro/random.h"

namespace verbena::internal {

class Picker {
 public:
  // The longest order of turns. Weights whose sum is larger are rounded.
  static constexpr size_t kMaxTurns = 4096;

  using Member = RouteTable::Member;

  // Equal seeds give equal picks; clients and executors with different ones begin at different
  // servers.
  Picker(Balancing policy, uint64_t seed) : policy_(policy), random_(seed) {}

  // In the order of the set.
  void Set(std::vector<Member> members);
  bool empty() const { return members_.empty(); }

  // The id of a member. `load` gives the calls in flight of an id. Precondition: !empty().
  template <typename Load>
  uint32_t Pick(std::optional<uint64_t> route_key, Load load) {
    if (policy_ == Balancing::kLeastInFlight) return LessLoaded(load);
    if (policy_ == Balancing::kRouteKey && route_key.has_value()) return routes_.Of(*route_key);
    const uint32_t id = turns_[next_turn_];
    if (++next_turn_ == turns_.size()) next_turn_ = 0;
    return id;
  }

 private:
  template <typename Load>
  uint32_t LessLoaded(Load load) {
    const size_t count = members_.size();
    const uint64_t random = random_.Next();
    const size_t first = Scaled(random & 0xffffffff, count);
    const Member& a = members_[first];
    if (count == 1) return a.id;
    // One of the others.
    size_t second = Scaled(random >> 32, count - 1);
    if (second >= first) ++second;
    const Member& b = members_[second];
    return (load(b.id) + uint64_t{1}) * a.weight < (load(a.id) + uint64_t{1}) * b.weight ? b.id
                                                                                         : a.id;
  }
  // `random`, of 32 bits, scaled to [0, count).
  static size_t Scaled(uint64_t random, size_t count) { return (random * count) >> 32; }
  void SetTurns();

  const Balancing policy_;
  SeededRandom random_;
  std::vector<Member> members_;
  std::vector<uint32_t> turns_;  // ids
  size_t next_turn_ = 0;
  RouteTable routes_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_PICKER_H_
