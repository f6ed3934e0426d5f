// LinkReceives: the receive buffers of links on a device without shared receive queues, where each
// queue pair has a receive queue of its own.
//
// One region holds the buffers of all links, `depth` for each slot of the LinkTable, so that its
// size is fixed when the endpoint is made, as that of a shared queue is. A link's buffers are
// posted when the link begins, and come back one by one as they complete, at the latest when its
// queue pair is destroyed. Completed ones are reposted in batches: a quarter of the queue may be
// missing. What is then still posted is what the peer may use (LinkReceives::Window), so credits
// never run ahead of receives, and a receive that a busy link lacks is never another link's.
//
// A receive's WrId has the buffer, which names the slot, and the generation of the link, so that a
// late completion of an earlier link in the slot finds nothing. Buffers that are neither posted nor
// being read are poisoned. Part of an Endpoint; one thread.
//
//   VERBENA_RETURN_IF_ERROR(receives.Begin(link.key(), qp));     // before the peer may send
//   if (receives.OnCompletion(id)) { Read(receives.data(id.slot)); receives.Release(id.slot); }
//   receives.End(slot);                                          // the queue pair is destroyed

#ifndef VERBENA_TRANSPORT_LINK_LINK_RECEIVES_H_
#define VERBENA_TRANSPORT_LINK_LINK_RECEIVES_H_

#include <infiniband/verbs.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/link_key.h"
#include "verbena/transport/link/wr_id.h"
#include "verbena/transport/memory/arena.h"

namespace verbena::internal {

class LinkReceives {
 public:
  // Buffers of `bytes` each for `links` slots, none posted.
  static absl::StatusOr<std::unique_ptr<LinkReceives>> Create(Device& device, ibv_pd* pd,
                                                              uint32_t links, uint32_t depth,
                                                              uint32_t bytes);
  // Precondition: no queue pair has a receive of it.
  ~LinkReceives();

  // The link of that key begins on `qp`, which is in INIT: posts all receives of its slot. An error
  // of the device; the queue pair may have some of them then. Precondition: the slot has no link.
  absl::Status Begin(const LinkKey& key, ibv_qp* qp);

  // A completion took the buffer off its queue pair. Its bytes are readable until Release(). False
  // if the buffer is not posted for the link of that generation: the completion is not ours.
  bool OnCompletion(const WrId& id);
  const char* data(uint32_t buffer) const { return arena_.data() + size_t{buffer} * stride_; }
  void Release(uint32_t buffer);
  // Reposts what the slot's link lacks, if that is a batch. Fails only if the device does: then
  // the link is lost. Precondition: its queue pair is not in ERR.
  absl::Status Repost(uint32_t slot);

  // The queue pair of the slot's link is destroyed, and its completion queue is empty: no receive
  // is posted any more, even if the device never told of its end. Returns how many that were.
  uint32_t End(uint32_t slot);
  // As End() would return.
  uint32_t unaccounted(uint32_t slot) const { return queues_[slot].posted; }

  uint32_t slot_of(uint32_t buffer) const { return buffer / depth_; }
  // Receives that wait for a SEND, of all links.
  uint32_t posted() const { return posted_; }

 private:
  struct Queue {
    ibv_qp* qp = nullptr;
    uint32_t generation = 0;
    uint32_t posted = 0;
    uint32_t free = 0;  // the first so many of its place in free_
  };

  LinkReceives(Arena arena, uint32_t links, uint32_t depth, uint32_t bytes);
  absl::Status Post(uint32_t slot);

  static constexpr uint32_t kPostBatch = 32;

  Arena arena_;
  const uint32_t depth_;
  const uint32_t batch_;
  const uint32_t bytes_;
  const uint32_t stride_;
  uint32_t posted_ = 0;
  std::vector<Queue> queues_;    // by slot
  std::vector<uint32_t> free_;   // depth_ places for each slot: buffers that are not posted
  std::vector<bool> is_posted_;  // by buffer
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_LINK_RECEIVES_H_
