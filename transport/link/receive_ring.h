// ReceiveRing: the receive buffers of one shared receive queue, and which of them are posted.
//
// Posted only as far as links hold credits, and reused last in, first out, so that a quiet endpoint
// keeps a few buffers in the cache instead of walking through megabytes. A buffer belongs to the
// SRQ from its post to its completion, then to whoever handles it until Release(). Buffers that are
// not posted and not being read are poisoned. One thread.

#ifndef VERBENA_TRANSPORT_LINK_RECEIVE_RING_H_
#define VERBENA_TRANSPORT_LINK_RECEIVE_RING_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/coro/bounded_vector.h"
#include "verbena/transport/coro/poison.h"
#include "verbena/transport/device/handles.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/memory/arena.h"

namespace verbena {

class ReceiveRing {
 public:
  // `depth` receives of `bytes` each, none posted.
  static absl::StatusOr<std::unique_ptr<ReceiveRing>> Create(Device& device, ibv_pd* pd,
                                                             uint32_t depth, uint32_t bytes);
  ~ReceiveRing();

  ibv_srq* srq() const { return srq_.get(); }

  // How many must be posted from now on, for peers may use as many. Takes effect in the next
  // Post(); more that are posted already stay so.
  void set_needed(uint32_t needed) { target_ = needed + kRepostBatch; }

  // Posts what is needed and kRepostBatch more, in chains. Fails only when the device does: then
  // the endpoint is lost. Worth a call only when needs_post(): so single receives are reposted
  // kRepostBatch at a time, and what is needed is posted all the while.
  absl::Status Post();
  bool needs_post() const { return posted_ + kRepostBatch <= target_; }

  // A completion took `index` off the SRQ. Its bytes are readable until Release(). False when that
  // buffer is not posted: the completion is not ours.
  bool OnCompletion(uint32_t index) {
    if (index >= depth_ || !is_posted_[index]) return false;
    is_posted_[index] = false;
    --posted_;
    return true;
  }
  const char* data(uint32_t index) const { return arena_.data() + size_t{index} * stride_; }
  void Release(uint32_t index) {
    PoisonMemory(data(index), bytes_);
    free_.PushBack(index);
  }

  uint32_t posted() const { return posted_; }
  uint32_t depth() const { return depth_; }
  uint32_t bytes() const { return bytes_; }

 private:
  ReceiveRing(Arena arena, SrqHandle srq, uint32_t depth, uint32_t bytes);

  static constexpr uint32_t kPostBatch = 32;

  Arena arena_;
  SrqHandle srq_;
  const uint32_t depth_;
  const uint32_t bytes_;
  const uint32_t stride_;
  uint32_t target_ = 0;
  uint32_t posted_ = 0;
  BoundedVector<uint32_t> free_;
  std::vector<bool> is_posted_;
};

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_LINK_RECEIVE_RING_H_
