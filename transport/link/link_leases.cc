#include "verbena/transport/link/link_leases.h"

namespace verbena::internal {

uint32_t LinkLeases::Wake(const LinkSendQueue& queue) {
  // Each waiter takes its leases a moment after it is told, so the promised ones are counted here.
  uint32_t promised = 0;
  while (LeaseWaiter* waiter = waiters_.first()) {
    const uint32_t wanted = promised + waiter->leases_wanted;
    if (free(queue) < wanted) return wanted;
    promised = wanted;
    waiters_.ServeFirst([](LeaseWaiter& first) { first.OnLeasesFree(); });
  }
  return 0;
}

void LinkLeases::Lose() {
  while (!waiters_.empty()) {
    waiters_.ServeFirst([](LeaseWaiter& first) { first.OnLinkLost(); });
  }
  table_.Lose();
}

}  // namespace verbena::internal
