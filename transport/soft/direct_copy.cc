#include "verbena/transport/soft/direct_copy.h"

#include <atomic>
#include <optional>

#include "verbena/transport/soft/completions.h"
#include "verbena/transport/soft/user_memory.h"

namespace verbena::internal::soft {

bool DirectCopy::Possible(const RemoteAccess& access) const {
  if (!lane_.peer().shares_memory() || !lane_.target_sees_copies()) return false;
  const std::optional<MemoryLocation> where = lane_.peer().target().Find(access);
  return where.has_value() && lane_.peer().CanReach(*where, access.bytes);
}

template <typename Operation>
bool DirectCopy::Announced(const RemoteAccess& access, Operation operation) {
  lane_.BeginCopy(access.rkey);
  std::optional<MemoryLocation> where;
  if (lane_.target_sees_copies()) where = lane_.peer().target().Find(access);
  const bool done = where.has_value() && operation(*where);
  lane_.EndCopy();
  return done;
}

bool DirectCopy::Chunk(const RemoteAccess& access, void* local) {
  const bool write = access.access == IBV_ACCESS_REMOTE_WRITE;
  return Announced(access, [&](const MemoryLocation& where) {
    std::byte* remote = lane_.peer().Map(where, access.bytes);
    CopyCounters& copied = lane_.send_cq().copied();
    if (remote == nullptr) {
      if (!lane_.peer().CopyByKernel(write, local, where, access.bytes)) return false;
      copied.Add(write ? CopyWay::kKernelWrite : CopyWay::kKernelRead, access.bytes);
      return true;
    }
    if (!(write ? StoreUserMemory(remote, local, access.bytes)
                : CopyUserMemory(local, remote, access.bytes))) {
      return false;
    }
    copied.Add(write ? CopyWay::kDirectWrite : CopyWay::kDirectRead, access.bytes);
    return true;
  });
}

bool DirectCopy::CompareSwap(const RemoteAccess& access, uint64_t compare, uint64_t swap,
                             uint64_t& old) {
  return Announced(access, [&](const MemoryLocation& where) {
    std::byte* remote = lane_.peer().Map(where, access.bytes);
    if (remote == nullptr) return false;
    old = compare;
    return AccessUserMemory(remote, access.bytes, [&] {
      std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(remote))
          .compare_exchange_strong(old, swap);
    });
  });
}

bool DirectCopy::FetchAdd(const RemoteAccess& access, uint64_t add, uint64_t& old) {
  return Announced(access, [&](const MemoryLocation& where) {
    std::byte* remote = lane_.peer().Map(where, access.bytes);
    if (remote == nullptr) return false;
    return AccessUserMemory(remote, access.bytes, [&] {
      old = std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(remote)).fetch_add(add);
    });
  });
}

}  // namespace verbena::internal::soft
