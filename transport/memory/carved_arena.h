// CarvedArena: an arena cut into blocks, and BuddyLists: the free blocks of several. Internal to
// transport/memory.
//
// Free blocks are powers of two, each at a multiple of its size within its arena, so that two
// neighbours ("buddies") of one order merge into one of the next. A block in use has the size of
// its class: the neighbours that make it up, the largest first. An arena of any whole number of
// pages is first cut into the largest blocks that fit. So free memory is never split further than
// the blocks in use demand, and an arena without blocks in use is whole again.
//
// One Block object per page, made when a block first begins there; none is allocated later. One
// thread; nothing fails.

#ifndef VERBENA_TRANSPORT_MEMORY_CARVED_ARENA_H_
#define VERBENA_TRANSPORT_MEMORY_CARVED_ARENA_H_

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "verbena/transport/base/check.h"
#include "verbena/transport/memory/arena.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

// Size classes of payload buffers, and orders of free blocks.
//
// Buffers are whole pages of 4 KiB: 1, 2, 3 or 4 of them, then four classes for each doubling (5,
// 6, 7, 8, 10, 12, 14, 16, …), up to 64 MiB. So a buffer takes at most a quarter more than the
// pages that were asked for. Free memory is kept in blocks of powers of two (an order each), of
// which a buffer takes up to three neighbours.

inline constexpr size_t kMinBufferBytes = size_t{4} << 10;
inline constexpr size_t kMaxBufferBytes = size_t{64} << 20;

inline constexpr uint32_t kBlockOrders = std::bit_width(kMaxBufferBytes / kMinBufferBytes);
inline constexpr uint32_t kClassesPerDoubling = 4;
// The classes of up to kClassesPerDoubling pages come first; they are two doublings.
inline constexpr uint32_t kSizeClasses =
    kClassesPerDoubling + (kBlockOrders - 3) * kClassesPerDoubling;

constexpr size_t OrderBytes(uint32_t order) { return kMinBufferBytes << order; }

// The smallest order that holds `bytes`, which are at most kMaxBufferBytes.
constexpr uint32_t OrderOf(size_t bytes) {
  return bytes <= kMinBufferBytes ? 0 : std::bit_width((bytes - 1) / kMinBufferBytes);
}

constexpr size_t SizeClassBytes(uint32_t size_class) {
  if (size_class < kClassesPerDoubling) return (size_class + 1) * kMinBufferBytes;
  const uint32_t doubling = size_class / kClassesPerDoubling - 1;
  const size_t pages = kClassesPerDoubling + 1 + size_class % kClassesPerDoubling;
  return (pages << doubling) * kMinBufferBytes;
}

// The smallest class that holds `bytes`, which are at most kMaxBufferBytes.
constexpr uint32_t SizeClassOf(size_t bytes) {
  if (bytes <= kMinBufferBytes) return 0;
  const size_t last_page = (bytes - 1) / kMinBufferBytes;
  if (last_page < kClassesPerDoubling) return static_cast<uint32_t>(last_page);
  const uint32_t doubling = std::bit_width(last_page) - 3;
  return static_cast<uint32_t>(doubling * kClassesPerDoubling + (last_page >> doubling));
}

static_assert(SizeClassBytes(kSizeClasses - 1) == kMaxBufferBytes);
static_assert(SizeClassOf(kMaxBufferBytes) == kSizeClasses - 1);
static_assert(SizeClassOf(0) == 0 && SizeClassOf(4096) == 0 && SizeClassOf(4097) == 1);
static_assert(SizeClassBytes(SizeClassOf(16385)) == 20480);
static_assert(SizeClassBytes(SizeClassOf((16 << 20) + 1)) == 20 << 20);
static_assert(OrderOf(0) == 0 && OrderOf(4096) == 0 && OrderOf(4097) == 1 && OrderOf(8193) == 2);
static_assert(OrderBytes(kBlockOrders - 1) == kMaxBufferBytes);

// One arena, cut into blocks. Owned by a BufferPool, and used on its scheduler's thread; once it
// has left its registrar, any thread may destroy it. Its free blocks are in the pool's BuddyLists.
class CarvedArena final : public MemoryRegion {
 public:
  // `owner` owns every block. The memory is poisoned from here on, except for blocks in use.
  CarvedArena(Arena arena, Scheduler* home, BlockOwner& owner);
  ~CarvedArena();

  // Call on the home scheduler's thread: afterwards this may be destroyed on any thread.
  using MemoryRegion::LeaveRegistrar;

  // Bytes of blocks in use; whoever takes and gives back blocks counts them.
  size_t used = 0;

  static CarvedArena& Of(const Block& block) { return static_cast<CarvedArena&>(*block.region); }

 private:
  friend class BuddyLists;
  struct DeleteRaw {
    void operator()(Block* blocks) const { ::operator delete(blocks); }
  };

  // The free block of order `order` that begins at `offset`.
  Block& BlockAt(size_t offset, uint32_t order);
  size_t OffsetOf(const Block& block) const { return static_cast<size_t>(block.data - data()); }
  uint8_t& FreeOrderAt(size_t offset) {
    VERBENA_DCHECK(offset < size()) << offset << " of " << size() << " bytes";
    return free_order_[offset / kMinBufferBytes];
  }

  Arena arena_;
  BlockOwner& owner_;
  // Not constructed where no block has begun yet: a large arena costs no more than its used part.
  std::unique_ptr<Block, DeleteRaw> blocks_;
  // By page: 1 + the order of the free block that begins there, 0 when there is none.
  std::vector<uint8_t> free_order_;
};

// The free blocks of a pool's arenas, in one list for each order. Owned by the pool, on its
// scheduler's thread. Owns no arena and no block.
class BuddyLists {
 public:
  // Adds an arena whose memory is all free.
  void Add(CarvedArena& arena);
  // Takes out an arena whose memory is all free again.
  void Remove(CarvedArena& arena);

  // A block of that class: from the smallest free block that holds it, or from neighbours that hold
  // it together. Null when there is none.
  Block* Take(uint32_t size_class);
  // Takes `block` back, and merges its parts with their free buddies.
  void Give(Block& block);

  size_t free_blocks(uint32_t order) const { return counts_[order]; }

 private:
  // The first of the blocks that hold `bytes`, off the lists; null when there is none.
  Block* TakeWhole(size_t bytes);
  Block* TakeNeighbours(size_t bytes);
  // Takes the free blocks at `offset` off the lists, and gives back the part beyond `bytes`.
  void Claim(CarvedArena& arena, size_t offset, size_t bytes);
  void GiveOne(CarvedArena& arena, size_t offset, uint32_t order);
  void Push(CarvedArena& arena, Block& block);
  void Unlink(CarvedArena& arena, Block& block);

  std::array<Block*, kBlockOrders> lists_{};
  std::array<size_t, kBlockOrders> counts_{};
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_MEMORY_CARVED_ARENA_H_
