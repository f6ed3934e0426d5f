// Listeners of a link: a LinkListener hears of its frames and its end, a SendWaiter and a
// LeaseWaiter of room for what could not go at once, a PongWaiter of answers to PINGs.
//
// RPC implements the first two, one_sided_awaits.h the third, proof.h the fourth. The link calls
// them on the thread of the link's executor.

#ifndef VERBENA_TRANSPORT_LINK_LISTENER_H_
#define VERBENA_TRANSPORT_LINK_LISTENER_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/link/wire_format.h"

namespace verbena::internal {

class Link;

// LinkListener: receives a link's frames, and learns of its end. Must live until OnLinkDown().
class LinkListener {
 public:
  virtual ~LinkListener() = default;

  // The link is open, once: frames may come from now on, and OnLinkDown() ends that. The handshake
  // may still go on.
  virtual void OnLinkOpen(Link&) {}
  // One frame. `body` is valid during the call only. A failed Status says that the peer broke the
  // protocol; it closes the link. PING, PONG and RECALL never come here.
  virtual absl::Status OnFrame(Link& link, const FrameHeader& frame, const char* body) = 0;
  // The full name of the method that a frame is for, to name in a violation; null if none is known.
  virtual const char* MethodOf(const FrameHeader&) const { return nullptr; }
  // The link is lost, once; every frame that was appended may or may not have reached the peer.
  virtual void OnLinkDown(Link& link, const absl::Status& reason) = 0;
  // True while the peer owes frames: then its silence is checked by PING.
  virtual bool ExpectsFrames() const = 0;
  // True while something needs the link though nothing travels on it: then it is not idle.
  virtual bool InUse(const Link&) const { return ExpectsFrames(); }
  // Nothing has travelled for LinkLimits::idle_timeout, and the link is not InUse(). Returns true
  // if it is to be closed at once; false if the listener has asked the peer to close it. Called
  // again after as long a time if it stays idle.
  virtual bool OnIdle(Link&) { return true; }
  // Calls of this side that the peer has not answered, by which frames that leave while a turn goes
  // on are grouped. 0 on the side that answers.
  virtual uint32_t calls_in_flight() const { return 0; }
};

// SendWaiter: a frame that could not be appended yet. Belongs to its owner, which may destroy it at
// any time: that takes it off its queue.
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

// LeaseWaiter: waits until leases can be opened. Belongs to its owner, which may destroy it at any
// time: that takes it off its queue.
class LeaseWaiter : public IntrusiveNode<LeaseWaiter> {
 public:
  virtual ~LeaseWaiter() = default;
  // Link::free_leases() is at least leases_wanted. The waiter is off the queue.
  virtual void OnLeasesFree() = 0;
  virtual void OnLinkLost() = 0;

  uint32_t leases_wanted = 0;
};

// PongWaiter: waits for the answers to PINGs. Belongs to its owner, which may destroy it at any
// time: that takes it off its queue.
class PongWaiter : public IntrusiveNode<PongWaiter> {
 public:
  virtual ~PongWaiter() = default;
  // A PONG with so many bytes of padding has come. The waiter stays in the queue.
  virtual void OnPong(uint32_t padding) = 0;
  // The waiter is off the queue.
  virtual void OnLinkLost(const absl::Status& reason) = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_LISTENER_H_
