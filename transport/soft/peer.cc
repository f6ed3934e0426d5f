#include "verbena/transport/soft/peer.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/uio.h>

#include <cerrno>
#include <limits>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/soft/user_memory.h"

namespace verbena::internal::soft {

void Peer::Wake(CqControl& control) {
  control.doorbell.Ring([&] {
    if (parts_.doorbell) eventfd_write(parts_.doorbell.get(), 1);
  });
}

bool Peer::CanReach(const MemoryLocation& where, uint64_t bytes) const {
  if (Map(where, bytes) != nullptr) return true;
  return parts_.pid_fd && bytes >= parts_.least_by_kernel &&
         !kernel_refuses_.load(std::memory_order_relaxed);
}

std::byte* Peer::Map(const MemoryLocation& where, uint64_t bytes) const {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): verbs address memory by integers.
  if (parts_.in_process) return reinterpret_cast<std::byte*>(where.address);
  const ArenaPlace& arena = arenas_[where.arena % kMaxArenas];
  std::byte* data = arena.data.load(std::memory_order_acquire);
  // The table is ahead of what the peer says of its arenas: another one may have been there.
  if (data == nullptr || arena.id.load(std::memory_order_relaxed) != where.arena) return nullptr;
  const uint64_t size = arena.bytes.load(std::memory_order_relaxed);
  // The table is the peer's own: what it says is bounded by what we mapped.
  if (where.arena_offset > size || bytes > size - where.arena_offset) return nullptr;
  return data + where.arena_offset;
}

bool Peer::CopyByKernel(bool write, void* local, const MemoryLocation& where, uint64_t bytes) {
  // A pid may stand for another process once ours has been waited for.
  if (!parts_.pid_fd || ProcessEnded()) return false;
  const iovec here{.iov_base = local, .iov_len = bytes};
  // NOLINTNEXTLINE(performance-no-int-to-ptr): verbs address memory by integers.
  auto* const remote = reinterpret_cast<std::byte*>(where.address);
  ssize_t copied = 0;
  if (write) {
    // The kernel copies one part after the other, and each in any order: see StoreUserMemory.
    const size_t last = LastWordBytes(where.address, bytes);
    const iovec there[2] = {{.iov_base = remote, .iov_len = bytes - last},
                            {.iov_base = remote + bytes - last, .iov_len = last}};
    copied = last == bytes ? process_vm_writev(parts_.pid, &here, 1, &there[1], 1, 0)
                           : process_vm_writev(parts_.pid, &here, 1, there, 2, 0);
  } else {
    const iovec there{.iov_base = remote, .iov_len = bytes};
    copied = process_vm_readv(parts_.pid, &here, 1, &there, 1, 0);
  }
  if (copied == static_cast<ssize_t>(bytes)) return true;
  // It may refuse this memory, which is no longer mapped, and not the peer.
  if (copied < 0 && errno != EFAULT) kernel_refuses_.store(true, std::memory_order_relaxed);
  return false;
}

absl::Status Peer::AddArena(uint32_t id, SharedRegion region) {
  if (id % kMaxArenas == 0) {
    return absl::InvalidArgumentError(
        fmt::format("a soft device announced an arena of the impossible number {}", id));
  }
  ArenaPlace& arena = arenas_[id % kMaxArenas];
  if (id <= arena.newest) return absl::OkStatus();
  VERBENA_CHECK(arena.data.load(std::memory_order_relaxed) == nullptr)
      << "arena " << id << " comes where arena " << arena.newest << " is mapped";
  arena.newest = id;
  arena.region = std::move(region);
  arena.id.store(id, std::memory_order_relaxed);
  arena.bytes.store(arena.region.size(), std::memory_order_relaxed);
  arena.data.store(arena.region.data(), std::memory_order_release);
  return absl::OkStatus();
}

SharedRegion Peer::WithdrawArena(uint32_t id) {
  ArenaPlace& arena = arenas_[id % kMaxArenas];
  if (id < arena.newest) return {};
  arena.newest = id;
  arena.data.store(nullptr, std::memory_order_seq_cst);
  return std::move(arena.region);
}

bool Peer::ProcessEnded() const {
  if (!parts_.pid_fd) return false;
  pollfd ended{.fd = parts_.pid_fd.get(), .events = POLLIN, .revents = 0};
  return poll(&ended, 1, 0) == 1;
}

Arenas::Arenas(bool shared) : shared_(shared) {
  for (uint32_t id = 1; id < kMaxArenas; ++id) free_ids_.push_back(id);
}

absl::StatusOr<std::shared_ptr<const SharedArena>> Arenas::Allocate(size_t bytes) {
  absl::StatusOr<SharedRegion> region = SharedRegion::CreateLarge("verbena-arena", bytes);
  if (!region.ok() && !shared_) region = SharedRegion::Anonymous(bytes);
  VERBENA_RETURN_IF_ERROR(region.status());
  std::lock_guard<std::mutex> lock(mutex_);
  if (free_ids_.empty()) {
    return absl::ResourceExhaustedError(
        fmt::format("a soft device has at most {} shared arenas", kMaxArenas - 1));
  }
  auto arena = std::make_shared<SharedArena>(SharedArena{free_ids_.front(), *std::move(region)});
  free_ids_.pop_front();
  by_address_.emplace(reinterpret_cast<uint64_t>(arena->region.data()), arena);
  return arena;
}

std::shared_ptr<const SharedArena> Arenas::Remove(const std::byte* memory) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = by_address_.find(reinterpret_cast<uint64_t>(memory));
  if (found == by_address_.end()) return nullptr;
  std::shared_ptr<const SharedArena> arena = std::move(found->second);
  by_address_.erase(found);
  constexpr uint32_t kLast = std::numeric_limits<uint32_t>::max() - kMaxArenas;
  if (arena->id <= kLast) free_ids_.push_back(arena->id + kMaxArenas);
  return arena;
}

std::shared_ptr<const SharedArena> Arenas::Find(uint64_t address, uint64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto after = by_address_.upper_bound(address);
  if (after == by_address_.begin()) return nullptr;
  const auto& [start, arena] = *std::prev(after);
  const uint64_t offset = address - start;
  const uint64_t size = arena->region.size();
  return offset <= size && bytes <= size - offset ? arena : nullptr;
}

std::vector<std::shared_ptr<const SharedArena>> Arenas::All() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::shared_ptr<const SharedArena>> all;
  all.reserve(by_address_.size());
  for (const auto& [_, arena] : by_address_) all.push_back(arena);
  return all;
}

}  // namespace verbena::internal::soft
