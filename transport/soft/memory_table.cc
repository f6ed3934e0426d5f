#include "verbena/transport/soft/memory_table.h"

#include <infiniband/verbs.h>

#include <mutex>

#include "verbena/transport/base/check.h"

namespace verbena::internal::soft {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr uint32_t kWindowAccess =
    IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

// The work requests' threads are the only writers, one at a time.
void Count(std::atomic<uint32_t>& counter, int change) {
  const uint32_t before = counter.load(kRelaxed);
  // Only in debug builds: each bind and each invalidation comes here.
  VERBENA_DCHECK(change >= 0 || before != 0) << "a window is unbound twice";
  counter.store(before + static_cast<uint32_t>(change), kRelaxed);
}

uint32_t QpnOf(const MemoryEntry& entry) { return entry.scope.load(kRelaxed) & 0xffffff; }

}  // namespace

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
  if (!key.has_value()) return std::nullopt;
  VERBENA_CHECK(*key >> 8 != 0 && *key >> 8 < kMaxMemoryKeys) << "key " << *key;
  Publish(*key, pd, location, bytes, access);
  return key;
}

void MemoryTable::Publish(uint32_t key, uint32_t scope, const MemoryLocation& location,
                          uint64_t bytes, uint32_t access) {
  VERBENA_DCHECK(key >> 8 != 0 && key >> 8 < kMaxMemoryKeys) << "key " << key;
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
  VERBENA_CHECK(entries_[key >> 8].key.load(kRelaxed) == 0) << "key " << key << " is in use";
  std::lock_guard<std::mutex> lock(mutex_);
  const uint32_t next_tag = (key + 1) & 0xff;
  free_keys_.push_back((key & ~0xffu) | next_tag);
}

std::optional<uint32_t> MemoryWindows::Allocate(uint32_t pd) {
  const std::optional<uint32_t> key = memory_.TakeKey();
  if (!key.has_value()) return std::nullopt;
  std::lock_guard<SpinLock> lock(lock_);
  MemoryEntry& entry = memory_.entry(*key >> 8);
  entry.scope.store(0, kRelaxed);
  entry.window_key.store(*key, kRelaxed);
  entry.window_pd.store(pd, kRelaxed);
  return key;
}

MemoryWindows::Last MemoryWindows::Unbind(uint32_t index) {
  std::lock_guard<SpinLock> lock(lock_);
  MemoryEntry& entry = memory_.entry(index);
  const Last last{.key = entry.window_key.load(kRelaxed), .qpn = QpnOf(entry)};
  if (entry.key.load(kRelaxed) != 0) UnbindLocked(entry);
  return last;
}

void MemoryWindows::Deallocate(uint32_t index) {
  MemoryEntry& entry = memory_.entry(index);
  {
    std::lock_guard<SpinLock> lock(lock_);
    entry.window_pd.store(0, kRelaxed);
  }
  memory_.Recycle(entry.window_key.load(kRelaxed));
}

bool MemoryWindows::Allowed(const WindowBinding& wanted) {
  if (wanted.index >= kMaxMemoryKeys || wanted.region >> 8 >= kMaxMemoryKeys) return false;
  const MemoryEntry& window = memory_.entry(wanted.index);
  if (window.window_pd.load(kRelaxed) != wanted.pd || window.key.load(kRelaxed) != 0 ||
      wanted.key >> 8 != wanted.index) {
    return false;
  }
  // An initiator that looks the old key up now must not take the new binding for the old one.
  if (wanted.key == window.window_key.load(kRelaxed)) return false;
  const MemoryEntry& region = memory_.entry(wanted.region >> 8);
  // A window's entry has no PD for scope, so that no window lies in another.
  if (wanted.region == 0 || region.key.load(kRelaxed) != wanted.region ||
      region.scope.load(kRelaxed) != wanted.pd) {
    return false;
  }
  const uint32_t rights = region.access.load(kRelaxed);
  constexpr uint32_t kWrites = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  if ((rights & IBV_ACCESS_MW_BIND) == 0 || (wanted.access & ~kWindowAccess) != 0 ||
      ((wanted.access & kWrites) != 0 && (rights & IBV_ACCESS_LOCAL_WRITE) == 0)) {
    return false;
  }
  const uint64_t offset = wanted.address - region.address.load(kRelaxed);
  const uint64_t size = region.bytes.load(kRelaxed);
  return wanted.bytes != 0 && offset < size && wanted.bytes <= size - offset;
}

bool MemoryWindows::Bind(const WindowBinding& wanted) {
  std::lock_guard<SpinLock> lock(lock_);
  if (!Allowed(wanted)) return false;
  MemoryEntry& region = memory_.entry(wanted.region >> 8);
  MemoryEntry& window = memory_.entry(wanted.index);
  const MemoryLocation location{.address = wanted.address,
                                .arena = region.arena.load(kRelaxed),
                                .arena_offset = region.arena_offset.load(kRelaxed) +
                                                wanted.address - region.address.load(kRelaxed)};
  Count(region.windows, 1);
  Count(tables_.QpAt(wanted.qpn).windows, 1);
  window.region.store(wanted.region, kRelaxed);
  window.window_key.store(wanted.key, kRelaxed);
  memory_.Publish(wanted.key, WindowScope(wanted.qpn), location, wanted.bytes, wanted.access);
  return true;
}

bool MemoryWindows::IsBoundLocked(uint32_t key, uint32_t qpn) {
  if (key == 0 || key >> 8 >= kMaxMemoryKeys) return false;
  const MemoryEntry& entry = memory_.entry(key >> 8);
  return entry.key.load(kRelaxed) == key && entry.scope.load(kRelaxed) == WindowScope(qpn);
}

bool MemoryWindows::IsBound(uint32_t key, uint32_t qpn) {
  std::lock_guard<SpinLock> lock(lock_);
  return IsBoundLocked(key, qpn);
}

void MemoryWindows::UnbindLocked(MemoryEntry& entry) {
  memory_.Revoke(entry.window_key.load(kRelaxed));
  Count(memory_.entry(entry.region.load(kRelaxed) >> 8).windows, -1);
  Count(tables_.QpAt(QpnOf(entry)).windows, -1);
}

bool MemoryWindows::Invalidate(uint32_t key, uint32_t qpn) {
  std::lock_guard<SpinLock> lock(lock_);
  if (!IsBoundLocked(key, qpn)) return false;
  UnbindLocked(memory_.entry(key >> 8));
  return true;
}

void MemoryWindows::InvalidateAll(uint32_t qpn) {
  const std::atomic<uint32_t>& left = tables_.QpAt(qpn).windows;
  // Rare: windows are to be invalidated or deallocated before their QP goes.
  for (uint32_t index = 1; index < memory_.used() && left.load(kRelaxed) != 0; ++index) {
    MemoryEntry& entry = memory_.entry(index);
    if (entry.scope.load(kRelaxed) != WindowScope(qpn)) continue;
    std::lock_guard<SpinLock> lock(lock_);
    if (IsBoundLocked(entry.key.load(kRelaxed), qpn)) UnbindLocked(entry);
  }
}

bool MemoryWindows::RevokeRegion(uint32_t key) {
  std::lock_guard<SpinLock> lock(lock_);
  if (memory_.entry(key >> 8).windows.load(kRelaxed) != 0) return false;
  memory_.Revoke(key);
  return true;
}

}  // namespace verbena::internal::soft
