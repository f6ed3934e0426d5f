// The choice of one server among those that are ready: Picker, and RouteTable for calls with a
// route key.
//
// Values; one thread. A RouteTable has kSlots slots, whatever the number of servers.

#ifndef VERBENA_RPC_CLIENT_PICKER_H_
#define VERBENA_RPC_CLIENT_PICKER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "verbena/rpc/policy.h"

namespace verbena::internal {

// A hash that is equal in every process: FNV-1a.
uint64_t StableHash(std::string_view text);

// A bijection that spreads every bit: the finalizer of SplitMix64.
inline uint64_t MixBits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// RouteTable: which server a route key belongs to, by weighted rendezvous hashing.
//
// A key falls into one of kSlots slots, and each slot belongs to the server with the highest score
// for it. A score depends on the slot, and on the server's hash and weight, alone. So all clients
// with equal sets agree, and a server that comes or goes moves only its own slots. Setting a set
// that differs by one server costs one score for each slot, some 80 µs. A value; one thread.
class RouteTable {
 public:
  static constexpr size_t kSlots = 4096;

  struct Member {
    uint32_t id = 0;  // what Of() returns
    uint64_t hash = 0;
    uint32_t weight = 1;

    friend bool operator==(const Member&, const Member&) = default;
  };

  // Ids are distinct. Not empty.
  void Set(const std::vector<Member>& members);
  // The id of the key's server. Precondition: Set() was called.
  uint32_t Of(uint64_t key) const { return owners_[MixBits(key) % kSlots]; }

 private:
  void Add(const Member& member);

  std::vector<Member> members_;
  std::vector<uint32_t> owners_;  // by slot: ids
  std::vector<double> scores_;    // by slot: the owner's
};

// Picker: chooses one of the servers that are ready, as a policy says.
//
// The owner sets the members whenever they change, which prepares whatever can be prepared; a pick
// then costs a few instructions. Knows members by ids of the owner's. A value; one thread.
//
//   Picker picker(Balancing::kLeastInFlight, seed);
//   picker.Set({{.id = 0, .in_flight = &calls[0]}, {.id = 1, .in_flight = &calls[1]}});
//   uint32_t id = picker.Pick(route_key);
class Picker {
 public:
  // The longest order of turns. Weights whose sum is larger are rounded.
  static constexpr size_t kMaxTurns = 4096;

  struct Member {
    uint32_t id = 0;  // what Pick() returns
    uint64_t hash = 0;
    uint32_t weight = 1;
    // Its calls in flight, for kLeastInFlight. Must live until the next Set(), or the last Pick().
    const uint32_t* in_flight = nullptr;
  };

  // Equal seeds give equal picks; clients and executors with different ones begin at different
  // servers.
  Picker(Balancing policy, uint64_t seed) : policy_(policy), random_(MixBits(seed) | 1) {}

  // In the order of the set.
  void Set(const std::vector<Member>& members);
  bool empty() const { return count_ == 0; }

  // The id of a member. Precondition: !empty().
  uint32_t Pick(std::optional<uint64_t> route_key) {
    if (policy_ == Balancing::kLeastInFlight) [[likely]]
      return LessLoaded();
    if (policy_ == Balancing::kRouteKey && route_key.has_value()) return routes_.Of(*route_key);
    if (next_turn_ == turns_.size()) next_turn_ = 0;
    return turns_[next_turn_++];
  }

 private:
  // The part of a member that LessLoaded() reads.
  struct Candidate {
    const uint32_t* in_flight;
    uint32_t weight;
    uint32_t id;
  };

  uint32_t LessLoaded() {
    const Candidate* const candidates = candidates_.data();
    const uint64_t scaled = NextRandom() * count_;
    const uint64_t first = scaled >> 32;
    // One of the others, by what the first choice has left of the random number.
    const uint64_t further = ((scaled & 0xffffffff) * (count_ - 1)) >> 32;
    const Candidate& a = candidates[first];
    const Candidate& b = candidates[first + further + 1];
    return (*b.in_flight + uint64_t{1}) * a.weight < (*a.in_flight + uint64_t{1}) * b.weight ? b.id
                                                                                             : a.id;
  }
  // The upper 32 bits of a congruential generator, which spread well and cost three instructions.
  uint64_t NextRandom() {
    random_ *= 0xd1342543de82ef95;
    return random_ >> 32;
  }
  void SetRoutes(const std::vector<Member>& members);
  void SetTurns(const std::vector<Member>& members);

  const Balancing policy_;
  uint64_t random_;     // odd
  uint64_t count_ = 0;  // of members
  // All members, and all of them again. So LessLoaded() may go on from any member without a look at
  // the end, and an only member has itself behind it.
  std::vector<Candidate> candidates_;
  std::vector<uint32_t> turns_;  // ids
  size_t next_turn_ = 0;
  RouteTable routes_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_PICKER_H_
