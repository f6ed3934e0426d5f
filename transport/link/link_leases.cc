#include "verbena/transport/link/link_leases.h"

namespace verbena {

uint32_t LinkLeases::Wake(const LinkSendQueue& queue) {
  // Each waiter takes its leases a moment after it is told, so the promised ones are counted here.
  uint32_t promised = 0;
  while (LeaseWaiter* waiter = waiters_.Front()) {
    const uint32_t wanted = promised + waiter->leases_wanted;
    if (free(queue) < wanted) return wanted;
    promised = wanted;
    waiter->IntrusiveNode<LeaseWaiter>::Unlink();
    waiter->OnLeasesFree();
  }
  return 0;
}

void LinkLeases::Lose() {
  while (LeaseWaiter* waiter = waiters_.PopFront()) waiter->OnLinkLost();
  table_.Lose();
}

}  // namespace verbena
