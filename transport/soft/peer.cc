#include "verbena/transport/soft/peer.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/uio.h>

namespace verbena::internal::soft {

void Peer::Wake(CqControl& control) {
  control.doorbell.Ring([&] {
    if (parts_.doorbell) eventfd_write(parts_.doorbell.get(), 1);
  });
}

bool Peer::CanReach(const MemoryLocation& where, uint64_t bytes) const {
  if (Map(where, bytes) != nullptr) return true;
  return parts_.pid != 0 && bytes >= parts_.least_by_kernel &&
         !kernel_refuses_.load(std::memory_order_relaxed);
}

std::byte* Peer::Map(const MemoryLocation& where, uint64_t bytes) const {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): verbs address memory by integers.
  if (parts_.in_process) return reinterpret_cast<std::byte*>(where.address);
  if (where.arena == 0 || where.arena >= kMaxArenas) return nullptr;
  const MappedArena& arena = arenas_[where.arena];
  std::byte* data = arena.data.load(std::memory_order_acquire);
  const uint64_t size = arena.bytes.load(std::memory_order_relaxed);
  // The table is the peer's own: what it says is bounded by what we mapped.
  if (data == nullptr || where.arena_offset > size || bytes > size - where.arena_offset) {
    return nullptr;
  }
  return data + where.arena_offset;
}

bool Peer::CopyByKernel(bool write, void* local, const MemoryLocation& where, uint64_t bytes) {
  // A pid may stand for another process once ours has been waited for.
  if (parts_.pid == 0 || ProcessEnded()) return false;
  const iovec here{.iov_base = local, .iov_len = bytes};
  // NOLINTNEXTLINE(performance-no-int-to-ptr): verbs address memory by integers.
  const iovec there{.iov_base = reinterpret_cast<void*>(where.address), .iov_len = bytes};
  const ssize_t copied = write ? process_vm_writev(parts_.pid, &here, 1, &there, 1, 0)
                               : process_vm_readv(parts_.pid, &here, 1, &there, 1, 0);
  if (copied == static_cast<ssize_t>(bytes)) return true;
  kernel_refuses_.store(true, std::memory_order_relaxed);
  return false;
}

absl::Status Peer::AddArena(uint32_t id, SharedRegion region) {
  if (id == 0 || id >= kMaxArenas) {
    return absl::InvalidArgumentError("a soft device announced an arena of impossible number");
  }
  MappedArena& arena = arenas_[id];
  // Heard of already, on another connection.
  if (arena.data.load(std::memory_order_relaxed) != nullptr) return absl::OkStatus();
  arena.region = std::move(region);
  arena.bytes.store(arena.region.size(), std::memory_order_relaxed);
  arena.data.store(arena.region.data(), std::memory_order_release);
  return absl::OkStatus();
}

SharedRegion Peer::WithdrawArena(uint32_t id) {
  if (id == 0 || id >= kMaxArenas) return {};
  arenas_[id].data.store(nullptr, std::memory_order_seq_cst);
  return std::move(arenas_[id].region);
}

bool Peer::ProcessEnded() const {
  if (!parts_.pid_fd) return false;
  pollfd ended{.fd = parts_.pid_fd.get(), .events = POLLIN, .revents = 0};
  return poll(&ended, 1, 0) == 1;
}

}  // namespace verbena::internal::soft
