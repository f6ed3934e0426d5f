// PeerSource: the links to one source address, and what they hold of their endpoint's send buffers
// and credits.
//
// A peer keeps a buffer for as long as it leaves the SEND in it unacknowledged, and credits for as
// long as it sends. Addresses are harder to get than connections, so the links to one address are
// bounded together (send_buffers.h, credits.h). Owned by PeerSources, for as long as there is a
// link to that address. One thread.

#ifndef VERBENA_TRANSPORT_LINK_PEER_SOURCE_H_
#define VERBENA_TRANSPORT_LINK_PEER_SOURCE_H_

#include <cstdint>
#include <string>
#include <utility>

#include "verbena/transport/base/intrusive_list.h"
#include "verbena/transport/base/waiter_queue.h"
#include "verbena/transport/link/credits.h"

namespace verbena::internal {

// A link's place among those that wait for send buffers.
class RoomWaiter : public IntrusiveNode<RoomWaiter> {
 public:
  virtual ~RoomWaiter() = default;
  // There may be a buffer again. The waiter is off the list.
  virtual void OnRoom() = 0;
};

// In a list of SendRoom while links to it wait because it is full.
struct PeerSource : IntrusiveNode<PeerSource> {
  // `bounded` is false if `name` stands for peers that are not told apart.
  PeerSource(std::string name, bool bounded) : name(std::move(name)), bounded(bounded) {}

  const std::string name;
  const bool bounded;
  uint32_t links = 0;
  uint32_t held = 0;  // send buffers
  CreditShare credits;
  // Links that hold no buffer, until the source holds less than it may.
  WaiterQueue<RoomWaiter> waiters;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_PEER_SOURCE_H_
