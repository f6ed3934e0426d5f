// Block: the memory behind one Buffer, and how many hold it. Internal to transport/memory.
//
// The Buffer holds it, and so does each BufferPin, for an operation that must not lose the memory
// when the Buffer goes. Whoever drops the last reference, on whatever thread, gives it back to its
// owner, which outlives it. A sole holder does so without an atomic write.

#ifndef VERBENA_TRANSPORT_MEMORY_BLOCK_H_
#define VERBENA_TRANSPORT_MEMORY_BLOCK_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "verbena/transport/memory/memory_region.h"

namespace verbena::internal {

struct Block;

class BlockOwner {
 public:
  virtual ~BlockOwner() = default;
  // From any thread: nobody holds the block any more.
  virtual void OnUnused(Block& block) = 0;
};

// Hears once that a block is free again. Lives until then.
class BlockListener {
 public:
  virtual ~BlockListener() = default;
  // On the thread of the block's pool.
  virtual void OnBlockHome(size_t capacity) = 0;
};

struct Block {
  Block(char* its_data, size_t its_capacity, MemoryRegion& its_region, BlockOwner& its_owner)
      : data(its_data),
        capacity(its_capacity),
        region(&its_region),
        owner(&its_owner),
        lkey(its_region.lkey()) {}

  void Hold() { references.fetch_add(1, std::memory_order_relaxed); }
  void Drop() {
    // References come from references: a sole holder stays the sole one.
    if (references.load(std::memory_order_acquire) != 1 &&
        references.fetch_sub(1, std::memory_order_acq_rel) != 1) {
      return;
    }
    owner->OnUnused(*this);
  }

  char* data;
  size_t capacity;
  MemoryRegion* region;
  BlockOwner* owner;
  uint32_t lkey;
  std::atomic<uint32_t> references{0};
  BlockListener* listener = nullptr;  // of memory from a pool
  // The owner's.
  uint32_t size_class = 0;
  Block* next = nullptr;
  Block* previous = nullptr;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_MEMORY_BLOCK_H_
