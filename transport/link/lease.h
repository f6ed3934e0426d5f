// Lease: permission for a link's peer to write or read some of our memory, until it is proven over.
//
// Made by Link::OpenLease(). The link's LeaseTable keeps the lease together with its memory, even
// after everybody else has let go of the memory. Its holder tells the peer terms(). The holder
// calls Link::EndLease() once the peer has said that it is done, or Link::AbandonLease() if nobody
// waits for that any more. A link that is lost ends its leases by itself: the holder forgets them.
// One thread.

#ifndef VERBENA_TRANSPORT_LINK_LEASE_H_
#define VERBENA_TRANSPORT_LINK_LEASE_H_

#include <cstddef>
#include <cstdint>

#include "verbena/transport/base/clock.h"
#include "verbena/transport/link/lease_access.h"
#include "verbena/transport/link/transfer.h"
#include "verbena/transport/link/window_pool.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

// The purpose of a lease, which decides when it ends.
enum class LeaseUse : uint8_t {
  kCall,  // ends with the call's final frame, which a correct peer always sends
  kLoan,  // ends when the application says so, perhaps never
};

class Lease;

class LeaseListener {
 public:
  virtual ~LeaseListener() = default;
  // The memory is ours alone again. The lease is gone: `lease` may be compared, not used.
  virtual void OnLeaseEnded(const Lease& lease) = 0;
  // The link is lost before the end was proven. The memory goes home by itself once the end is
  // proven.
  virtual void OnLeaseLost(const Lease& lease) = 0;
};

class Lease final {
 public:
  // As the peer is told.
  const RemoteRange& terms() const { return terms_; }

 private:
  friend class LeaseTable;

  RemoteRange terms_;
  BufferPin pin_;
  MemoryWindow* window_ = nullptr;  // under LeaseLevel::kStrict
  LeaseListener* listener_ = nullptr;
  LeaseUse use_ = LeaseUse::kCall;
  bool invalidated_ = false;  // by the peer: the window is free already
  bool ended_ = false;        // the peer has said that it is done
  TimePoint abandoned_at_ = kNever;
  size_t index_ = 0;  // in the table's list
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_LEASE_H_
