// WindowPool: the memory windows of one link.
//
// Allocated when first needed, up to a bound; reused first in, first out, so that a key comes back
// as late as it can, and made anew after 255 bindings, when a window has had all its keys. Owned by
// the link's LeaseTable; one thread.

#ifndef VERBENA_TRANSPORT_LINK_WINDOW_POOL_H_
#define VERBENA_TRANSPORT_LINK_WINDOW_POOL_H_

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "verbena/transport/device/handles.h"

namespace verbena {

struct MemoryWindow {
  MwHandle mw;
  uint32_t rkey = 0;      // of its current binding, or the last
  uint32_t bindings = 0;  // since it was allocated
};

class WindowPool {
 public:
  WindowPool(Device& device, ibv_pd* pd, uint32_t max_windows);

  // A window that is bound nowhere, with its next key; nullptr when all are in use. An error when
  // the device has not even one.
  absl::StatusOr<MemoryWindow*> Take();
  // It is bound nowhere any more.
  void GiveBack(MemoryWindow& window);
  // Before their queue pair is destroyed. Bound ones end with it.
  void DeallocAll();

  // That can be taken, as far as the device goes along.
  uint32_t free() const { return max_windows_ - in_use_; }

 private:
  absl::Status Allocate(MemoryWindow& window);

  Device& device_;
  ibv_pd* const pd_;
  uint32_t max_windows_;
  uint32_t in_use_ = 0;
  std::vector<std::unique_ptr<MemoryWindow>> all_;
  std::vector<MemoryWindow*> free_;  // a ring of max_windows_ places
  size_t head_ = 0;
  size_t free_count_ = 0;
};

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_LINK_WINDOW_POOL_H_
