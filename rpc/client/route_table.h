// RouteTable: which server a route key belongs to, by weighted rendezvous hashing.
//
// A key falls into one of kSlots slots, and each slot belongs to the server with the highest score
// for it. A score depends on the slot, and on the server's hash and weight, alone. So all clients
// with equal sets agree, and a server that comes or goes moves only its own slots. Setting a set
// that differs by one server costs one score for each slot, some 80 µs. A value; one thread.

#ifndef VERBENA_RPC_CLIENT_ROUTE_TABLE_H_
#define VERBENA_RPC_CLIENT_ROUTE_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace verbena::internal {

// The same in every process: FNV-1a.
uint64_t StableHash(std::string_view text);

// A bijection that spreads every bit: the finalizer of SplitMix64.
inline uint64_t MixBits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

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

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_ROUTE_TABLE_H_
