// WaiterQueue: waiters for one thing, served in the order in which they came.
//
// Owns nothing: a waiter that is destroyed leaves the queue, so that a coroutine may be destroyed
// while it waits. Waiter derives from IntrusiveNode<Waiter>. One thread.
//
//   WaiterQueue<LeaseWaiter> waiters;
//   waiters.Add(waiter);
//   while (!waiters.empty() && HasLeases()) {
//     waiters.ServeFirst([](LeaseWaiter& first) { first.OnLeasesFree(); });
//   }

#ifndef VERBENA_TRANSPORT_BASE_WAITER_QUEUE_H_
#define VERBENA_TRANSPORT_BASE_WAITER_QUEUE_H_

#include "verbena/transport/base/intrusive_list.h"

namespace verbena::internal {

template <typename Waiter>
class WaiterQueue {
 public:
  bool empty() const { return waiters_.empty(); }
  // Whether ServeFirst() is under way.
  bool serving() const { return serving_; }
  // nullptr if nobody waits.
  Waiter* first() { return waiters_.Front(); }

  void Add(Waiter& waiter) { waiters_.PushBack(waiter); }
  // Takes the first one off the queue, and calls `serve` with it. Precondition: !empty(), and the
  // queue outlives the call.
  template <typename Serve>
  void ServeFirst(Serve serve) {
    Waiter& waiter = *waiters_.PopFront();
    serving_ = true;
    serve(waiter);
    serving_ = false;
  }
  // Moves all of them to the end of `other`.
  void MoveTo(WaiterQueue& other) { other.waiters_.Append(waiters_); }
  // Takes all off the queue, and tells none.
  void Clear() {
    while (waiters_.PopFront() != nullptr) {
    }
  }

 private:
  IntrusiveList<Waiter> waiters_;
  bool serving_ = false;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_BASE_WAITER_QUEUE_H_
