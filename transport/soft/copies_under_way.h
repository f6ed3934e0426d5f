// CopyUnderWay: a copy that a peer was in the middle of when it lost the permission for it.
//
// Until the copy is over, its bytes may still land. Whoever withdrew the permission keeps a list of
// such copies, and asks over(). The list is made under the lock of the receive CQ; any thread may
// ask.

#ifndef VERBENA_TRANSPORT_SOFT_COPIES_UNDER_WAY_H_
#define VERBENA_TRANSPORT_SOFT_COPIES_UNDER_WAY_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "verbena/transport/soft/lane.h"
#include "verbena/transport/soft/peer.h"

namespace verbena::internal::soft {

class CompletionQueue;
class QueuePair;

struct CopyUnderWay {
  std::shared_ptr<Peer> peer;
  std::shared_ptr<LaneMemory> lane;
  uint64_t sequence = 0;

  bool over() const;
};

// Adds the copies that are under way in the lanes of `cq`: in all lanes, or, if `qp` is not null,
// in those that may lead to it; by any key, or, if `key` is not 0, by that one. The caller has
// passed a full fence since it withdrew the permission.
void AddCopiesUnderWay(CompletionQueue& cq, const QueuePair* qp, uint32_t key,
                       std::vector<CopyUnderWay>& copies);

// Forgets those that are over. True when none is left.
bool AllOver(std::vector<CopyUnderWay>& copies);

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_COPIES_UNDER_WAY_H_
