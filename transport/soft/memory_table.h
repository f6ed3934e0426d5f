// Tables of the memory that a soft device opens, and to whom: MemoryTable, DeviceTables and
// MemoryWindows.
//
// MemoryView and TargetView read them, ours and a peer's. The device owns them, and its peers map
// them read-only. Any thread. The number of entries is fixed.

#ifndef VERBENA_TRANSPORT_SOFT_MEMORY_TABLE_H_
#define VERBENA_TRANSPORT_SOFT_MEMORY_TABLE_H_

#include <infiniband/verbs.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>

#include "verbena/transport/soft/address.h"
#include "verbena/transport/soft/events.h"
#include "verbena/transport/soft/options.h"

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
  uint32_t arena = 0;    // the number of the arena that it lies in; 0: in none
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

// MemoryTable: the registered memory of one device and the memory windows on it (MemoryWindows),
// and the check that every access passes.
//
// lkey and rkey of a registration are the same number: an index into the table and 8 bits that
// change each time an index is used again, which happens as late as possible. The checks are
// lock-free and run on the data path; all else takes a lock. The entries live in memory that peers
// map read-only, so that an initiator can check an rkey without the target's help.
//
// Revoke makes later checks fail, and passes a full fence. Whoever revokes waits for accesses
// already under way (SoftObjects::DeregMr, SendQueue::InvalidateLocally).
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

// One QP in service. `qpn` is 0 while it is not; it is stored last and cleared first.
struct alignas(64) QpEntry {
  std::atomic<uint32_t> qpn;
  std::atomic<uint32_t> pd;
  std::atomic<uint32_t> access;         // IBV_ACCESS_* that the QP allows its peer
  std::atomic<uint32_t> source;         // the QPN that it is connected to,
  std::atomic<uint64_t> source_gid[2];  // and the device of that:
  std::atomic<uint32_t> source_lid;     // its address
  // The number of windows bound to the QP. MemoryWindows uses it under its lock; peers do not look
  // at it.
  std::atomic<uint32_t> windows;
};

// DeviceTables: the tables that a device lets its peers read: its registered memory, the windows on
// it, and how each of its QPs may be reached. With them an initiator can check and execute a
// one-sided operation without the target's help. The target binds a window to one of its QPs. So
// the window opens memory only to the one QP that is connected to that QP.
//
// A target that withdraws a permission changes the table, passes a full fence, and only then looks
// whether a copy is under way (LaneHeader::copying, and by which key); an initiator announces its
// copy, passes a full fence, and only then checks the table. So either the initiator sees the
// change, or the target sees the copy and knows what to wait for.
struct DeviceTables {
  MemoryEntry memory[kMaxMemoryKeys];
  QpEntry qps[kMaxQueuePairs];

  QpEntry& QpAt(uint32_t qpn) { return qps[qpn & (kMaxQueuePairs - 1)]; }
};

// A one-sided access, as its initiator sees it.
struct RemoteAccess {
  uint32_t target_qpn = 0;
  uint32_t source_qpn = 0;
  DeviceAddress source{};
  uint32_t rkey = 0;
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint32_t access = 0;
};

// A peer's tables.
class TargetView {
 public:
  explicit TargetView(const DeviceTables* tables) : tables_(tables) {}

  // Returns where the memory lies, if the target's tables allow the access now.
  std::optional<MemoryLocation> Find(const RemoteAccess& wanted) const {
    const QpEntry& qp = tables_->qps[wanted.target_qpn & (kMaxQueuePairs - 1)];
    if (qp.qpn.load(std::memory_order_acquire) != wanted.target_qpn) return std::nullopt;
    const uint32_t pd = qp.pd.load(std::memory_order_relaxed);
    const bool allowed =
        qp.source.load(std::memory_order_relaxed) == wanted.source_qpn &&
        qp.source_gid[0].load(std::memory_order_relaxed) ==
            wanted.source.gid.global.subnet_prefix &&
        qp.source_gid[1].load(std::memory_order_relaxed) == wanted.source.gid.global.interface_id &&
        qp.source_lid.load(std::memory_order_relaxed) == wanted.source.lid &&
        (qp.access.load(std::memory_order_relaxed) & wanted.access) == wanted.access;
    // The same QP all along: what was read belongs together.
    std::atomic_thread_fence(std::memory_order_acquire);
    if (!allowed || qp.qpn.load(std::memory_order_relaxed) != wanted.target_qpn) {
      return std::nullopt;
    }
    return MemoryView(tables_->memory)
        .Find(wanted.rkey, pd, wanted.target_qpn, wanted.address, wanted.bytes, wanted.access);
  }

 private:
  const DeviceTables* tables_;
};

// The parameters of a BIND_MW, on behalf of QP `qpn` of `pd`.
struct WindowBinding {
  uint32_t index = 0;  // the window's
  uint32_t key = 0;
  uint32_t pd = 0;
  uint32_t qpn = 0;
  uint32_t region = 0;  // lkey
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint32_t access = 0;
};

// MemoryWindows: the type-2 windows (2B in the InfiniBand specification) of one device.
//
// A window is an entry of the MemoryTable. A free window opens nothing. A bound one opens a range
// of a region, with rights of its own, to the peer of one QP. The consumer chooses the low 8 bits
// of its key at each binding, the rest is the window's for life. A binding is checked when its work
// request is executed, and never again: a region with windows on it cannot be deregistered, and a
// QP that is reset or destroyed leaves its windows free.
//
// Ending a binding makes later accesses fail. Whoever ends it waits for the accesses under way.
//
// Any thread; the lock is a leaf.
class MemoryWindows {
 public:
  // `tables` are those that `memory` keeps its entries in. Both outlive it.
  MemoryWindows(MemoryTable& memory, DeviceTables& tables) : memory_(memory), tables_(tables) {}
  MemoryWindows(const MemoryWindows&) = delete;
  MemoryWindows& operator=(const MemoryWindows&) = delete;

  // The key of a new, free window, to count on from; nothing when the table is full.
  std::optional<uint32_t> Allocate(uint32_t pd);
  // The key of a window's current or last binding, and the QP that it is or was bound to.
  struct Last {
    uint32_t key = 0;
    uint32_t qpn = 0;  // 0: it never was bound
  };
  // Ends its binding, if it has one.
  Last Unbind(uint32_t index);
  // Lets another region or window use `index`. Precondition: the window is not bound.
  void Deallocate(uint32_t index);

  // False when the binding is not allowed. The window is bound already or of another PD; its key is
  // another window's, or the one that it had last; the region is not live, of another PD, not
  // registered with MW_BIND, or, for a window that may be written to, without LOCAL_WRITE; the
  // range is empty, or not within the region; or windows do not have the wanted rights.
  bool Bind(const WindowBinding& wanted);
  // Ends the binding of `key`. False when no window with that key is bound to QP `qpn`.
  bool Invalidate(uint32_t key, uint32_t qpn);
  // The same for all that are bound to QP `qpn`.
  void InvalidateAll(uint32_t qpn);
  bool IsBound(uint32_t key, uint32_t qpn);

  // Revokes a region, unless a window is bound to it: then false.
  bool RevokeRegion(uint32_t key);

 private:
  bool Allowed(const WindowBinding& wanted);
  bool IsBoundLocked(uint32_t key, uint32_t qpn);
  void UnbindLocked(MemoryEntry& entry);

  MemoryTable& memory_;
  DeviceTables& tables_;
  SpinLock lock_;
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_MEMORY_TABLE_H_
