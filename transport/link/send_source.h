// SendSource: the links to one source address, and the send buffers of their endpoint that they
// hold.
//
// A peer keeps a buffer for as long as it leaves the SEND in it unacknowledged. Nobody can have
// many addresses, so the links to one address are bounded together (send_buffers.h). Owned by the
// endpoint, for as long as it has a link to that address. One thread.

#ifndef VERBENA_TRANSPORT_LINK_SEND_SOURCE_H_
#define VERBENA_TRANSPORT_LINK_SEND_SOURCE_H_

#include <cstdint>
#include <string>
#include <utility>

#include "verbena/transport/coro/intrusive_list.h"

namespace verbena {

// A link's place among those that wait for send buffers.
class RoomWaiter : public IntrusiveNode<RoomWaiter> {};

// In a list of SendRoom while links to it wait because it is full.
struct SendSource : IntrusiveNode<SendSource> {
  // `bounded` is false if `name` stands for peers that are not told apart.
  SendSource(std::string name, bool bounded) : name(std::move(name)), bounded(bounded) {}

  const std::string name;
  const bool bounded;
  uint32_t links = 0;
  uint32_t held = 0;
  // Links that hold no buffer, until the source holds less than it may.
  IntrusiveList<RoomWaiter> waiters;
};

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_LINK_SEND_SOURCE_H_
