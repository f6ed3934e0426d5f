// Rnic: when memory that peers could access may be used again, and memory that peers can map.

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/coro/status_macros.h"
#include "verbena/transport/device/verbs_status.h"
#include "verbena/transport/soft/rnic.h"

namespace verbena::internal::soft {
namespace {

// A peer that runs ends a chunk within microseconds. One that does not within this time is frozen.
constexpr auto kPatience = std::chrono::seconds(2);

}  // namespace

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
