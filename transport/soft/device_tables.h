// DeviceTables: the tables that a device lets its peers read: its registered memory, the windows on
// it, and how each of its QPs may be reached. With them an initiator can check and execute a
// one-sided operation without the target's help. The target binds a window to one of its QPs. So
// the window opens memory only to the one QP that is connected to that QP.
//
// A target that withdraws a permission changes the table, passes a full fence, and only then looks
// whether a copy is under way (LaneHeader::copying, and by which key); an initiator announces its
// copy, passes a full fence, and only then checks the table. So either the initiator sees the
// change, or the target sees the copy and knows what to wait for.

#ifndef VERBENA_TRANSPORT_SOFT_DEVICE_TABLES_H_
#define VERBENA_TRANSPORT_SOFT_DEVICE_TABLES_H_

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <optional>

#include "verbena/transport/soft/device_address.h"
#include "verbena/transport/soft/memory_table.h"

namespace verbena::internal::soft {

inline constexpr uint32_t kMaxQueuePairs = 1 << 14;

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

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_DEVICE_TABLES_H_
