// FloorArea: the layout of a floor mapping, shared by both processes.

#ifndef VERBENA_BENCHMARKS_FLOOR_FLOOR_AREA_H_
#define VERBENA_BENCHMARKS_FLOOR_FLOOR_AREA_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "verbena/benchmarks/floor/floor.h"

namespace verbena::benchmarks::internal {

inline constexpr std::size_t kCacheLine = 64;
inline constexpr std::uint32_t kFloorMagic = 0x666c6f6f;
inline constexpr std::size_t kFloorRingBytes =
    std::size_t{kMaxFloorOutstanding} * (kMaxFloorSize + kCacheLine);

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

// Slices are numbered from 1. The server announces the slice it is ready for. The client clears the
// rings, fills in the slice's parameters, begins it and ends it.
struct FloorArea {
  std::uint32_t magic;
  alignas(kCacheLine) std::atomic<std::uint32_t> ready;
  alignas(kCacheLine) std::atomic<std::uint32_t> begun;
  std::uint32_t size;         // written before `begun`
  std::uint32_t outstanding;  // written before `begun`
  alignas(kCacheLine) std::atomic<std::uint32_t> ended;
  // Rings of slots, on pages of their own: the prefetcher does not cross from one into the other.
  alignas(4096) std::byte requests[kFloorRingBytes];
  alignas(4096) std::byte answers[kFloorRingBytes];
};

// One ring as one side sees it. A slot is whole cache lines: a payload, and in the last word the
// number of the message that the slot holds. The other side watches this word.
class FloorRing {
 public:
  // The ring has one slot per outstanding message, so a slot is written again only after its last
  // message was answered.
  FloorRing(std::byte* base, std::uint32_t size, std::uint32_t outstanding)
      : base_(base), capacity_(outstanding) {
    stride_ = (size + sizeof(std::uint32_t) + kCacheLine - 1) / kCacheLine * kCacheLine;
  }

  std::byte* payload() const { return base_ + index_ * stride_; }

  // Whether the next message has come.
  bool HasNext() const { return Sequence().load(std::memory_order_acquire) == next_; }

  // Tells the other side that payload() holds the next message.
  void Publish() { Sequence().store(next_, std::memory_order_release); }

  void Advance() {
    ++next_;
    if (++index_ == capacity_) index_ = 0;
  }

 private:
  std::atomic<std::uint32_t>& Sequence() const {
    return *reinterpret_cast<std::atomic<std::uint32_t>*>(payload() + stride_ -
                                                          sizeof(std::uint32_t));
  }

  std::byte* base_;
  std::size_t stride_ = 0;
  std::uint32_t capacity_;
  std::uint32_t index_ = 0;
  std::uint32_t next_ = 1;
};

}  // namespace verbena::benchmarks::internal

#endif  // VERBENA_BENCHMARKS_FLOOR_FLOOR_AREA_H_
