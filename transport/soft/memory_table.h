// MemoryTable: the registered memory of one device and the memory windows on it (memory_windows.h),
// and the check that every access passes.
//
// lkey and rkey of a registration are the same number: an index into the table and 8 bits that
// change each time an index is used again, which happens as late as possible. The checks are
// lock-free and run on the data path; all else takes a lock. The entries live in memory that peers
// map read-only, so that an initiator can check an rkey without the target's help.
//
// Revoke makes later checks fail, and passes a full fence. Whoever revokes waits for accesses
// already under way (Rnic::DeregMr, SendQueue::InvalidateLocally).

#ifndef VERBENA_TRANSPORT_SOFT_MEMORY_TABLE_H_
#define VERBENA_TRANSPORT_SOFT_MEMORY_TABLE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>

namespace verbena::internal::soft {

// The memory that a key stands for. `key` is 0 while the entry stands for nothing; it is stored
// last and cleared first.
struct alignas(64) MemoryEntry {
  std::atomic<uint32_t> key;
  std::atomic<uint32_t> scope;  // a region's PD, or WindowScope of the QP that a window is bound to
  std::atomic<uint32_t> access;  // IBV_ACCESS_*
  std::atomic<uint32_t> arena;   // the shared arena that it lies in, or 0,
  std::atomic<uint64_t> address;
  std::atomic<uint64_t> bytes;
  std::atomic<uint64_t> arena_offset;  // and where in it
  // MemoryWindows uses these under its lock. Peers do not look at them.
  std::atomic<uint32_t> window_pd;   // of a window: its PD, never 0; otherwise 0
  std::atomic<uint32_t> window_key;  // of a window: its current or last key
  std::atomic<uint32_t> region;      // of a window: the key of its current or last region
  std::atomic<uint32_t> windows;     // of a region: how many windows are bound to it
};
static_assert(sizeof(MemoryEntry) == 64);

// The scope of a window that is bound to QP `qpn`. PD handles are small numbers, so no PD has this
// scope: a window's key never serves as an lkey.
constexpr uint32_t WindowScope(uint32_t qpn) { return qpn | uint32_t{1} << 31; }

// The place of a range of registered memory.
struct MemoryLocation {
  uint64_t address = 0;  // in the process that registered it
  uint32_t arena = 0;    // 0: in none
  uint64_t arena_offset = 0;
};

// The most regions and windows together.
inline constexpr uint32_t kMaxMemoryKeys = 1 << 16;

// Read side: usable on our own entries and on a peer's.
class MemoryView {
 public:
  explicit MemoryView(const MemoryEntry* entries) : entries_(entries) {}

  // True when [address, address + bytes) lies in the live registration `key` of `pd`, which allows
  // all of `access`. As in verbs, an access of no bytes needs no key.
  bool Check(uint32_t key, uint32_t pd, uint64_t address, uint64_t bytes, uint32_t access) const {
    if (bytes == 0) return true;
    const uint32_t index = key >> 8;
    if (index >= kMaxMemoryKeys) return false;
    const MemoryEntry& entry = entries_[index];
    if (entry.key.load(std::memory_order_acquire) != key || key == 0) return false;
    const uint64_t offset = address - entry.address.load(std::memory_order_relaxed);
    const uint64_t size = entry.bytes.load(std::memory_order_relaxed);
    const bool same_pd = entry.scope.load(std::memory_order_relaxed) == pd;
    return same_pd && offset < size && bytes <= size - offset &&
           (entry.access.load(std::memory_order_relaxed) & access) == access;
  }

  // The same for a peer's access through QP `qpn` of `pd`, which a window that is bound to this QP
  // allows too.
  bool CheckRemote(uint32_t key, uint32_t pd, uint32_t qpn, uint64_t address, uint64_t bytes,
                   uint32_t access) const {
    return Check(key, pd, address, bytes, access) ||
           Check(key, WindowScope(qpn), address, bytes, access);
  }

  // Returns where the range lies, if CheckRemote allows the access. For views of a peer's entries,
  // which may change while they are read.
  std::optional<MemoryLocation> Find(uint32_t key, uint32_t pd, uint32_t qpn, uint64_t address,
                                     uint64_t bytes, uint32_t access) const {
    if (!CheckRemote(key, pd, qpn, address, bytes, access)) return std::nullopt;
    MemoryLocation location{.address = address};
    if (bytes == 0) return location;
    const MemoryEntry& entry = entries_[key >> 8];
    location.arena = entry.arena.load(std::memory_order_relaxed);
    location.arena_offset = entry.arena_offset.load(std::memory_order_relaxed) + address -
                            entry.address.load(std::memory_order_relaxed);
    // The same registration all along: what was read belongs together.
    std::atomic_thread_fence(std::memory_order_acquire);
    if (entry.key.load(std::memory_order_relaxed) != key) return std::nullopt;
    return location;
  }

 private:
  const MemoryEntry* entries_;
};

class MemoryTable {
 public:
  // `entries`: kMaxMemoryKeys of them, zero, outliving the table.
  explicit MemoryTable(MemoryEntry* entries);

  // The new key; nothing when the table is full.
  std::optional<uint32_t> Register(uint32_t pd, const MemoryLocation& location, uint64_t bytes,
                                   uint32_t access);
  // The parts of Register: a key that stands for nothing yet, and what it stands for.
  std::optional<uint32_t> TakeKey();
  void Publish(uint32_t key, uint32_t scope, const MemoryLocation& location, uint64_t bytes,
               uint32_t access);
  void Revoke(uint32_t key);
  // Lets the index of a revoked key be used again. Separate from Revoke, because a peer may keep us
  // from knowing for a while that nobody uses the memory any more.
  void Recycle(uint32_t key);

  const MemoryView& view() const { return view_; }
  // `index` is below kMaxMemoryKeys.
  MemoryEntry& entry(uint32_t index) { return entries_[index]; }
  // Entries from here on were never used.
  uint32_t used() const { return used_.load(std::memory_order_relaxed); }

 private:
  MemoryEntry* entries_;
  MemoryView view_;
  std::mutex mutex_;
  // Index 0 is left out, so that no key is small enough to be taken for an uninitialised one.
  std::atomic<uint32_t> used_{1};
  std::deque<uint32_t> free_keys_;  // the key that each recycled index gets next, oldest first
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_MEMORY_TABLE_H_
