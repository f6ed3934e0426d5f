// CopyingPeer: catches the other process in the middle of a one-sided copy into our memory.

#ifndef VERBENA_TESTS_TRANSPORT_SOFT_COPYING_PEER_H_
#define VERBENA_TESTS_TRANSPORT_SOFT_COPYING_PEER_H_

#include <sched.h>

#include <mutex>
#include <vector>

#include "tests/transport/soft/qp_end.h"
#include "tests/transport/soft/two_processes.h"
#include "verbena/transport/soft/completion_queue.h"
#include "verbena/transport/soft/copies_under_way.h"

namespace verbena::internal::soft {

// Whether a peer is inside a copy, as the device sees it.
inline bool IsCopying(QpEnd& endpoint) {
  auto& cq = *static_cast<CompletionQueue*>(endpoint.cq());
  std::lock_guard<SpinLock> lock(cq.lock());
  std::vector<CopyUnderWay> copies;
  cq.in_lanes().AddCopiesUnderWay(/*peer=*/nullptr, /*key=*/0, copies);
  return !copies.empty();
}

// Returns once `child`, which copies over and over, is stopped inside a copy.
inline void FreezeInsideACopy(Child& child, QpEnd& endpoint) {
  while (true) {
    while (!IsCopying(endpoint)) sched_yield();
    child.Stop();
    if (IsCopying(endpoint)) return;
    child.Continue();
  }
}

}  // namespace verbena::internal::soft

#endif  // VERBENA_TESTS_TRANSPORT_SOFT_COPYING_PEER_H_
