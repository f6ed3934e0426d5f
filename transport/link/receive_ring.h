// ReceiveRing: the receive buffers of one shared receive queue, and which of them are posted.
//
// Receives are posted only as far as links hold credits. They are reused last in, first out, by the
// device, too, if it can. So few buffers stay in the cache, and an endpoint with a thousand links
// does not walk through 34 MB. A buffer belongs to the SRQ from its post to its completion, then to
// whoever handles it until Release(). Buffers that are not posted and not being read are poisoned.
// One thread.
//
// A device may drop the completions of a queue pair that is destroyed before they were polled, and
// with them the receives (mlx5 does). Such receives look posted for ever, and peers hold credits
// for them. A ring that is in doubt finds them, because an SRQ hands out receives in the order in
// which they were posted:
//
//   1. Doubt(n): up to n may be gone. As many more are posted, if there are spare ones.
//   2. A receive completes that was posted later: all older ones are taken. Those that have not
//      completed are missing. A live queue pair may still be writing into one of them each, so
//      they are not used again yet, but no longer count as posted.
//   3. Reclaim() if the owner has proof that no queue pair is still writing. WriteOff() if it will
//      never have that proof: the missing receives are not used again.

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
  // `depth` receives of `bytes` each, none posted, and `spare` more that take the place of missing
  // ones.
  static absl::StatusOr<std::unique_ptr<ReceiveRing>> Create(Device& device, ibv_pd* pd,
                                                             uint32_t depth, uint32_t spare,
                                                             uint32_t bytes);
  ~ReceiveRing();

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
  bool needs_post() const { return posted_ + kRepostBatch <= target_; }

  // A completion took `index` off the SRQ. Its bytes are readable until Release(). False when that
  // buffer is not posted: the completion is not ours.
  bool OnCompletion(uint32_t index) {
    if (index >= is_posted_.size() || !is_posted_[index]) return false;
    is_posted_[index] = false;
    --posted_;
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
  bool in_doubt() const { return stage_ != Stage::kCertain; }
  // Counts the doubts, from 1. One ends by itself when everything older has completed.
  uint32_t doubt() const { return doubt_; }
  // Everything older than this doubt is taken; missing() of them have not completed.
  bool older_are_taken() const { return stage_ == Stage::kMissing; }
  uint32_t missing() const { return older_are_taken() ? older_ : 0; }
  // The last completion, in doubt, was of a receive that was posted after the doubt arose. A queue
  // pair receives in order: the one that took it has completed all older ones that it had taken.
  bool last_was_newer() const { return last_was_newer_; }
  // No queue pair can have a missing receive any more. They are free again, and the doubt ends.
  // Returns how many they were.
  uint32_t Reclaim();
  // A queue pair may have a missing receive for ever. The doubt ends, and none of them is used
  // again. Returns how many they were.
  uint32_t WriteOff();
  // More were written off than there are spare ones. Missing ones do not count: each queue pair
  // that lives may be in the middle of one.
  bool lacks_spares() const { return written_off_ > spare_; }
  // Whether more receives may be gone than there are spare ones, with nothing to show the contrary:
  // many queue pairs have ended in doubt since a receive completed.
  bool may_be_starved() const {
    return written_off_ + missing() + doubted_ + doubted_later_ > spare_ &&
           ends_in_silence_ >= kEndsInSilence;
  }

  uint32_t posted() const { return posted_; }
  uint32_t bytes() const { return bytes_; }

 private:
  enum class Stage : uint8_t { kCertain, kWaiting, kMissing };

  ReceiveRing(Arena arena, SrqHandle srq, uint32_t depth, uint32_t spare, uint32_t bytes,
              bool newest_first);
  void OnCompletionInDoubt(uint32_t index);
  void EndDoubt();
  void UpdateTarget();

  static constexpr uint32_t kPostBatch = 32;
  static constexpr uint32_t kEndsInSilence = 32;  // (start)

  Arena arena_;
  SrqHandle srq_;
  const uint32_t spare_;
  const uint32_t bytes_;
  const uint32_t stride_;
  const bool newest_first_;
  uint32_t needed_ = 0;
  uint32_t target_ = 0;
  uint32_t posted_ = 0;
  BoundedVector<uint32_t> free_;
  std::vector<bool> is_posted_;

  Stage stage_ = Stage::kCertain;
  bool last_was_newer_ = false;
  uint32_t doubt_ = 0;
  uint32_t doubted_ = 0;        // what Doubt() was told, until the older ones are taken
  uint32_t doubted_later_ = 0;  // what it was told since: for the next doubt
  uint32_t ends_in_silence_ = 0;
  std::vector<bool> is_older_;  // posted before the doubt, and not completed
  uint32_t older_ = 0;
  uint32_t written_off_ = 0;
};

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_LINK_RECEIVE_RING_H_
