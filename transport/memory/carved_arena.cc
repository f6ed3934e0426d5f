#include "verbena/transport/memory/carved_arena.h"

#include <cassert>
#include <new>
#include <utility>

#include "verbena/transport/coro/poison.h"

namespace verbena::internal {

CarvedArena::CarvedArena(Arena arena, Scheduler* home, BlockOwner& owner)
    : MemoryRegion(arena.data(), arena.size(), arena.mr(), arena.access(), home),
      arena_(std::move(arena)),
      owner_(owner),
      blocks_(static_cast<Block*>(::operator new(size() / kMinBufferBytes * sizeof(Block)))),
      free_class_(size() / kMinBufferBytes) {
  PoisonMemory(data(), size());
}

CarvedArena::~CarvedArena() {
  LeaveRegistrar();
  UnpoisonMemory(data(), size());
}

Block& CarvedArena::BlockAt(size_t offset, uint32_t size_class) {
  Block* block = new (blocks_.get() + offset / kMinBufferBytes)
      Block(data() + offset, SizeClassBytes(size_class), *this, owner_);
  block->size_class = size_class;
  return *block;
}

void BuddyLists::Add(CarvedArena& arena) {
  size_t offset = 0;
  // From the largest down: each begins at a multiple of its size.
  for (uint32_t size_class = kSizeClasses; size_class-- > 0;) {
    const size_t bytes = SizeClassBytes(size_class);
    for (; arena.size() - offset >= bytes; offset += bytes) {
      Push(arena, arena.BlockAt(offset, size_class));
    }
  }
}

void BuddyLists::Remove(CarvedArena& arena) {
  size_t offset = 0;
  while (offset < arena.size()) {
    const uint8_t free_class = arena.FreeClassAt(offset);
    assert(free_class != 0);
    Unlink(arena, arena.blocks_.get()[offset / kMinBufferBytes]);
    offset += SizeClassBytes(free_class - 1);
  }
}

Block* BuddyLists::Take(uint32_t size_class) {
  uint32_t found = size_class;
  while (found < kSizeClasses && lists_[found] == nullptr) ++found;
  if (found == kSizeClasses) return nullptr;
  Block& block = *lists_[found];
  CarvedArena& arena = CarvedArena::Of(block);
  Unlink(arena, block);
  const size_t offset = arena.OffsetOf(block);
  while (found > size_class) {
    --found;
    Push(arena, arena.BlockAt(offset + SizeClassBytes(found), found));
  }
  block.size_class = size_class;
  block.capacity = SizeClassBytes(size_class);
  return &block;
}

void BuddyLists::Give(Block& block) {
  CarvedArena& arena = CarvedArena::Of(block);
  size_t offset = arena.OffsetOf(block);
  uint32_t size_class = block.size_class;
  while (size_class + 1 < kSizeClasses) {
    const size_t bytes = SizeClassBytes(size_class);
    const size_t buddy = offset ^ bytes;
    if (buddy >= arena.size() || arena.FreeClassAt(buddy) != size_class + 1) break;
    Unlink(arena, arena.blocks_.get()[buddy / kMinBufferBytes]);
    offset &= ~bytes;
    ++size_class;
  }
  Push(arena, arena.BlockAt(offset, size_class));
}

void BuddyLists::Push(CarvedArena& arena, Block& block) {
  arena.FreeClassAt(arena.OffsetOf(block)) = static_cast<uint8_t>(block.size_class + 1);
  Block*& head = lists_[block.size_class];
  block.previous = nullptr;
  block.next = head;
  if (head != nullptr) head->previous = &block;
  head = &block;
  ++counts_[block.size_class];
}

void BuddyLists::Unlink(CarvedArena& arena, Block& block) {
  arena.FreeClassAt(arena.OffsetOf(block)) = 0;
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
