// LeaseTable: the leases of one link, with their windows and the memory that they open.
//
// Under LeaseLevel::kStrict a lease is a memory window. A WR that is posted ahead of every SEND
// that could tell of the window binds it. The peer's SEND_WITH_INV ends it, or a LOCAL_INV of ours.
// A LOCAL_INV is posted only when the peer has said that it is done: invalidating under a WRITE
// ends the queue pair. Under kRegion a lease is a promise, and ends with the peer's word.
//
// The table keeps the memory of every lease, also of one that was abandoned because its holder is
// gone. Such memory is in quarantine, bounded in bytes and in time. After that time the table
// invalidates the window of an abandoned loan, since nobody will ever say that the peer is done. An
// abandoned call's lease, or one without a window, costs the link, since its peer owes that word.
// When the link is lost, the table hands out the memory that it keeps, for whoever waits until the
// device is proven to be done with it (Endpoint).
//
// Part of a LinkLeases. The link's LinkSender knows the queue pair and the positions of the send
// queue. One thread.

#ifndef VERBENA_TRANSPORT_LINK_LEASE_TABLE_H_
#define VERBENA_TRANSPORT_LINK_LEASE_TABLE_H_

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/link/lease.h"
#include "verbena/transport/link/lease_limits.h"
#include "verbena/transport/link/lease_requests.h"
#include "verbena/transport/link/window_pool.h"

namespace verbena::internal {

class LeaseTable {
 public:
  // `limits.level` is not kAuto.
  LeaseTable(Device& device, ibv_pd* pd, const LeaseLimits& limits);
  LeaseTable(const LeaseTable&) = delete;
  LeaseTable& operator=(const LeaseTable&) = delete;
  // No lease is left: TakeAll() saw to that.
  ~LeaseTable();

  // Whether `view` may be leased: as CheckRegistered(), and INVALID_ARGUMENT for memory that is not
  // registered for this use; UNIMPLEMENTED for atomics if the device has none.
  absl::Status Check(const BufferView& view, LeaseAccess access) const;
  // Leases that can be opened now, as far as windows and the next chain allow (Link::free_leases()
  // counts send queue slots, too). If the device has given no window at all, this is as many as fit
  // a chain, so that callers try Open() and get the error.
  uint32_t free() const;
  // Calls of WindowPool's functions. Under kRegion there is nothing to refill.
  uint32_t BeginRefill(uint32_t wanted);
  void Refill(WindowBatch batch) { windows_.Refill(std::move(batch)); }
  std::vector<MwHandle> TakeWorn() { return windows_.TakeWorn(); }
  // Opens a lease of `view`, which is not empty. nullptr when no window is free. Errors as
  // Check(); RESOURCE_EXHAUSTED while too much is in quarantine, or for one loan too many.
  absl::StatusOr<Lease*> Open(const BufferView& view, LeaseAccess access,
                              LeaseUse use = LeaseUse::kCall);
  // The peer says that it is done with the lease. The listener, who may be null, hears when that is
  // proven: before this returns if nothing is left to do.
  void End(Lease& lease, LeaseListener* listener);
  // The listener of End() is gone.
  static void Forget(Lease& lease) { lease.listener_ = nullptr; }
  // From `now` on, nobody waits for the peer's word any more. End() is still called when that word
  // comes.
  void Abandon(Lease& lease, TimePoint now);
  // A SEND_WITH_INV of the peer's has invalidated `rkey`.
  void OnInvalidated(uint32_t rkey);

  size_t count() const { return open_.size(); }
  size_t quarantined_bytes() const { return quarantined_bytes_; }
  // Ends loans that have been in quarantine since before `now` − LeaseLimits::grace and have a
  // window; DEADLINE_EXCEEDED when there is another such lease.
  absl::Status CheckGrace(TimePoint now);

  // The work requests that begin and end leases, as LeaseRequests says.
  //
  // Bindings that are to be posted before the next SEND: they have send queue slots reserved.
  uint32_t bindings_due() const { return requests_.bindings_due(); }
  bool work_due() const { return requests_.work_due(); }
  uint32_t Prepare(uint32_t slots) { return requests_.Prepare(slots); }
  ibv_send_wr* chain() { return requests_.chain(); }
  bool Placed(uint32_t last_position) { return requests_.Placed(last_position); }
  bool more_due() const { return requests_.more_due(); }
  void Posted() { requests_.Posted(); }
  // Every WR before send queue position `completed` has ended well.
  void Completed(uint32_t completed) {
    requests_.Completed(completed, [this](Lease& lease) { Release(lease); });
  }

  // The link is lost: tells the listeners.
  void Lose();
  // Hands out everything, before the windows and then the queue pair are destroyed. The pins keep
  // the memory.
  struct Remains {
    std::vector<MwHandle> windows;
    std::vector<BufferPin> pins;
  };
  Remains TakeAll();

 private:
  absl::Status CheckBounds(LeaseUse use) const;
  Lease& NewLease();
  // The lease is over: gives its window and memory back, and tells the listener.
  void Release(Lease& lease);

  Device& device_;
  const LeaseLimits limits_;
  ibv_pd* const pd_;
  WindowPool windows_;
  std::vector<std::unique_ptr<Lease>> all_;
  std::vector<Lease*> pool_;  // those not open; poisoned
  std::vector<Lease*> open_;
  size_t quarantined_bytes_ = 0;
  size_t loans_ = 0;
  LeaseRequests requests_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_LEASE_TABLE_H_
