// SendBuffers: the registered memory that SENDs are written into, shared by the links of one
// endpoint.
//
// Frames are serialized straight into a buffer; a SEND that the device takes inline gives it back
// at once, any other when its completion arrives. Reused last in, first out, so that the buffer
// taken is the one in the cache. Bounded: empty means back-pressure. Free buffers are poisoned. One
// thread.

#ifndef VERBENA_TRANSPORT_LINK_SEND_BUFFERS_H_
#define VERBENA_TRANSPORT_LINK_SEND_BUFFERS_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "verbena/transport/coro/bounded_vector.h"
#include "verbena/transport/coro/poison.h"
#include "verbena/transport/memory/arena.h"

namespace verbena {

class SendBuffers {
 public:
  static constexpr uint32_t kNone = ~uint32_t{0};

  static absl::StatusOr<std::unique_ptr<SendBuffers>> Create(Device& device, ibv_pd* pd,
                                                             uint32_t count, uint32_t bytes);
  ~SendBuffers();

  // kNone when all are in use.
  uint32_t Take() {
    if (free_.empty()) return kNone;
    const uint32_t index = free_.PopBack();
    UnpoisonMemory(data(index), bytes_);
    return index;
  }
  void GiveBack(uint32_t index) {
    PoisonMemory(data(index), bytes_);
    free_.PushBack(index);
  }

  char* data(uint32_t index) const { return arena_.data() + size_t{index} * stride_; }
  uint32_t lkey() const { return arena_.lkey(); }
  uint32_t bytes() const { return bytes_; }
  size_t free_count() const { return free_.size(); }
  uint32_t count() const { return count_; }

 private:
  SendBuffers(Arena arena, uint32_t count, uint32_t bytes);

  Arena arena_;
  const uint32_t count_;
  const uint32_t bytes_;
  const uint32_t stride_;
  BoundedVector<uint32_t> free_;
};

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_LINK_SEND_BUFFERS_H_
