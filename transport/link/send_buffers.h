// SendBuffers: the registered memory that SENDs are written into, shared by the links of one
// endpoint.
//
// Frames are serialized straight into a buffer; a SEND that the device takes inline gives it back
// at once, any other when its completion arrives. Reused last in, first out, so that the buffer
// taken is the one in the cache. Bounded: empty means back-pressure. Free buffers are poisoned. One
// thread.
//
// A peer that acknowledges nothing keeps the buffers of its link. So if there are several source
// addresses, the links to one take a buffer only if they hold fewer together than are free: one
// source leaves half to the others, two a quarter, and each finds some.
//
// Each link has a share of the buffers that its source may still take. A link that holds none takes
// any of them. A link that holds some takes another only if more of them are left than it holds,
// apart from a reserve: a first buffer for each possible link, at most a quarter of what the source
// may hold. So the share shrinks as buffers become scarce, and each link finds its first.
//
// A few spare buffers are beside those that are shared. A SEND of control frames or credits alone
// takes one if the link finds no other, and only if it travels inline: then the buffer is back as
// soon as the SEND is posted. So a peer that keeps buffers keeps no other peer's PONG.

#ifndef VERBENA_TRANSPORT_LINK_SEND_BUFFERS_H_
#define VERBENA_TRANSPORT_LINK_SEND_BUFFERS_H_

#include <algorithm>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "verbena/transport/base/bounded_vector.h"
#include "verbena/transport/base/poison.h"
#include "verbena/transport/link/peer_source.h"
#include "verbena/transport/memory/arena.h"

namespace verbena::internal {

class SendBuffers {
 public:
  static constexpr uint32_t kNone = ~uint32_t{0};

  // `max_links` links use them, at most.
  static absl::StatusOr<std::unique_ptr<SendBuffers>> Create(Device& device, ibv_pd* pd,
                                                             uint32_t count, uint32_t bytes,
                                                             uint32_t max_links);
  ~SendBuffers();

  // Takes a buffer for a link to `source` that holds `held` already. kNone if all are in use, or
  // the link or the source has its share. The caller counts what they hold.
  uint32_t Take(uint32_t held, const PeerSource& source) {
    if (free_.empty() || IsFull(source) || !HasShare(held, source)) return kNone;
    const uint32_t index = free_.PopBack();
    UnpoisonMemory(data(index), bytes_);
    return index;
  }
  // Takes a buffer for a SEND that is posted inline before this turn ends. kNone if all are in use.
  uint32_t TakeSpare() {
    if (spare_.empty()) return kNone;
    const uint32_t index = spare_.PopBack();
    UnpoisonMemory(data(index), bytes_);
    return index;
  }
  void GiveBack(uint32_t index) {
    PoisonMemory(data(index), bytes_);
    if (index < count_) [[likely]] {
      free_.PushBack(index);
    } else {
      spare_.PushBack(index);
    }
  }

  void ShareAmong(size_t sources) { is_shared_ = sources > 1; }
  // Whether the links to `source` together hold what they may.
  bool IsFull(const PeerSource& source) const {
    return IsBounded(source) && source.held >= free_.size();
  }

  char* data(uint32_t index) const { return arena_.data() + size_t{index} * stride_; }
  uint32_t lkey() const { return arena_.lkey(); }
  uint32_t bytes() const { return bytes_; }
  size_t free_count() const { return free_.size(); }
  uint32_t count() const { return count_; }

 private:
  static constexpr uint32_t kSpares = 4;

  SendBuffers(Arena arena, uint32_t count, uint32_t bytes, uint32_t max_links);

  bool IsBounded(const PeerSource& source) const { return is_shared_ && source.bounded; }
  // Whether a link that holds `held` may take one more. Precondition: the source is not full.
  bool HasShare(uint32_t held, const PeerSource& source) const {
    if (held == 0) return true;
    // Each buffer that the source takes is also one fewer that is free.
    const size_t free = free_.size();
    const size_t room = IsBounded(source) ? (free - source.held + 1) / 2 : free;
    const size_t limit = IsBounded(source) ? source.held + room : count_;
    return room > std::min<size_t>(max_links_, limit / 4) + held;
  }

  Arena arena_;
  const uint32_t count_;
  const uint32_t bytes_;
  const uint32_t stride_;
  const uint32_t max_links_;
  bool is_shared_ = false;
  BoundedVector<uint32_t> free_;
  BoundedVector<uint32_t> spare_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_SEND_BUFFERS_H_
