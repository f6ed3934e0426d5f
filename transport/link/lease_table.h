// LeaseTable: the leases of one link, their windows, and the work requests that begin and end them.
//
// Under LeaseLevel::kStrict a lease is a memory window, bound by a WR that is posted ahead of every
// SEND that could tell of it, and ended by the peer's SEND_WITH_INV, or by a LOCAL_INV of ours.
// That is posted only when the peer has said that it is done: invalidating under a WRITE ends the
// queue pair. Under kRegion a lease is a promise, and ends with the peer's word.
//
// The table keeps the memory of every lease, also of an abandoned one, whose holder is gone: such
// memory is in quarantine, bounded in bytes and in time. After that time an abandoned loan's window
// is invalidated, for nobody will ever say that the peer is done; a peer that owes that word for a
// call, or a lease without a window, costs the link. When the link is lost the table hands out what
// it keeps, for whoever waits until the device is proven to be done with it (Endpoint).
//
// Owned by its Link, which knows the queue pair and the send queue's positions. One thread.

#ifndef VERBENA_TRANSPORT_LINK_LEASE_TABLE_H_
#define VERBENA_TRANSPORT_LINK_LEASE_TABLE_H_

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/link/lease.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/window_pool.h"

namespace verbena {

class LeaseTable {
 public:
  // WRs of one chain.
  static constexpr uint32_t kMaxChain = 16;

  // `limits.level` is not kAuto.
  LeaseTable(Device& device, ibv_pd* pd, const LeaseLimits& limits);
  LeaseTable(const LeaseTable&) = delete;
  LeaseTable& operator=(const LeaseTable&) = delete;
  // No lease is left: TakeAll() saw to that.
  ~LeaseTable();

  // Whether `view` may be lent: INVALID_ARGUMENT for memory that is registered elsewhere, or not
  // for this use; UNIMPLEMENTED for atomics where the device has none.
  absl::Status Check(const BufferView& view, LeaseAccess access) const;
  // Leases that can be granted now, as far as windows go.
  uint32_t free() const;
  // A lease of `view`, which is not empty. nullptr when there is no window. Errors as Check();
  // RESOURCE_EXHAUSTED while too much is in quarantine, or for a loan too many.
  absl::StatusOr<Lease*> Grant(const BufferView& view, LeaseAccess access,
                               LeaseUse use = LeaseUse::kCall);
  // The peer is done with it, as it says. The listener, who may be null, hears when that is proven:
  // before this returns where nothing is left to do.
  void End(Lease& lease, LeaseListener* listener);
  // The listener of End() is gone.
  static void Forget(Lease& lease) { lease.listener_ = nullptr; }
  // Nobody waits for the peer's word any more, at `now`; End() is still called when it comes.
  void Abandon(Lease& lease, TimePoint now);
  // A SEND_WITH_INV of the peer's has invalidated `rkey`.
  void OnInvalidated(uint32_t rkey);

  size_t granted() const { return granted_.size(); }
  size_t quarantined_bytes() const { return quarantined_bytes_; }
  // Ends loans that have been in quarantine since before `now` − lease_grace and have a window;
  // DEADLINE_EXCEEDED when there is another such lease.
  absl::Status CheckGrace(TimePoint now);

  // Bindings that are to be posted before the next SEND: they have send queue slots reserved.
  uint32_t bindings_due() const { return static_cast<uint32_t>(bindings_.size()); }
  bool work_due() const { return !bindings_.empty() || !invalidations_.empty(); }
  // Prepares the next chain: all bindings that are due (they fit: at most kMaxChain are), then
  // invalidations, as far as `slots` goes. Returns how many WRs; 0 when nothing is due. The link
  // gives each its wr_id, and posts them.
  uint32_t Prepare(uint32_t slots);
  ibv_send_wr* chain() { return requests_.data(); }
  // The chain has its places in the send queue, its last WR at `last_position`. True when that is
  // signalled; else none is.
  bool Placed(uint32_t last_position);
  // Whether that left something to be done.
  bool more_due() const { return bindings_.size() > prepared_bindings_ || !invalidations_.empty(); }
  // It was posted, before anything else is prepared or bound.
  void Posted();
  // Every WR before send queue position `completed` has ended well.
  void Completed(uint32_t completed) {
    while (head_ != tail_ && static_cast<int32_t>(completed - ending_[Index(head_)].end) >= 0) {
      Lease& lease = *ending_[Index(head_++)].lease;
      Release(lease);
    }
  }

  // The link is lost: tells the listeners.
  void Lose();
  // Its queue pair is about to be destroyed. Windows are gone after this; the memory stays pinned
  // by what is returned.
  std::vector<BufferPin> TakeAll();

 private:
  struct Ending {
    uint32_t end;  // the position behind its LOCAL_INV
    Lease* lease;
  };

  size_t Index(uint32_t number) const { return number & (ending_.size() - 1); }
  absl::Status CheckBounds(LeaseUse use) const;
  Lease& NewLease();
  // The lease is over: gives its window and memory back, and tells the listener.
  void Release(Lease& lease);

  Device& device_;
  const LeaseLimits limits_;
  ibv_pd* const pd_;
  WindowPool windows_;
  std::vector<std::unique_ptr<Lease>> all_;
  std::vector<Lease*> pool_;  // those not granted; poisoned
  std::vector<Lease*> granted_;
  size_t quarantined_bytes_ = 0;
  size_t loans_ = 0;

  std::vector<Lease*> bindings_;       // at most kMaxChain
  std::vector<Lease*> invalidations_;  // at most one per window
  std::vector<ibv_send_wr> requests_;
  uint32_t prepared_bindings_ = 0;
  uint32_t prepared_ = 0;
  std::vector<Ending> ending_;  // a ring; the size is a power of two
  uint32_t head_ = 0;
  uint32_t tail_ = 0;
};

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_LINK_LEASE_TABLE_H_
