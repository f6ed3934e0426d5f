// TwoLocks: holds the locks of both CQs of a QP, in the order that keeps threads from waiting for
// one another; one lock when they are the same CQ.

#ifndef VERBENA_TRANSPORT_SOFT_TWO_LOCKS_H_
#define VERBENA_TRANSPORT_SOFT_TWO_LOCKS_H_

#include <utility>

#include "verbena/transport/soft/completion_queue.h"
#include "verbena/transport/soft/queue_pair.h"

namespace verbena::internal::soft {

class TwoLocks {
 public:
  explicit TwoLocks(QueuePair& qp) : first_(&qp.send_side()), second_(&qp.receive_side()) {
    if (first_ > second_) std::swap(first_, second_);
    first_->lock().lock();
    if (second_ != first_) second_->lock().lock();
  }
  TwoLocks(const TwoLocks&) = delete;
  TwoLocks& operator=(const TwoLocks&) = delete;
  ~TwoLocks() {
    if (second_ != first_) second_->lock().unlock();
    first_->lock().unlock();
  }

 private:
  CompletionQueue* first_;
  CompletionQueue* second_;
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_TWO_LOCKS_H_
