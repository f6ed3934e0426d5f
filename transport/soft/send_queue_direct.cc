// SendQueue: one-sided WRs that are executed here, in the target's memory, without its help.

#include <algorithm>

#include "verbena/transport/soft/completion_queue.h"
#include "verbena/transport/soft/direct_copy.h"
#include "verbena/transport/soft/lane.h"
#include "verbena/transport/soft/queue_pair.h"
#include "verbena/transport/soft/rnic.h"
#include "verbena/transport/soft/send_queue.h"

namespace verbena::internal::soft {
namespace {

// Behind requests that the target has not consumed yet, a WR up to this size goes through the ring
// too, which keeps the order by itself; a larger one waits for its turn to be copied here.
constexpr uint32_t kNotWorthWaiting = 4096;

}  // namespace

SendQueue::Direct SendQueue::TryDirect(uint32_t index) {
  Wqe& wqe = At(index);
  if (wqe.route == Wire::kRing || wqe.length == 0 || !qp_.rnic().direct_copies())
    return Direct::kUseRing;
  DirectCopy copy(*lane_);
  if (!copy.Possible(AccessOf(wqe, 0, wqe.length))) return Direct::kUseRing;
  uint64_t consumed = lane_->requests().released();
  // Consumed requests that nobody waits for are not harvested, so `consumed` may be old.
  if (index != done_ && At(index - 1).end > consumed) consumed = lane_->AcceptedByNow();
  if (index != done_ && At(index - 1).end > consumed) {
    if (wqe.length <= kNotWorthWaiting) return Direct::kUseRing;
    lane_->AwaitConsumed(qp_);
    return Direct::kWait;
  }
  if (direct_left_ == 0) {
    qp_.send_side().Attend(qp_);
    return Direct::kWait;
  }
  const bool atomic =
      wqe.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wqe.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
  if (!(atomic ? AtomicDirectly(copy, wqe, index) : CopyDirectly(copy, wqe, index))) {
    // The target, asked in the ordinary way, says why not.
    direct_offset_ = 0;
    wqe.route = Wire::kRing;
    return Direct::kUseRing;
  }
  if (direct_offset_ < wqe.length) {
    // On with it at the next poll, or by the engine.
    qp_.send_side().Attend(qp_);
    return Direct::kWait;
  }
  direct_offset_ = 0;
  if (wqe.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
    wqe.route = Wire::kRing;
    wqe.placed = true;
    return Direct::kUseRing;
  }
  wqe.start = wqe.end = consumed;
  wqe.state = State::kAnswered;
  if ((wqe.flags & IBV_SEND_SIGNALED) != 0) lane_->MarkReady(qp_);
  return Direct::kDone;
}

RemoteAccess SendQueue::AccessOf(const Wqe& wqe, uint64_t offset, uint64_t bytes) const {
  uint32_t access = IBV_ACCESS_REMOTE_WRITE;
  if (wqe.opcode == IBV_WR_RDMA_READ) access = IBV_ACCESS_REMOTE_READ;
  if (wqe.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wqe.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    access = IBV_ACCESS_REMOTE_ATOMIC;
  }
  return {.target_qpn = qp_.attributes().dest_qp_num,
          .source_qpn = qp_.qp_num,
          .source = qp_.rnic().address(),
          .rkey = wqe.rkey,
          .address = wqe.remote_address + offset,
          .bytes = bytes,
          .access = access};
}

bool SendQueue::CopyDirectly(DirectCopy& copy, Wqe& wqe, uint32_t index) {
  const uint32_t start = direct_offset_;
  const uint32_t end = start + std::min(direct_left_, wqe.length - start);
  const ibv_sge* sge = SgesOf(wqe, index);
  uint32_t skip = direct_offset_;
  while (direct_offset_ < end) {
    if (skip >= sge->length) {
      skip -= sge->length;
      ++sge;
      continue;
    }
    const uint32_t bytes = static_cast<uint32_t>(
        std::min<uint64_t>({kMaxChunkBytes, sge->length - skip, end - direct_offset_}));
    // NOLINTNEXTLINE(performance-no-int-to-ptr): verbs address memory by integers.
    void* local = reinterpret_cast<void*>(sge->addr + skip);
    if (!copy.Chunk(AccessOf(wqe, direct_offset_, bytes), local)) return false;
    direct_offset_ += bytes;
    skip += bytes;
  }
  direct_left_ -= end - start;
  return true;
}

bool SendQueue::AtomicDirectly(DirectCopy& copy, Wqe& wqe, uint32_t index) {
  const RemoteAccess access = AccessOf(wqe, 0, sizeof(uint64_t));
  if (access.address % sizeof(uint64_t) != 0) return false;
  uint64_t old = 0;
  const bool done = wqe.opcode == IBV_WR_ATOMIC_CMP_AND_SWP
                        ? copy.CompareSwap(access, wqe.compare_add, wqe.swap, old)
                        : copy.FetchAdd(access, wqe.compare_add, old);
  if (!done) return false;
  Scatter(wqe, index, 0, reinterpret_cast<const std::byte*>(&old), sizeof(old));
  direct_offset_ = wqe.length;
  return true;
}

}  // namespace verbena::internal::soft
