// Counts of the payload bytes that a soft device copied: CopiedBytes, the values, and CopyCounters,
// which count.
//
// Free of verbs. Each CQ has counters of its own; any thread may read them.

#ifndef VERBENA_TRANSPORT_SOFT_COPIES_H_
#define VERBENA_TRANSPORT_SOFT_COPIES_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace verbena::internal {

// CopiedBytes: how many payload bytes a soft device copied, by the way they took.
//
// Shows that a payload was moved by the wire's one copy and by nothing else: over shared memory, a
// WRITE of N bytes between shared arenas adds N to the initiator's direct_write_bytes, and to no
// other count of either device. A value; only ever grows. Free of verbs.
//
//   const CopiedBytes before = device->copied_bytes();
//   …
//   const CopiedBytes copied = device->copied_bytes() - before;
struct CopiedBytes {
  // By this device as the initiator, between its own memory and a target's that is mapped here.
  uint64_t direct_write_bytes = 0;
  uint64_t direct_read_bytes = 0;
  // Likewise, with memory that is not mapped: process_vm_writev and process_vm_readv.
  uint64_t kernel_write_bytes = 0;
  uint64_t kernel_read_bytes = 0;
  // For WRITEs and READs that the target executes: into or out of a ring. Each device counts a byte
  // once.
  uint64_t ring_bytes = 0;
  // For WRITEs and READs over TCP, past the ring: by the kernel, from their memory into a socket,
  // and from a socket into their memory.
  uint64_t sent_bytes = 0;
  uint64_t placed_bytes = 0;
  // For SENDs: into a ring, and out of one into a receive.
  uint64_t send_bytes = 0;
  uint64_t receive_bytes = 0;
  // For inline WRs that could not be launched at once, or were refused: kept aside until they are
  // launched.
  uint64_t inline_bytes = 0;

  CopiedBytes& operator+=(const CopiedBytes& other);
  friend CopiedBytes operator-(CopiedBytes later, const CopiedBytes& earlier);
  friend bool operator==(const CopiedBytes&, const CopiedBytes&) = default;
};

}  // namespace verbena::internal

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

// CopyCounters: counters behind CopiedBytes, one set per CQ, so that counting shares no cache line
// with another thread's data path.
//
// Add what was copied under the CQ's lock; any thread may read values at any time. It then sees the
// bytes that are counted.
class CopyCounters {
 public:
  void Add(CopyWay way, uint64_t bytes) {
    std::atomic<uint64_t>& counter = At(way);
    // One writer at a time: no locked instruction.
    counter.store(counter.load(std::memory_order_relaxed) + bytes, std::memory_order_release);
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
    return counters_[static_cast<size_t>(way)].load(std::memory_order_acquire);
  }

  alignas(64) std::array<std::atomic<uint64_t>, kWays> counters_{};
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_COPIES_H_
