#include "verbena/transport/soft/memory_table.h"

namespace verbena::internal::soft {

MemoryTable::MemoryTable(MemoryEntry* entries) : entries_(entries), view_(entries) {}

std::optional<uint32_t> MemoryTable::TakeKey() {
  std::lock_guard<std::mutex> lock(mutex_);
  // Every index once before any is used again.
  if (const uint32_t fresh = used(); fresh != kMaxMemoryKeys) {
    used_.store(fresh + 1, std::memory_order_relaxed);
    return fresh << 8 | 1;
  }
  if (free_keys_.empty()) return std::nullopt;
  const uint32_t key = free_keys_.front();
  free_keys_.pop_front();
  return key;
}

std::optional<uint32_t> MemoryTable::Register(uint32_t pd, const MemoryLocation& location,
                                              uint64_t bytes, uint32_t access) {
  const std::optional<uint32_t> key = TakeKey();
  if (key.has_value()) Publish(*key, pd, location, bytes, access);
  return key;
}

void MemoryTable::Publish(uint32_t key, uint32_t scope, const MemoryLocation& location,
                          uint64_t bytes, uint32_t access) {
  MemoryEntry& entry = entries_[key >> 8];
  entry.scope.store(scope, std::memory_order_relaxed);
  entry.access.store(access, std::memory_order_relaxed);
  entry.address.store(location.address, std::memory_order_relaxed);
  entry.arena.store(location.arena, std::memory_order_relaxed);
  entry.arena_offset.store(location.arena_offset, std::memory_order_relaxed);
  entry.bytes.store(bytes, std::memory_order_relaxed);
  entry.key.store(key, std::memory_order_release);
}

void MemoryTable::Revoke(uint32_t key) {
  entries_[key >> 8].key.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void MemoryTable::Recycle(uint32_t key) {
  std::lock_guard<std::mutex> lock(mutex_);
  const uint32_t next_tag = (key + 1) & 0xff;
  free_keys_.push_back((key & ~0xffu) | next_tag);
}

}  // namespace verbena::internal::soft
