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

#ifndef VERBENA_TRANSPORT_SOFT_MEMORY_WINDOWS_H_
#define VERBENA_TRANSPORT_SOFT_MEMORY_WINDOWS_H_

#include <cstdint>
#include <optional>

#include "verbena/transport/soft/device_tables.h"
#include "verbena/transport/soft/memory_table.h"
#include "verbena/transport/soft/spin_lock.h"

namespace verbena::internal::soft {

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

#endif  // VERBENA_TRANSPORT_SOFT_MEMORY_WINDOWS_H_
