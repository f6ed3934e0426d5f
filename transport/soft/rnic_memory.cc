// Rnic: registered memory, when memory that peers could access may be used again, and memory that
// peers can map.

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/status_macros.h"
#include "verbena/transport/device/verbs_status.h"
#include "verbena/transport/soft/rnic.h"

namespace verbena::internal::soft {
namespace {

constexpr uint32_t kAccessMask = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                 IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
                                 IBV_ACCESS_MW_BIND;
// Hints, which change nothing here.
constexpr uint32_t kAccessHints = IBV_ACCESS_HUGETLB | IBV_ACCESS_RELAXED_ORDERING;

// A peer that runs ends a chunk within microseconds. One that does not within this time is frozen.
constexpr auto kPatience = std::chrono::seconds(2);

// True when every page of the range is mapped: a registration of anything else fails, as pinning
// would.
bool IsMapped(const void* address, size_t bytes) {
  constexpr uintptr_t kPage = 4096;
  constexpr size_t kChunkPages = 4096;
  static thread_local unsigned char residency[kChunkPages];
  if (bytes > UINTPTR_MAX - reinterpret_cast<uintptr_t>(address)) return false;
  uintptr_t at = reinterpret_cast<uintptr_t>(address) & ~(kPage - 1);
  const uintptr_t end = reinterpret_cast<uintptr_t>(address) + bytes;
  while (at < end) {
    const size_t chunk = std::min<size_t>(end - at, kChunkPages * kPage);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): pages are found by arithmetic.
    if (mincore(reinterpret_cast<void*>(at), chunk, residency) != 0) return false;
    at += chunk;
  }
  return true;
}

}  // namespace

absl::Status Rnic::CheckRegion(const void* address, size_t bytes, uint32_t flags) {
  const std::string what = fmt::format("ibv_reg_mr({} bytes, access {:#x})", bytes, flags);
  const bool writable_remotely =
      (flags & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) != 0;
  if ((flags & ~(kAccessMask | kAccessHints)) != 0 || bytes == 0 ||
      (writable_remotely && (flags & IBV_ACCESS_LOCAL_WRITE) == 0)) {
    return ErrnoStatus(EINVAL, what);
  }
  if ((flags & IBV_ACCESS_MW_BIND) != 0 && !capabilities_.memory_windows) {
    return ErrnoStatus(EOPNOTSUPP, what + ": this device has no memory windows");
  }
  return IsMapped(address, bytes) ? absl::OkStatus() : ErrnoStatus(EFAULT, what);
}

MemoryLocation Rnic::Locate(const void* address, size_t bytes) {
  MemoryLocation location{.address = reinterpret_cast<uint64_t>(address)};
  if (auto arena = arenas_.Find(location.address, bytes); arena != nullptr) {
    location.arena = arena->id;
    location.arena_offset = location.address - reinterpret_cast<uint64_t>(arena->region.data());
  }
  return location;
}

absl::StatusOr<ibv_mr*> Rnic::RegMr(ibv_pd* pd, void* address, size_t bytes, int access) {
  const uint32_t flags = static_cast<uint32_t>(access);
  VERBENA_RETURN_IF_ERROR(CheckRegion(address, bytes, flags));
  std::lock_guard<std::mutex> lock(mutex_);
  if (!pds_.contains(pd)) {
    return ErrnoStatus(EINVAL, "ibv_reg_mr: the PD is not an object of this device");
  }
  const std::optional<uint32_t> key =
      memory_.Register(pd->handle, Locate(address, bytes), bytes, flags & kAccessMask);
  if (!key.has_value()) return ErrnoStatus(ENOMEM, "ibv_reg_mr: all keys are in use");
  auto mr = std::make_unique<ibv_mr>();
  *mr = {.context = &context_,
         .pd = pd,
         .addr = address,
         .length = bytes,
         .handle = *key >> 8,
         .lkey = *key,
         .rkey = *key};
  ++pds_[pd]->users;
  ibv_mr* raw = mr.get();
  mrs_.emplace(raw, std::move(mr));
  return raw;
}

absl::Status Rnic::ReregMr(ibv_mr* mr, ibv_pd* pd, void* address, size_t bytes, int access) {
  const uint32_t flags = static_cast<uint32_t>(access);
  VERBENA_RETURN_IF_ERROR(CheckRegion(address, bytes, flags));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!pds_.contains(pd)) {
      return ErrnoStatus(EINVAL, "ibv_rereg_mr: the PD is not an object of this device");
    }
  }
  VERBENA_RETURN_IF_ERROR(RevokeRegion(mr, "ibv_rereg_mr"));
  std::lock_guard<std::mutex> lock(mutex_);
  memory_.Publish(mr->lkey, pd->handle, Locate(address, bytes), bytes, flags & kAccessMask);
  --pds_[mr->pd]->users;
  ++pds_[pd]->users;
  mr->pd = pd;
  mr->addr = address;
  mr->length = bytes;
  return absl::OkStatus();
}

void Rnic::OpenToPeer(QueuePair& qp) {
  const ibv_qp_attr& attributes = qp.attributes();
  const DeviceAddress& source = qp.peer_address();
  constexpr unsigned kReads = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  const unsigned denied = attributes.max_dest_rd_atomic == 0 ? kReads : 0;
  {
    std::lock_guard<std::mutex> lock(copies_mutex_);
    open_to_peers_.insert(qp.identity());
  }
  QpEntry& entry = share_->tables().QpAt(qp.qp_num);
  entry.pd.store(qp.pd_handle(), std::memory_order_relaxed);
  entry.access.store(attributes.qp_access_flags & ~denied, std::memory_order_relaxed);
  entry.source.store(attributes.dest_qp_num, std::memory_order_relaxed);
  entry.source_gid[0].store(source.gid.global.subnet_prefix, std::memory_order_relaxed);
  entry.source_gid[1].store(source.gid.global.interface_id, std::memory_order_relaxed);
  entry.source_lid.store(source.lid, std::memory_order_relaxed);
  entry.qpn.store(qp.qp_num, std::memory_order_release);
}

void Rnic::CloseToPeer(QueuePair& qp) {
  QpEntry& entry = share_->tables().QpAt(qp.qp_num);
  if (entry.qpn.load(std::memory_order_relaxed) != qp.qp_num) return;
  std::vector<CopyUnderWay> copies;
  std::lock_guard<std::mutex> lock(copies_mutex_);
  entry.qpn.store(0, std::memory_order_relaxed);
  open_to_peers_.erase(qp.identity());
  std::atomic_thread_fence(std::memory_order_seq_cst);
  AddCopiesUnderWay(qp.receive_side(), &qp, /*key=*/0, copies);
  if (copies.empty()) return;
  // Drops copies that are over and that nobody ever asked about.
  for (auto each = copies_.begin(); each != copies_.end();) {
    each = AllOver(each->second) ? copies_.erase(each) : std::next(each);
  }
  std::vector<CopyUnderWay>& left_behind = copies_[qp.identity()];
  left_behind.insert(left_behind.end(), copies.begin(), copies.end());
}

bool Rnic::Quiesced(QpIdentity qp) {
  std::lock_guard<std::mutex> lock(copies_mutex_);
  if (open_to_peers_.contains(qp)) return false;
  auto found = copies_.find(qp);
  if (found == copies_.end()) return true;
  if (!AllOver(found->second)) return false;
  copies_.erase(found);
  return true;
}

bool Rnic::AwaitCopies(std::vector<CopyUnderWay>& copies) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!AllOver(copies)) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    sched_yield();
  }
  return true;
}

absl::Status Rnic::RevokeRegion(ibv_mr* mr, const char* what) {
  std::vector<CopyUnderWay> copies;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!mrs_.contains(mr)) {
      return ErrnoStatus(EINVAL, fmt::format("{}: the MR is not an object of this device", what));
    }
    if (!windows_.RevokeRegion(mr->lkey)) {
      return ErrnoStatus(EBUSY, fmt::format("{}: memory windows are bound to the MR", what));
    }
    for (auto& [_, cq] : cqs_) {
      // Having had its lock also proves that no access of our own is still under way.
      std::lock_guard<SpinLock> cq_lock(cq->lock());
      AddCopiesUnderWay(*cq, nullptr, /*key=*/0, copies);
    }
  }
  if (!AwaitCopies(copies)) {
    return ErrnoStatus(EBUSY, fmt::format("{}: a frozen peer of {} may still be in the "
                                          "middle of a copy; it can start no other one",
                                          what, name()));
  }
  return absl::OkStatus();
}

absl::Status Rnic::DeregMr(ibv_mr* mr) {
  VERBENA_RETURN_IF_ERROR(RevokeRegion(mr, "ibv_dereg_mr"));
  std::lock_guard<std::mutex> lock(mutex_);
  memory_.Recycle(mr->lkey);
  --pds_[mr->pd]->users;
  mrs_.erase(mr);
  return absl::OkStatus();
}

absl::StatusOr<ibv_mw*> Rnic::AllocMw(ibv_pd* pd) {
  if (!capabilities_.memory_windows) {
    return ErrnoStatus(EOPNOTSUPP, "ibv_alloc_mw: this device has no memory windows");
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (!pds_.contains(pd)) {
    return ErrnoStatus(EINVAL, "ibv_alloc_mw: the PD is not an object of this device");
  }
  const std::optional<uint32_t> key = windows_.Allocate(pd->handle);
  if (!key.has_value()) return ErrnoStatus(ENOMEM, "ibv_alloc_mw: all keys are in use");
  auto mw = std::make_unique<ibv_mw>();
  *mw = {.context = &context_, .pd = pd, .rkey = *key, .handle = *key >> 8, .type = IBV_MW_TYPE_2};
  ++pds_[pd]->users;
  ibv_mw* raw = mw.get();
  mws_.emplace(raw, std::move(mw));
  return raw;
}

absl::Status Rnic::DeallocMw(ibv_mw* mw) {
  std::vector<CopyUnderWay> copies;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!mws_.contains(mw)) {
      return ErrnoStatus(EINVAL, "ibv_dealloc_mw: the MW is not an object of this device");
    }
    const MemoryWindows::Last last = windows_.Unbind(mw->handle);
    if (auto found = qps_.find(last.qpn); found != qps_.end()) {
      CompletionQueue& cq = found->second->receive_side();
      // Having had its lock also proves that no access of our own is still under way.
      std::lock_guard<SpinLock> cq_lock(cq.lock());
      // Once the QP has left service, Quiesced tells.
      if (share_->tables().QpAt(last.qpn).qpn.load(std::memory_order_relaxed) == last.qpn) {
        AddCopiesUnderWay(cq, found->second.get(), last.key, copies);
      }
    }
  }
  if (!AwaitCopies(copies)) {
    return ErrnoStatus(EBUSY, fmt::format("ibv_dealloc_mw: a frozen peer of {} may still be in the "
                                          "middle of a copy; it can start no other one",
                                          name()));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  windows_.Deallocate(mw->handle);
  --pds_[mw->pd]->users;
  mws_.erase(mw);
  return absl::OkStatus();
}

absl::StatusOr<std::byte*> Rnic::AllocateShared(size_t bytes) {
  if (bytes == 0) return absl::InvalidArgumentError("a shared arena of no bytes");
  VERBENA_ASSIGN_OR_RETURN(std::shared_ptr<const SharedArena> arena, arenas_.Allocate(bytes));
  wire_.AnnounceArena(arena);
  engine_.Wake();
  return arena->region.data();
}

absl::Status Rnic::FreeShared(std::byte* memory) {
  std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t start = reinterpret_cast<uint64_t>(memory);
  std::shared_ptr<const SharedArena> arena = arenas_.Find(start, 1);
  if (arena == nullptr || arena->region.data() != memory) {
    return absl::InvalidArgumentError("not the start of a shared arena of this device");
  }
  for (const auto& [mr, _] : mrs_) {
    const uint64_t address = reinterpret_cast<uint64_t>(mr->addr);
    if (address < start + arena->region.size() && start < address + mr->length) {
      return ErrnoStatus(EBUSY, "freeing a shared arena with registered memory");
    }
  }
  arenas_.Remove(memory);
  // In this order: a peer that hears of the number's next owner has let go of this arena.
  wire_.WithdrawArena(arena->id);
  arenas_.Recycle(arena->id);
  engine_.Wake();
  return absl::OkStatus();
}

void Rnic::WithdrawArena(Peer& peer, uint32_t id) {
  const SharedRegion region = peer.WithdrawArena(id);
  // Copies run under a CQ's lock: once each was free, the mapping can go.
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [_, cq] : cqs_) std::lock_guard<SpinLock> drained(cq->lock());
}

}  // namespace verbena::internal::soft
