// TcpShares: the bounds of what peers take of a device by connecting over TCP, and of what one
// source may have of it.
//
// A source is an IPv4 address, or the /64 of an IPv6 address. It may hold as much of something as
// is left for all others: so one source takes at most a half, a second one at most a quarter, and a
// host that has nothing yet always finds something. A share is held until the object that Take
// returned is destroyed. TcpWire owns it. Any thread; shares may outlive it.
//
//   TcpShares shares;
//   absl::StatusOr<TcpShares::Share> share =
//       shares.Take(source.address, {{.kind = TcpShares::Kind::kPeers, .limit = 4096}});
//   if (!share.ok()) …  // its message says what the source holds

#ifndef VERBENA_TRANSPORT_SOFT_TCP_SHARES_H_
#define VERBENA_TRANSPORT_SOFT_TCP_SHARES_H_

#include <infiniband/verbs.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <memory>

#include "absl/status/statusor.h"

namespace verbena::internal::soft {

// Memory for the rings of all connections to a device, if nobody says how much: a quarter of the
// machine's, since who has more of it has more clients, and 4 GiB at least: it is address space,
// and resident only where something was written. (start)
constexpr uint64_t LaneBytesOf(uint64_t machine_bytes) {
  return std::max(machine_bytes / 4, uint64_t{4} << 30);
}

class TcpShares {
 public:
  enum class Kind : uint8_t {
    kPeers,      // devices that there is a session with
    kSockets,    // connections that have greeted, or were dialed
    kLaneBytes,  // memory for rings
    kLanes,      // connections of one CQ
  };
  struct Wanted {
    Kind kind = Kind::kPeers;
    uint64_t amount = 1;
    uint64_t limit = 0;  // for all sources together
    uint64_t cq = 0;     // of kLanes: whose
  };
  using Share = std::shared_ptr<const void>;

  TcpShares();
  TcpShares(const TcpShares&) = delete;
  TcpShares& operator=(const TcpShares&) = delete;
  ~TcpShares() = default;

  // All that is wanted, or nothing: RESOURCE_EXHAUSTED says what the source may not have.
  absl::StatusOr<Share> Take(const ibv_gid& source, std::initializer_list<Wanted> wanted);

 private:
  struct Held;
  class Taken;

  // Shares may outlive the device.
  const std::shared_ptr<Held> held_;
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_TCP_SHARES_H_
