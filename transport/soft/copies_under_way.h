// CopyUnderWay: a copy that a peer was in the middle of when it lost the permission for it.
//
// Until it is over, its bytes may still land. Whoever withdrew the permission keeps the list and
// asks. Under the lock of the receive CQ when it is made, from any thread later.

#ifndef VERBENA_TRANSPORT_SOFT_COPIES_UNDER_WAY_H_
#define VERBENA_TRANSPORT_SOFT_COPIES_UNDER_WAY_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "verbena/transport/soft/lane.h"
#include "verbena/transport/soft/peer.h"

namespace verbena::soft {

class CompletionQueue;
class QueuePair;

struct CopyUnderWay {
  std::shared_ptr<Peer> peer;
  std::shared_ptr<LaneMemory> lane;
  uint64_t sequence = 0;

  bool over() const;
};

// Adds the copies of all lanes of `cq`, or of those that may lead to `qp` when that is not null; by
// any key, or by `key` alone when that is not 0. The caller has passed a full fence since it
// withdrew the permission.
void AddCopiesUnderWay(CompletionQueue& cq, const QueuePair* qp, uint32_t key,
                       std::vector<CopyUnderWay>& copies);

// Forgets those that are over. True when none is left.
bool AllOver(std::vector<CopyUnderWay>& copies);

}  // namespace verbena::soft

#endif  // VERBENA_TRANSPORT_SOFT_COPIES_UNDER_WAY_H_
