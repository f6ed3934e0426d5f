// LeaseRequests: the work requests that begin and end one link's leases: those that are due, the
// chain that is prepared, and the invalidations that the device has yet to end.
//
// A BIND_MW begins a lease, and a LOCAL_INV ends one. Bindings go first, since the next SEND may
// tell the peer of them. The link gives a prepared chain its places in the send queue and posts it:
//
//   Prepare() --> Placed() --> ibv_post_send --> Posted() --> completions --> Completed()
//
// Part of a LeaseTable, which owns the leases and the windows; one thread.

#ifndef VERBENA_TRANSPORT_LINK_LEASE_REQUESTS_H_
#define VERBENA_TRANSPORT_LINK_LEASE_REQUESTS_H_

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "verbena/transport/link/lease.h"
#include "verbena/transport/link/window_pool.h"

namespace verbena::internal {

class LeaseRequests {
 public:
  // The most WRs of one chain, and the most bindings that may be due at once.
  static constexpr uint32_t kMaxChain = 16;

  // For leases of at most `max_windows` windows.
  explicit LeaseRequests(uint32_t max_windows);

  // The next chain binds `window` to its key. Precondition: fewer than kMaxChain bindings are due.
  void Bind(MemoryWindow& window, const ibv_mw_bind_info& binding) {
    bindings_.push_back({&window, binding});
  }
  // A later chain invalidates the lease's key. Completed() then hands the lease out.
  void Invalidate(Lease& lease) { invalidations_.push_back(&lease); }

  uint32_t bindings_due() const { return static_cast<uint32_t>(bindings_.size()); }
  bool work_due() const { return !bindings_.empty() || !invalidations_.empty(); }

  // Prepares the next chain: all bindings that are due, then invalidations, as far as `slots` goes.
  // Returns how many WRs; 0 when nothing is due.
  uint32_t Prepare(uint32_t slots);
  ibv_send_wr* chain() { return requests_.data(); }
  // The chain has its places in the send queue, its last WR at `last_position`. True if that WR is
  // signalled; otherwise none is.
  bool Placed(uint32_t last_position);
  // True if Prepare() left something to be done.
  bool more_due() const { return bindings_.size() > prepared_bindings_ || !invalidations_.empty(); }
  // The chain was posted. Called before anything else is prepared or bound.
  void Posted();
  // Every WR before send queue position `completed` has ended well: calls `ended` with each lease
  // whose key that has invalidated.
  template <typename Ended>
  void Completed(uint32_t completed, Ended ended) {
    while (head_ != tail_ && static_cast<int32_t>(completed - ending_[Index(head_)].end) >= 0) {
      ended(*ending_[Index(head_++)].lease);
    }
  }

  // Forgets everything: the queue pair is gone.
  void Clear();

 private:
  struct Binding {
    MemoryWindow* window;
    ibv_mw_bind_info info;
  };
  struct Ending {
    uint32_t end;  // the position behind its LOCAL_INV
    Lease* lease;
  };

  size_t Index(uint32_t number) const { return number & (ending_.size() - 1); }

  std::vector<Binding> bindings_;      // at most kMaxChain
  std::vector<Lease*> invalidations_;  // at most one per window
  std::vector<ibv_send_wr> requests_;
  uint32_t prepared_bindings_ = 0;
  uint32_t prepared_ = 0;
  std::vector<Ending> ending_;  // a ring; the size is a power of two
  uint32_t head_ = 0;
  uint32_t tail_ = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_LEASE_REQUESTS_H_
