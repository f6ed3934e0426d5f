// LinkLeases: the leases that a link has opened for its peer, and the queue of those
// that wait to open more.
//
// A lease needs a memory window, and a place in the send queue for its binding. Whoever finds too
// few of either waits here, first come, first served. Part of a LinkSender, which posts bindings
// and invalidations, on its executor's thread. The table's bounds are LeaseLimits; a waiter belongs
// to whoever waits.

#ifndef VERBENA_TRANSPORT_LINK_LINK_LEASES_H_
#define VERBENA_TRANSPORT_LINK_LINK_LEASES_H_

#include <infiniband/verbs.h>

#include <algorithm>
#include <cstdint>

#include "verbena/transport/base/waiter_queue.h"
#include "verbena/transport/link/lease_limits.h"
#include "verbena/transport/link/lease_table.h"
#include "verbena/transport/link/link_send_queue.h"
#include "verbena/transport/link/link_waiters.h"

namespace verbena::internal {

class LinkLeases {
 public:
  LinkLeases(Device& device, ibv_pd* pd, const LeaseLimits& limits) : table_(device, pd, limits) {}

  LeaseTable& table() { return table_; }
  const LeaseTable& table() const { return table_; }

  // Leases that can be opened now. Bindings take slots of `queue`, of which one must be left for
  // the SEND that tells of them.
  uint32_t free(const LinkSendQueue& queue) const {
    return std::min(table_.free(), queue.FreeSlots(table_.bindings_due() + 1));
  }

  void Await(LeaseWaiter& waiter) { waiters_.Add(waiter); }
  bool awaited() const { return !waiters_.empty(); }
  // Wakes those whose leases are free. Returns how many leases must be free before the next one
  // wakes; 0 if nobody waits any more.
  [[nodiscard]] uint32_t Wake(const LinkSendQueue& queue);

  // The link is lost: tells those that wait, and the listeners of leases.
  void Lose();

 private:
  LeaseTable table_;
  WaiterQueue<LeaseWaiter> waiters_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_LINK_LEASES_H_
