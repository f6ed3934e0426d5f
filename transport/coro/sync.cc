#include "verbena/transport/coro/sync.h"

namespace verbena {

Semaphore::Awaiter::~Awaiter() {
  LeaveQueue();
  if (served_) semaphore_.Release(permits_);
}

// Waiters behind this one may fit now, because they need fewer permits.
void Semaphore::Awaiter::LeaveQueue() {
  if (!internal::IntrusiveNode<Awaiter>::linked()) return;
  internal::IntrusiveNode<Awaiter>::Unlink();
  semaphore_.ServeWaiters();
}

void Semaphore::ServeWaiters() {
  while (Awaiter* first = waiters_.Front()) {
    if (first->permits_ > available_) return;
    available_ -= first->permits_;
    waiters_.PopFront();
    first->served_ = true;
    first->Resume();
  }
}

}  // namespace verbena
