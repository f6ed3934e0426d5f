// CopyCounters: counters behind CopiedBytes, one set per CQ, so that counting shares no cache line
// with another thread's data path.
//
// Add under the CQ's lock; values may be read by any thread at any time.

#ifndef VERBENA_TRANSPORT_SOFT_COPY_COUNTERS_H_
#define VERBENA_TRANSPORT_SOFT_COPY_COUNTERS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "verbena/transport/soft/copied_bytes.h"

namespace verbena::internal::soft {

enum class CopyWay : uint8_t {
  kDirectWrite,
  kDirectRead,
  kKernelWrite,
  kKernelRead,
  kRing,
  kSent,
  kPlaced,
  kSend,
  kReceive,
  kInline,
};

class CopyCounters {
 public:
  void Add(CopyWay way, uint64_t bytes) {
    std::atomic<uint64_t>& counter = At(way);
    // One writer at a time: no locked instruction.
    counter.store(counter.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
  }

  CopiedBytes values() const {
    return {.direct_write_bytes = Get(CopyWay::kDirectWrite),
            .direct_read_bytes = Get(CopyWay::kDirectRead),
            .kernel_write_bytes = Get(CopyWay::kKernelWrite),
            .kernel_read_bytes = Get(CopyWay::kKernelRead),
            .ring_bytes = Get(CopyWay::kRing),
            .sent_bytes = Get(CopyWay::kSent),
            .placed_bytes = Get(CopyWay::kPlaced),
            .send_bytes = Get(CopyWay::kSend),
            .receive_bytes = Get(CopyWay::kReceive),
            .inline_bytes = Get(CopyWay::kInline)};
  }

 private:
  static constexpr size_t kWays = static_cast<size_t>(CopyWay::kInline) + 1;

  std::atomic<uint64_t>& At(CopyWay way) { return counters_[static_cast<size_t>(way)]; }
  uint64_t Get(CopyWay way) const {
    return counters_[static_cast<size_t>(way)].load(std::memory_order_relaxed);
  }

  alignas(64) std::array<std::atomic<uint64_t>, kWays> counters_{};
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_COPY_COUNTERS_H_
