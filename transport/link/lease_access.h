// LeaseAccess: what a peer may do to memory that is leased to it: a set. The header includes none
// of libibverbs.
//
//   LeaseAccess counters = LeaseAccess::kRead | LeaseAccess::kAtomic;

#ifndef VERBENA_TRANSPORT_LINK_LEASE_ACCESS_H_
#define VERBENA_TRANSPORT_LINK_LEASE_ACCESS_H_

#include <cstdint>

namespace verbena {

enum class LeaseAccess : uint8_t {
  kNone = 0,
  kWrite = 1,
  kRead = 2,
  kAtomic = 4,  // CompareAndSwap, FetchAdd
};

constexpr LeaseAccess operator|(LeaseAccess a, LeaseAccess b) {
  return static_cast<LeaseAccess>(static_cast<uint8_t>(a) | static_cast<uint8_t>(b));
}
constexpr LeaseAccess operator&(LeaseAccess a, LeaseAccess b) {
  return static_cast<LeaseAccess>(static_cast<uint8_t>(a) & static_cast<uint8_t>(b));
}
// Whether `access` holds all of `wanted`.
constexpr bool Includes(LeaseAccess access, LeaseAccess wanted) {
  return (access & wanted) == wanted;
}

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_LINK_LEASE_ACCESS_H_
