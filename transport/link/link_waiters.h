// SendWaiter and LeaseWaiter: a frame that waits to be appended, and somebody who waits to open
// leases.
//
// A waiter belongs to its owner, which may destroy it at any time: that takes it off its queue
// (waiter_queue.h). On the thread of the link's executor.

#ifndef VERBENA_TRANSPORT_LINK_LINK_WAITERS_H_
#define VERBENA_TRANSPORT_LINK_LINK_WAITERS_H_

#include <cstddef>
#include <cstdint>

#include "verbena/transport/base/intrusive_list.h"

namespace verbena::internal {

class Link;

// A frame that could not be appended yet.
class SendWaiter : public IntrusiveNode<SendWaiter> {
 public:
  virtual ~SendWaiter() = default;
  // There is room for one frame with a body of body_bytes: appends it now. The waiter is off the
  // queue.
  virtual void OnWritable(Link& link) = 0;

  size_t body_bytes = 0;
  // The key that its SEND invalidates, as Link::Append() takes it.
  uint32_t invalidated = 0;
};

// Somebody who waits until leases can be opened.
class LeaseWaiter : public IntrusiveNode<LeaseWaiter> {
 public:
  virtual ~LeaseWaiter() = default;
  // Link::free_leases() is at least leases_wanted. The waiter is off the queue.
  virtual void OnLeasesFree() = 0;
  virtual void OnLinkLost() = 0;

  uint32_t leases_wanted = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_LINK_WAITERS_H_
