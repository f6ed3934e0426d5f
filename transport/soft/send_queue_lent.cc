// SendQueue: payloads of WRITEs and READs that a TCP connection carries past the rings.

#include <algorithm>
#include <cstring>

#include "verbena/transport/soft/completion_queue.h"
#include "verbena/transport/soft/lane.h"
#include "verbena/transport/soft/lane_pair.h"
#include "verbena/transport/soft/queue_pair.h"
#include "verbena/transport/soft/send_queue.h"

namespace verbena::internal::soft {

// Inline data are the caller's again when posting returns, and are read back from the ring after a
// refusal.
bool SendQueue::CanLend(const Wqe& wqe) const {
  const bool write = wqe.opcode == IBV_WR_RDMA_WRITE || wqe.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  return write && (wqe.flags & IBV_SEND_INLINE) == 0 && lane_->pair() != nullptr &&
         lane_->pair()->CanLend();
}

// The fragment from launch_offset_ on. Announce() comes before the lock is released.
void SendQueue::Lend(std::byte* to, Wqe& wqe, uint32_t index, uint32_t bytes) {
  LentPayloads& lent = lane_->pair()->lent_requests();
  const uint64_t position = lane_->requests().position();
  const auto* const payload = lane_->requests().PayloadAt(position);
  if (lent.full()) lane_->Announce();
  const ibv_sge* sge = SgesOf(wqe, index);
  uint32_t skip = launch_offset_;
  for (; bytes != 0; ++sge) {
    if (skip >= sge->length) {
      skip -= sge->length;
      continue;
    }
    const uint32_t part = std::min(bytes, sge->length - skip);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): verbs address memory by integers.
    const auto* const from = reinterpret_cast<const void*>(sge->addr + skip);
    if (part >= LentPayloads::kLeastBytes && !lent.full()) {
      lent.Add(position, static_cast<uint32_t>(to - payload), from, part);
    } else {
      std::memcpy(to, from, part);
      qp_.send_side().copied().Add(CopyWay::kRing, part);
    }
    skip = 0;
    to += part;
    bytes -= part;
  }
}

size_t SendQueue::FindPlace(const MessageHeader& answer, uint32_t offset, uint32_t from,
                            uint32_t bytes, std::span<iovec> parts) {
  const uint32_t index = AwaitedAnswer();
  if (index == launched_) return 0;
  Wqe& wqe = At(index);
  const bool last = (answer.flags & kLast) != 0;
  if (wqe.opcode != IBV_WR_RDMA_READ || wqe.first_psn != answer.psn || offset > wqe.length ||
      answer.length > wqe.length - offset || last != (answer.length == wqe.length - offset) ||
      !LocalMemoryAllowed(wqe, index)) {
    return 0;
  }
  const ibv_sge* sge = SgesOf(wqe, index);
  uint32_t skip = offset + from;
  size_t count = 0;
  for (; bytes != 0 && count != parts.size(); ++sge) {
    if (skip >= sge->length) {
      skip -= sge->length;
      continue;
    }
    const uint32_t part = std::min(bytes, sge->length - skip);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): verbs address memory by integers.
    parts[count++] = {.iov_base = reinterpret_cast<void*>(sge->addr + skip), .iov_len = part};
    skip = 0;
    bytes -= part;
  }
  return count;
}

}  // namespace verbena::internal::soft
