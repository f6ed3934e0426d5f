// Leases of one link: memory of ours that its peer may write or read, until that is proven over.
//
// Lease is one of them. LeaseTable keeps all of a link with their memory, WindowPool has the memory
// windows that open it, and LeaseRequests the work requests that begin and end leases. A link's
// LinkSender owns them, on its executor's thread. LeaseLimits bounds them.

#ifndef VERBENA_TRANSPORT_LINK_LEASES_H_
#define VERBENA_TRANSPORT_LINK_LEASES_H_

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/link/lease_access.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/transfers.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

// Windows that are free before more are allocated, as far as the bound goes. (start)
inline constexpr uint32_t kSpareWindows = 16;

struct MemoryWindow {
  MwHandle mw;
  uint32_t rkey = 0;      // of its current binding, or the last
  uint32_t bindings = 0;  // since it was allocated
};

// Windows that a device gave, and why it gave no more.
struct WindowBatch {
  std::vector<MwHandle> windows = {};
  absl::Status failure = {};
};

// A control verb.
WindowBatch AllocateWindows(Device& device, ibv_pd* pd, uint32_t count);

// WindowPool: the memory windows of one link.
//
// Control threads allocate them (AllocateWindows): the first with the queue pair, more before the
// last ones are taken, up to a bound. Windows are reused first in, first out, so that a key comes
// back as late as it can. A window is worn out after 255 bindings, when it has had all its keys: a
// control thread replaces it. Owned by the link's LeaseTable; one thread.
class WindowPool {
 public:
  explicit WindowPool(uint32_t max_windows);

  // A window that is bound nowhere, with its next key; nullptr when none is free.
  MemoryWindow* Take();
  // Takes back a window that is no longer bound.
  void GiveBack(MemoryWindow& window);
  // The number of windows to allocate now, so that `wanted` or kSpareWindows can be free. Counts
  // them as on their way. 0 if there are enough, if no more are allowed, and while some are on
  // their way.
  uint32_t BeginRefill(uint32_t wanted);
  // The windows have come. If they are fewer than were asked for, the pool stays as small as it is
  // now.
  void Refill(WindowBatch batch);
  // The windows that have had all their keys, to be deallocated.
  std::vector<MwHandle> TakeWorn();
  // Takes all windows, before their queue pair is destroyed. Bindings end with the queue pair.
  std::vector<MwHandle> TakeAll();

  // How many can be taken now.
  uint32_t free() const { return static_cast<uint32_t>(free_.size() - first_free_); }
  // Why the device has given not even one window; OK if it has given some.
  absl::Status failure() const { return allocated_ == 0 ? failure_ : absl::OkStatus(); }

 private:
  uint32_t max_windows_;
  uint32_t allocated_ = 0;  // free, or in use
  uint32_t expected_ = 0;   // on their way
  absl::Status failure_;
  std::vector<std::unique_ptr<MemoryWindow>> all_;
  std::vector<MemoryWindow*> blank_;  // of all_, without a window of the device's
  // A part of all_, by age from first_free_ on; moved to the front when half of it has been taken.
  std::vector<MemoryWindow*> free_;
  size_t first_free_ = 0;
  std::vector<MwHandle> worn_;
};

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

// Lease: permission for a link's peer to write or read some of our memory, until it is proven over.
//
// Made by Link::OpenLease(). The link's LeaseTable keeps the lease together with its memory, even
// after everybody else has let go of the memory. Its holder tells the peer terms(). The holder
// calls Link::EndLease() once the peer has said that it is done, or Link::AbandonLease() if nobody
// waits for that any more. A link that is lost ends its leases by itself: the holder forgets them.
// One thread.
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

// LeaseRequests: the work requests that begin and end one link's leases: those that are due, the
// chain that is prepared, and the invalidations that the device has yet to end.
//
// A BIND_MW begins a lease, and a LOCAL_INV ends one. Bindings go first, since the next SEND may
// tell the peer of them. The link gives a prepared chain its places in the send queue and posts it:
//
//   Prepare() --> Placed() --> ibv_post_send --> Posted() --> completions --> Completed()
//
// Part of a LeaseTable, which owns the leases and the windows; one thread.
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
  // Takes back a binding that is not posted yet. False if there is none.
  bool Unbind(const MemoryWindow& window);
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
// Part of a LinkSender, which knows the queue pair and the positions of the send queue. One thread.
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
  // The peer says that it is done with the lease, or has never heard of it. The listener, who may
  // be null, hears when that is proven: before this returns, which is then true, if nothing is left
  // to do, as if the window was never bound.
  bool End(Lease& lease, LeaseListener* listener);
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

#endif  // VERBENA_TRANSPORT_LINK_LEASES_H_
