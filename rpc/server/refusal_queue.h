// RefusalQueue: refusals of one link's calls that wait for room, in order.
//
// Each entry is small, since an overloaded server may have many to send: the rest of the response
// follows from the reason. The queue keeps no memory while it is empty. Part of a ServerSession.

#ifndef VERBENA_RPC_SERVER_REFUSAL_QUEUE_H_
#define VERBENA_RPC_SERVER_REFUSAL_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "verbena/rpc/call/call_id.h"
#include "verbena/rpc/server/refusal_reason.h"

namespace verbena::internal {

struct Refusal {
  Refusal(CallId id, RefusalReason its_reason)
      : generation(id.generation), slot(static_cast<uint16_t>(id.slot)), reason(its_reason) {
    static_assert(kMaxCallsInFlight <= 1u << 16);
  }

  uint32_t generation;
  uint16_t slot;
  RefusalReason reason;
};

class RefusalQueue {
 public:
  bool empty() const { return refusals_.empty(); }
  size_t size() const { return refusals_.size() - sent_; }
  // Refusals that were ever queued, and those that left again.
  uint64_t queued() const { return left_ + size(); }
  uint64_t left() const { return left_; }
  // Precondition of both: not empty().
  const Refusal& front() const { return refusals_[sent_]; }
  void PopFront() {
    ++left_;
    if (++sent_ == refusals_.size()) Free();
  }
  void PushBack(const Refusal& refusal) {
    // Each refusal moves at most once for each that has left.
    if (refusals_.size() == refusals_.capacity() && 2 * sent_ > refusals_.size()) {
      refusals_.erase(refusals_.begin(), refusals_.begin() + static_cast<ptrdiff_t>(sent_));
      sent_ = 0;
    }
    refusals_.push_back(refusal);
  }
  void Clear() {
    left_ += size();
    Free();
  }

 private:
  void Free() {
    std::vector<Refusal>().swap(refusals_);
    sent_ = 0;
  }

  std::vector<Refusal> refusals_;
  size_t sent_ = 0;  // refusals at the beginning of refusals_ that have left
  uint64_t left_ = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_REFUSAL_QUEUE_H_
