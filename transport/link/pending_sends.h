// PendingSends: the SENDs of this turn, of which the last may still take frames.
//
// Part of a LinkSendQueue, which gives the buffers back, on its executor's thread. Bounded by the
// send queue: whoever adds a SEND has seen that a slot is free for it.

#ifndef VERBENA_TRANSPORT_LINK_PENDING_SENDS_H_
#define VERBENA_TRANSPORT_LINK_PENDING_SENDS_H_

#include <cstddef>
#include <cstdint>

#include "verbena/transport/base/bounded_vector.h"
#include "verbena/transport/link/limits.h"

namespace verbena::internal {

// kCredits spends a reserve credit and has no frames. kControl has control frames alone, in a spare
// buffer: no other frame joins it, since the SEND must be small enough to travel inline.
enum class SendUse : uint8_t { kFrames, kControl, kCredits };

// A SEND that is being filled, or waits for the flush.
struct PendingSend {
  uint32_t buffer;
  uint32_t bytes;
  uint16_t frames;
  SendUse use;
  uint32_t invalidated;  // the key that it ends; 0: none
};

class PendingSends {
 public:
  explicit PendingSends(size_t capacity) : sends_(capacity) {}

  bool empty() const { return sends_.empty(); }
  size_t size() const { return sends_.size(); }
  PendingSend& back() { return sends_.back(); }
  const PendingSend& back() const { return sends_.back(); }
  PendingSend& operator[](size_t index) { return sends_[index]; }
  const PendingSend* begin() const { return sends_.begin(); }
  const PendingSend* end() const { return sends_.end(); }

  void Add(const PendingSend& send) { sends_.PushBack(send); }
  // A frame was written behind those of the last SEND.
  void CountFrame() {
    ++sends_.back().frames;
    ++frames_;
  }
  // The SENDs were posted, except the last one if `kept`.
  void Clear(bool kept) {
    group_ = kMinEarlyFrames;
    frames_ = 0;
    if (!kept) {
      sends_.clear();
      return;
    }
    const PendingSend last = sends_.back();
    sends_.clear();
    sends_.PushBack(last);
    frames_ = last.frames;
  }

  // `frames` frames are a group that may leave while the turn goes on. kMinEarlyFrames, until
  // EarlyFrames() has been asked.
  void set_group(uint32_t frames) { group_ = frames; }
  bool is_group() const { return frames_ >= group_; }

 private:
  BoundedVector<PendingSend> sends_;
  uint32_t frames_ = 0;
  uint32_t group_ = kMinEarlyFrames;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_PENDING_SENDS_H_
