#include "verbena/transport/memory/carved_arena.h"

#include <algorithm>
#include <new>
#include <utility>

#include "verbena/transport/base/check.h"
#include "verbena/transport/base/list.h"

namespace verbena::internal {

CarvedArena::CarvedArena(Arena arena, Scheduler* home, BlockOwner& owner)
    : MemoryRegion(arena.device().name(), arena.data(), arena.size(), arena.mr(), arena.access(),
                   home),
      arena_(std::move(arena)),
      owner_(owner),
      blocks_(static_cast<Block*>(::operator new(size() / kMinBufferBytes * sizeof(Block)))),
      free_order_(size() / kMinBufferBytes) {
  PoisonMemory(data(), size());
}

CarvedArena::~CarvedArena() {
  LeaveRegistrar();
  UnpoisonMemory(data(), size());
}

Block& CarvedArena::BlockAt(size_t offset, uint32_t order) {
  VERBENA_DCHECK(offset % OrderBytes(order) == 0 && OrderBytes(order) <= size() - offset)
      << "a block of order " << order << " at " << offset << " of " << size() << " bytes";
  Block* block = new (blocks_.get() + offset / kMinBufferBytes)
      Block(data() + offset, OrderBytes(order), *this, owner_);
  block->size_class = order;
  return *block;
}

void BuddyLists::Add(CarvedArena& arena) {
  size_t offset = 0;
  // From the largest down: each begins at a multiple of its size.
  for (uint32_t order = kBlockOrders; order-- > 0;) {
    const size_t bytes = OrderBytes(order);
    for (; arena.size() - offset >= bytes; offset += bytes) {
      Push(arena, arena.BlockAt(offset, order));
    }
  }
}

void BuddyLists::Remove(CarvedArena& arena) {
  size_t offset = 0;
  while (offset < arena.size()) {
    const uint8_t free_order = arena.FreeOrderAt(offset);
    VERBENA_CHECK(free_order != 0) << "an arena that is taken out is in use at " << offset;
    Unlink(arena, arena.blocks_.get()[offset / kMinBufferBytes]);
    offset += OrderBytes(free_order - 1);
  }
}

Block* BuddyLists::Take(uint32_t size_class) {
  const size_t bytes = SizeClassBytes(size_class);
  Block* block = TakeWhole(bytes);
  if (block == nullptr && !std::has_single_bit(bytes)) block = TakeNeighbours(bytes);
  if (block == nullptr) return nullptr;
  block->size_class = size_class;
  block->capacity = bytes;
  return block;
}

Block* BuddyLists::TakeWhole(size_t bytes) {
  uint32_t order = OrderOf(bytes);
  while (order < kBlockOrders && lists_[order] == nullptr) ++order;
  if (order == kBlockOrders) return nullptr;
  Block& block = *lists_[order];
  CarvedArena& arena = CarvedArena::Of(block);
  Claim(arena, arena.OffsetOf(block), bytes);
  return &block;
}

// Arenas need not be as large as the next power of two.
Block* BuddyLists::TakeNeighbours(size_t bytes) {
  for (Block* block = lists_[OrderOf(bytes) - 1]; block != nullptr; block = block->next) {
    CarvedArena& arena = CarvedArena::Of(*block);
    const size_t start = arena.OffsetOf(*block);
    if (bytes > arena.size() - start) continue;
    size_t free = block->capacity;
    while (free < bytes) {
      const uint8_t free_order = arena.FreeOrderAt(start + free);
      if (free_order == 0) break;
      free += OrderBytes(free_order - 1);
    }
    if (free < bytes) continue;
    Claim(arena, start, bytes);
    return block;
  }
  return nullptr;
}

void BuddyLists::Claim(CarvedArena& arena, size_t offset, size_t bytes) {
  size_t claimed = 0;
  while (claimed < bytes) {
    Block& block = arena.blocks_.get()[(offset + claimed) / kMinBufferBytes];
    Unlink(arena, block);
    claimed += OrderBytes(block.size_class);
  }
  // The rest goes back, each piece at a multiple of its size.
  for (size_t at = offset + bytes; at < offset + claimed;) {
    const uint32_t aligned = static_cast<uint32_t>(std::countr_zero(at / kMinBufferBytes));
    uint32_t order = std::min(aligned, kBlockOrders - 1);
    while (OrderBytes(order) > offset + claimed - at) --order;
    Push(arena, arena.BlockAt(at, order));
    at += OrderBytes(order);
  }
}

void BuddyLists::Give(Block& block) {
  CarvedArena& arena = CarvedArena::Of(block);
  size_t offset = arena.OffsetOf(block);
  size_t left = block.capacity;
  while (left != 0) {
    const uint32_t order = static_cast<uint32_t>(std::bit_width(left / kMinBufferBytes)) - 1;
    GiveOne(arena, offset, order);
    offset += OrderBytes(order);
    left -= OrderBytes(order);
  }
}

void BuddyLists::GiveOne(CarvedArena& arena, size_t offset, uint32_t order) {
  while (order + 1 < kBlockOrders) {
    const size_t bytes = OrderBytes(order);
    const size_t buddy = offset ^ bytes;
    if (buddy >= arena.size() || arena.FreeOrderAt(buddy) != order + 1) break;
    Unlink(arena, arena.blocks_.get()[buddy / kMinBufferBytes]);
    offset &= ~bytes;
    ++order;
  }
  Push(arena, arena.BlockAt(offset, order));
}

void BuddyLists::Push(CarvedArena& arena, Block& block) {
  uint8_t& free_order = arena.FreeOrderAt(arena.OffsetOf(block));
  VERBENA_DCHECK(free_order == 0) << "the block at " << arena.OffsetOf(block) << " is free already";
  free_order = static_cast<uint8_t>(block.size_class + 1);
  Block*& head = lists_[block.size_class];
  block.previous = nullptr;
  block.next = head;
  if (head != nullptr) head->previous = &block;
  head = &block;
  ++counts_[block.size_class];
}

void BuddyLists::Unlink(CarvedArena& arena, Block& block) {
  uint8_t& free_order = arena.FreeOrderAt(arena.OffsetOf(block));
  VERBENA_DCHECK(free_order == block.size_class + 1 && counts_[block.size_class] > 0)
      << "the block at " << arena.OffsetOf(block) << " of order " << block.size_class
      << " is not in its list";
  free_order = 0;
  if (block.previous != nullptr) {
    block.previous->next = block.next;
  } else {
    lists_[block.size_class] = block.next;
  }
  if (block.next != nullptr) block.next->previous = block.previous;
  block.next = block.previous = nullptr;
  --counts_[block.size_class];
}

}  // namespace verbena::internal
