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

namespace verbena::internal {

class Picker {
 public:
  // The longest order of turns. Weights whose sum is larger are rounded.
  static constexpr size_t kMaxTurns = 4096;

  using Member = RouteTable::Member;

  // Equal seeds give equal picks; clients and executors with different ones begin at different
  // servers.
  Picker(Balancing policy, uint64_t seed) : policy_(policy), random_(MixBits(seed) | 1) {}

  // In the order of the set.
  void Set(const std::vector<Member>& members);
  bool empty() const { return count_ == 0; }

  // The id of a member. `load` gives the calls in flight of an id. Precondition: !empty().
  template <typename Load>
  uint32_t Pick(std::optional<uint64_t> route_key, Load load) {
    if (policy_ == Balancing::kLeastInFlight) return LessLoaded(load);
    if (policy_ == Balancing::kRouteKey && route_key.has_value()) return routes_.Of(*route_key);
    if (next_turn_ == turns_.size()) next_turn_ = 0;
    return turns_[next_turn_++];
  }

 private:
  // The part of a member that LessLoaded() reads.
  struct Candidate {
    uint32_t id;
    uint32_t weight;
  };

  template <typename Load>
  uint32_t LessLoaded(Load load) {
    const Candidate* const candidates = candidates_.data();
    const uint64_t scaled = NextRandom() * count_;
    const uint64_t first = scaled >> 32;
    const Candidate a = candidates[first];
    if (count_ == 1) return a.id;
    // One of the others, by what the first choice has left of the random number.
    uint64_t second = ((scaled & 0xffffffff) * (count_ - 1)) >> 32;
    if (second >= first) ++second;
    const Candidate b = candidates[second];
    return (load(b.id) + uint64_t{1}) * a.weight < (load(a.id) + uint64_t{1}) * b.weight ? b.id
                                                                                         : a.id;
  }
  // The upper 32 bits of a congruential generator, which spread well and cost three instructions.
  uint64_t NextRandom() {
    random_ *= 0xd1342543de82ef95;
    return random_ >> 32;
  }
  void SetTurns(const std::vector<Member>& members);

  const Balancing policy_;
  uint64_t random_;     // odd
  uint64_t count_ = 0;  // of members
  std::vector<Candidate> candidates_;
  std::vector<uint32_t> turns_;  // ids
  size_t next_turn_ = 0;
  RouteTable routes_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_PICKER_H_
