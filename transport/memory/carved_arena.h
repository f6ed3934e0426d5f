// CarvedArena: an arena cut into blocks of the size classes, and BuddyLists: the free blocks of
// several. Internal to transport/memory.
//
// A block of a class begins at a multiple of its size within its arena, so that two neighbours
// ("buddies") of one class merge into one of the next. An arena of any whole number of pages is
// first cut into the largest blocks that fit. Free memory is then never split further than its
// blocks in use demand, and an arena without any is whole again.
//
// One Block object per page, made when a block first begins there; none is allocated later. One
// thread; nothing fails.

#ifndef VERBENA_TRANSPORT_MEMORY_CARVED_ARENA_H_
#define VERBENA_TRANSPORT_MEMORY_CARVED_ARENA_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "verbena/transport/memory/arena.h"
#include "verbena/transport/memory/block.h"
#include "verbena/transport/memory/memory_region.h"
#include "verbena/transport/memory/size_class.h"

namespace verbena::internal {

class CarvedArena final : public MemoryRegion {
 public:
  // `owner` is that of every block; the memory is poisoned from here on, but for blocks in use.
  CarvedArena(Arena arena, Scheduler* home, BlockOwner& owner);
  ~CarvedArena();

  // Of blocks that are in use, as whoever takes and gives them counts.
  size_t used = 0;

  static CarvedArena& Of(const Block& block) { return static_cast<CarvedArena&>(*block.region); }

 private:
  friend class BuddyLists;
  struct DeleteRaw {
    void operator()(Block* blocks) const { ::operator delete(blocks); }
  };

  // The block that begins at `offset`.
  Block& BlockAt(size_t offset, uint32_t size_class);
  size_t OffsetOf(const Block& block) const { return static_cast<size_t>(block.data - data()); }
  uint8_t& FreeClassAt(size_t offset) { return free_class_[offset / kMinBufferBytes]; }

  Arena arena_;
  BlockOwner& owner_;
  // Not constructed where no block has begun yet: large arenas cost no more than is used of them.
  std::unique_ptr<Block, DeleteRaw> blocks_;
  // By page: 1 + the class of the free block that begins there, 0 when there is none.
  std::vector<uint8_t> free_class_;
};

class BuddyLists {
 public:
  // An arena all of whose memory is free.
  void Add(CarvedArena& arena);
  // Takes an arena out all of whose memory is free again.
  void Remove(CarvedArena& arena);

  // A block of that class, split off a larger one where there is none; null when all are smaller.
  Block* Take(uint32_t size_class);
  // Merges it with its free buddies.
  void Give(Block& block);

  size_t free_blocks(uint32_t size_class) const { return counts_[size_class]; }

 private:
  void Push(CarvedArena& arena, Block& block);
  void Unlink(CarvedArena& arena, Block& block);

  std::array<Block*, kSizeClasses> lists_{};
  std::array<size_t, kSizeClasses> counts_{};
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_MEMORY_CARVED_ARENA_H_
