#include "verbena/transport/soft/copies_under_way.h"

#include "verbena/transport/soft/completion_queue.h"
#include "verbena/transport/soft/queue_pair.h"

namespace verbena::internal::soft {

bool CopyUnderWay::over() const {
  return lane->header().copying.load(std::memory_order_acquire) != sequence || peer->ProcessEnded();
}

void AddCopiesUnderWay(CompletionQueue& cq, const QueuePair* qp, uint32_t key,
                       std::vector<CopyUnderWay>& copies) {
  cq.in_lanes().ForEach([&](InLane& lane) {
    if (qp != nullptr && !qp->IsConnectedTo(lane.peer().address(), qp->attributes().dest_qp_num)) {
      return;
    }
    const LaneHeader& header = lane.header();
    const uint64_t sequence = header.copying.load(std::memory_order_acquire);
    if (sequence % 2 == 0) return;
    // A key that is read while the next copy begins already, which finds the permission withdrawn,
    // only makes us list a copy that is over.
    if (key != 0 && header.copying_key.load(std::memory_order_acquire) != key &&
        header.copying.load(std::memory_order_relaxed) == sequence) {
      return;
    }
    copies.push_back({lane.shared_peer(), lane.memory(), sequence});
  });
}

bool AllOver(std::vector<CopyUnderWay>& copies) {
  std::erase_if(copies, [](const CopyUnderWay& copy) { return copy.over(); });
  return copies.empty();
}

}  // namespace verbena::internal::soft
