// TcpSilent: the sockets that a listener has accepted and that have not greeted, by source.
//
// The listener's owner bounds it (TcpWire::kMaxSilent, CmAcceptor::kMostSilent). For one more
// socket, the oldest of the source that has most of them makes way, and the owner closes it. So
// whoever opens many pushes out its own. Not synchronized.

#ifndef VERBENA_TRANSPORT_SOFT_TCP_SILENT_H_
#define VERBENA_TRANSPORT_SOFT_TCP_SILENT_H_

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>

#include "verbena/transport/soft/device_address.h"

namespace verbena::internal::soft {

class TcpSilent {
 public:
  size_t size() const { return sockets_.size(); }
  void Add(uint64_t id, const ibv_gid& source);
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
  uint64_t TakeOldestOfMost(const ibv_gid& newcomer);

 private:
  struct Socket {
    uint64_t id;
    DeviceAddress source;  // the first address of its range
  };

  void Uncount(const DeviceAddress& source);

  std::deque<Socket> sockets_;  // oldest first
  std::map<DeviceAddress, size_t> counts_;
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_TCP_SILENT_H_
