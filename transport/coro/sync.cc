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

bool Semaphore::TryAcquire(size_t permits) {
  if (!waiters_.empty() || permits > available_) return false;
  available_ -= permits;
  return true;
}

void Semaphore::Release(size_t permits) {
  available_ += permits;
  ServeWaiters();
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
