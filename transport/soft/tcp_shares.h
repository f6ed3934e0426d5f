// The bounds of what peers take of a device by connecting over TCP: TcpShares, of what a source
// address has, and TcpSilent, of sockets that have not greeted.
//
// A TcpWire owns them; TcpSilent on the engine's thread.

#ifndef VERBENA_TRANSPORT_SOFT_TCP_SHARES_H_
#define VERBENA_TRANSPORT_SOFT_TCP_SHARES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <map>
#include <memory>

#include "absl/status/statusor.h"
#include "verbena/transport/base/socket.h"

namespace verbena::internal::soft {

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
  absl::StatusOr<Share> Take(const IpAddress& source, std::initializer_list<Wanted> wanted);

 private:
  struct Held;
  class Taken;

  // Shares may outlive the device.
  const std::shared_ptr<Held> held_;
};

// TcpSilent: sockets on which the other side's greeting has not come, by source: those that a
// listener has accepted, or those that were dialed for somebody who is gone.
//
// Its owner bounds it (TcpWire::kMaxSilent, kMaxUnwanted, CmAcceptor::kMostSilent). For one more
// socket, the oldest of the source that has most of them makes way, and the owner closes it. So
// whoever opens many pushes out its own. Not synchronized.
class TcpSilent {
 public:
  size_t size() const { return sockets_.size(); }
  void Add(uint64_t id, const IpAddress& source);
  // Forgets each socket for which gone(id) is true, because it has greeted or is closed.
  template <typename Gone>
  void Forget(Gone gone) {
    std::erase_if(sockets_, [&](const Socket& socket) {
      if (!gone(socket.id)) return false;
      Uncount(socket.source);
      return true;
    });
  }
  // Forgets the socket that makes way for one more of `newcomer`, and returns its id.
  // Precondition: size() > 0.
  uint64_t TakeOldestOfMost(const IpAddress& newcomer);

 private:
  struct Socket {
    uint64_t id;
    IpAddress source;  // the first address of its range
  };

  void Uncount(const IpAddress& source);

  std::deque<Socket> sockets_;  // oldest first
  std::map<IpAddress, size_t> counts_;
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_TCP_SHARES_H_
