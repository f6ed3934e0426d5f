#include "verbena/transport/coro/sync.h"

namespace verbena {

bool internal::OneExecutor::MayBeUsedHere() const {
  const Scheduler* current = Scheduler::Current();
  return current == nullptr || id_ == 0 || id_ == current->id() || !Scheduler::Exists(id_);
}

void internal::OneExecutor::Become(const Scheduler& scheduler, const char* what) {
  VERBENA_CHECK(id_ == 0 || !Scheduler::Exists(id_))
      << what << " is awaited on two executors: it serves one, so have one for each";
  id_ = scheduler.id();
}

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
    first->ResumeAtHome(kWhat);
  }
}

}  // namespace verbena
