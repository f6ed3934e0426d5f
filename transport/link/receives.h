// Receives of an endpoint: the buffers that the device fills with what peers SEND.
//
// ReceiveRing has the buffers of a shared receive queue, and its ReceiveDoubt finds those that a
// device has dropped. LinkReceives has the buffers on a device without shared receive queues. Part
// of an Endpoint, on its executor's thread. Their number is fixed when the endpoint is
// made.

#ifndef VERBENA_TRANSPORT_LINK_RECEIVES_H_
#define VERBENA_TRANSPORT_LINK_RECEIVES_H_

#include <infiniband/verbs.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/link/ids.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/memory/arena.h"

namespace verbena::internal {

// Receives of a ring: which, and how many.
struct ReceiveSet {
  std::vector<bool> has;  // by index
  uint32_t count = 0;
};

// ReceiveDoubt: whether receives of a shared receive queue are gone with queue pairs, and which.
//
// A device may drop the completions of a queue pair that is destroyed before they were polled, and
// with them the receives (mlx5 does). Such receives look posted for ever, and peers hold credits
// for them. A doubt finds them, because an SRQ hands out receives in the order in which they were
// posted:
//
//   1. Raise(n): up to n may be gone. The receives that are posted now are the older ones.
//   2. A receive completes that was posted later: all older ones are taken. Those that have not
//      completed are missing. Each live queue pair may still be writing into one of them.
//   3. Reclaim() if the owner has proof that no queue pair is still writing. WriteOff() if it will
//      never have that proof.
//
// A doubt also ends by itself when all older receives have completed. What was raised meanwhile
// then becomes the next doubt. Part of a ReceiveRing; one thread.
//
// This relies on the order. A device might fetch receives ahead for each of its engines, and keep
// the order within an engine alone. If all queue pairs of such an engine have ended, nobody proves
// that it holds no older receive; it could give that to a queue pair which is made after Reclaim(),
// when the buffer is posted a second time. No device is known to fetch ahead and to drop
// completions as well. Writing off in each case would be safe there, too, but uses up the spare
// receives, and new queues end all links of their executor.
class ReceiveDoubt {
 public:
  // `posted`: what the device may hold, missing receives included. It outlives this object.
  explicit ReceiveDoubt(const ReceiveSet& posted) : posted_(posted) {}

  // A queue pair is destroyed that may have taken up to `count` receives which never complete.
  void Raise(uint32_t count);
  // The receive `index` has completed, and is no longer in `posted`. Precondition: open().
  void OnCompletion(uint32_t index);
  // No queue pair can have a missing receive any more: the owner has taken them out of `posted`.
  // Precondition: older_are_taken().
  void Reclaim();
  // The same for receives that a queue pair may have for ever.
  void WriteOff();

  bool open() const { return stage_ != Stage::kNone; }
  // Counts the doubts, from 1.
  uint32_t number() const { return number_; }
  // Everything older than this doubt is taken; missing() of them have not completed.
  bool older_are_taken() const { return stage_ == Stage::kMissing; }
  uint32_t missing() const { return older_are_taken() ? older_.count : 0; }
  bool IsMissing(uint32_t index) const { return older_are_taken() && older_.has[index]; }
  // The last completion, while open(), was of a receive that was posted after the doubt arose. A
  // queue pair receives in order: the one that took it has completed all older ones that it had
  // taken.
  bool last_was_newer() const { return last_was_newer_; }

  // Receives that may be gone, and are not known to be missing.
  uint32_t suspected() const { return suspected_ + suspected_later_; }
  // Receives that were written off, by all doubts.
  uint32_t written_off() const { return written_off_; }
  // Whether many queue pairs have ended in doubt since a receive completed.
  bool is_silent() const { return ends_in_silence_ >= kEndsInSilence; }

 private:
  enum class Stage : uint8_t { kNone, kWaiting, kMissing };

  static constexpr uint32_t kEndsInSilence = 32;  // (start)

  void End();

  const ReceiveSet& posted_;
  Stage stage_ = Stage::kNone;
  bool last_was_newer_ = false;
  uint32_t number_ = 0;
  ReceiveSet older_;              // posted before the doubt, and not completed
  uint32_t suspected_ = 0;        // what Raise() was told, until the older ones are taken
  uint32_t suspected_later_ = 0;  // what it was told since: for the next doubt
  uint32_t ends_in_silence_ = 0;
  uint32_t written_off_ = 0;
};

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
// Reclaim(), and never after WriteOff() (ReceiveDoubt).
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

#endif  // VERBENA_TRANSPORT_LINK_RECEIVES_H_
