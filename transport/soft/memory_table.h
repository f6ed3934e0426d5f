// MemoryTable: the registered memory of one device, and the check that every access passes.
//
// lkey and rkey of a registration are the same number: an index into the table and 8 bits that
// change each time an index is used again, which happens as late as possible. Check is lock-free
// and runs on the data path; Register and Revoke take a lock. The entries live in memory that peers
// map read-only, so that an initiator can check an rkey without the target's help.
//
// Revoke only makes later checks fail. Whoever revokes waits for accesses already under way
// (rnic.h).

#ifndef VERBENA_TRANSPORT_SOFT_MEMORY_TABLE_H_
#define VERBENA_TRANSPORT_SOFT_MEMORY_TABLE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>

#include "verbena/transport/log/mutant.h"

namespace verbena::soft {

// What a key stands for. `key` is 0 while the entry is free; it is stored last and cleared first.
struct alignas(64) MemoryEntry {
  std::atomic<uint32_t> key;
  std::atomic<uint32_t> pd;
  std::atomic<uint32_t> access;  // IBV_ACCESS_*
  std::atomic<uint64_t> address;
  std::atomic<uint64_t> bytes;
};

inline constexpr uint32_t kMaxMemoryRegions = 1 << 14;

// Read side: usable on our own entries and on a peer's.
class MemoryView {
 public:
  explicit MemoryView(const MemoryEntry* entries) : entries_(entries) {}

  // True when [address, address + bytes) lies in the live registration `key` of `pd`, which allows
  // all of `access`. An access of no bytes needs no key, as verbs has it.
  bool Check(uint32_t key, uint32_t pd, uint64_t address, uint64_t bytes, uint32_t access) const {
    if (bytes == 0) return true;
    const uint32_t index = key >> 8;
    if (index >= kMaxMemoryRegions) return false;
    const MemoryEntry& entry = entries_[index];
    if (entry.key.load(std::memory_order_acquire) != key || key == 0) return false;
    const uint64_t offset = address - entry.address.load(std::memory_order_relaxed);
    const uint64_t size = entry.bytes.load(std::memory_order_relaxed);
    const bool same_pd = entry.pd.load(std::memory_order_relaxed) == pd;
    return (same_pd || VERBENA_MUTANT(kLkeyPdUnchecked)) && offset < size &&
           bytes <= size - offset &&
           (entry.access.load(std::memory_order_relaxed) & access) == access;
  }

 private:
  const MemoryEntry* entries_;
};

class MemoryTable {
 public:
  // `entries`: kMaxMemoryRegions of them, zero, outliving the table.
  explicit MemoryTable(MemoryEntry* entries);

  // The new key; nothing when the table is full.
  std::optional<uint32_t> Register(uint32_t pd, uint64_t address, uint64_t bytes, uint32_t access);
  void Revoke(uint32_t key);

  const MemoryView& view() const { return view_; }

 private:
  MemoryEntry* entries_;
  MemoryView view_;
  std::mutex mutex_;
  std::deque<uint32_t> free_keys_;  // the key that each free index gets next, oldest first
};

}  // namespace verbena::soft

#endif  // VERBENA_TRANSPORT_SOFT_MEMORY_TABLE_H_
