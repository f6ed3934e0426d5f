// ReceiveRing: the receive buffers of one shared receive queue, and which of them are posted.
//
// Receives are posted only as far as links hold credits. They are reused last in, first out, by the
// device, too, if it can. So few buffers stay in the cache, and an endpoint with a thousand links
// does not walk through 34 MB. A buffer belongs to the SRQ from its post to its completion, then to
// whoever handles it until Release(). Buffers that are not posted and not being read are poisoned.
// One thread.
//
// A device may drop receives together with a queue pair. While that is in doubt, as many more are
// posted as may be gone, if there are spare ones. Missing receives are not used again before
// Reclaim(), and never after WriteOff() (receive_doubt.h).

#ifndef VERBENA_TRANSPORT_LINK_RECEIVE_RING_H_
#define VERBENA_TRANSPORT_LINK_RECEIVE_RING_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/bounded_vector.h"
#include "verbena/transport/base/poison.h"
#include "verbena/transport/device/handles.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/receive_doubt.h"
#include "verbena/transport/memory/arena.h"

namespace verbena::internal {

class ReceiveRing {
 public:
  // `depth` receives of `bytes` each, none posted, and `spare` more that take the place of missing
  // ones.
  static absl::StatusOr<std::unique_ptr<ReceiveRing>> Create(Device& device, ibv_pd* pd,
                                                             uint32_t depth, uint32_t spare,
                                                             uint32_t bytes);
  // A ring without a queue, for a device that has no shared ones: nothing is ever posted.
  static std::unique_ptr<ReceiveRing> Absent();
  ~ReceiveRing();

  // nullptr if absent.
  ibv_srq* srq() const { return srq_.get(); }

  // The number that must be posted from now on, for peers may use as many. Takes effect in the next
  // Post(); if more are posted already, they stay posted.
  void set_needed(uint32_t needed) {
    needed_ = needed;
    UpdateTarget();
  }

  // Posts the needed receives and kRepostBatch more, in chains. Fails only if the device does: then
  // the endpoint is lost. Worth a call only if needs_post(): so single receives are reposted
  // kRepostBatch at a time, and the needed ones are posted all the while.
  absl::Status Post();
  bool needs_post() const { return posted_.count + kRepostBatch <= target_; }

  // A completion took `index` off the SRQ. Its bytes are readable until Release(). False when that
  // buffer is not posted: the completion is not ours.
  bool OnCompletion(uint32_t index) {
    if (index >= posted_.has.size() || !posted_.has[index]) return false;
    posted_.has[index] = false;
    --posted_.count;
    if (in_doubt()) [[unlikely]]
      OnCompletionInDoubt(index);
    return true;
  }
  const char* data(uint32_t index) const { return arena_.data() + size_t{index} * stride_; }
  void Release(uint32_t index) {
    PoisonMemory(data(index), bytes_);
    free_.PushBack(index);
  }

  // A queue pair is destroyed that may have taken up to `count` receives which never complete. Does
  // nothing on a device that takes the newest first: only the soft device does, and drops none.
  void Doubt(uint32_t count);
  bool in_doubt() const { return doubt_.open(); }
  const ReceiveDoubt& doubt() const { return doubt_; }
  // No queue pair can have a missing receive any more. They are free again, and the doubt ends.
  // Returns how many they were.
  uint32_t Reclaim();
  // A queue pair may have a missing receive for ever. The doubt ends, and none of them is used
  // again. Returns how many they were.
  uint32_t WriteOff();
  // More were written off than there are spare ones. Missing ones do not count: each queue pair
  // that lives may be in the middle of one.
  bool lacks_spares() const { return doubt_.written_off() > spare_; }
  // Whether more receives may be gone than there are spare ones, with nothing to show the contrary:
  // many queue pairs have ended in doubt since a receive completed.
  bool may_be_starved() const {
    return doubt_.written_off() + doubt_.missing() + doubt_.suspected() > spare_ &&
           doubt_.is_silent();
  }

  // Receives that wait for a SEND, as far as is known.
  uint32_t posted() const { return posted_.count - doubt_.missing(); }
  uint32_t bytes() const { return bytes_; }

 private:
  ReceiveRing(Arena arena, SrqHandle srq, uint32_t depth, uint32_t spare, uint32_t bytes,
              bool newest_first);
  void OnCompletionInDoubt(uint32_t index);
  void UpdateTarget();

  static constexpr uint32_t kPostBatch = 32;

  Arena arena_;
  SrqHandle srq_;
  const uint32_t spare_;
  const uint32_t bytes_;
  const uint32_t stride_;
  const bool newest_first_;
  uint32_t needed_ = 0;
  uint32_t target_ = 0;  // posted_.count is to reach it; missing receives are on top
  ReceiveSet posted_;
  BoundedVector<uint32_t> free_;
  ReceiveDoubt doubt_{posted_};
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_RECEIVE_RING_H_
