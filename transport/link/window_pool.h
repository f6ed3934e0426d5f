// WindowPool: the memory windows of one link.
//
// Control threads allocate them (AllocateWindows): the first with the queue pair, more before the
// last ones are taken, up to a bound. Windows are reused first in, first out, so that a key comes
// back as late as it can. A window is worn out after 255 bindings, when it has had all its keys: a
// control thread replaces it. Owned by the link's LeaseTable; one thread.

#ifndef VERBENA_TRANSPORT_LINK_WINDOW_POOL_H_
#define VERBENA_TRANSPORT_LINK_WINDOW_POOL_H_

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "verbena/transport/device/handles.h"

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

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_WINDOW_POOL_H_
