// SharedReceiveQueue: the ibv_srq of the soft device.
//
// Receives are consumed in posting order by whichever QP gets a message first, unless the user has
// asked for the newest first. The limit event is one-shot: raised when fewer receives than the
// limit are left, and armed again by ModifySrq only. Any thread, under its own lock, which is taken
// after a CQ's. Owned by the Rnic.

#ifndef VERBENA_TRANSPORT_SOFT_SHARED_RECEIVE_QUEUE_H_
#define VERBENA_TRANSPORT_SOFT_SHARED_RECEIVE_QUEUE_H_

#include <infiniband/verbs.h>

#include <atomic>
#include <mutex>

#include "verbena/transport/soft/event_queue.h"
#include "verbena/transport/soft/receive_queue.h"
#include "verbena/transport/soft/spin_lock.h"

namespace verbena::internal::soft {

class SharedReceiveQueue : public ibv_srq {
 public:
  // `raises_limit`: whether the device has the limit event.
  SharedReceiveQueue(ibv_context* device, ibv_pd* domain, const ibv_srq_init_attr& attributes,
                     EventQueue& events, bool raises_limit);

  int Post(ibv_recv_wr* wr, ibv_recv_wr** bad_wr) {
    std::lock_guard<SpinLock> lock(lock_);
    for (; wr != nullptr; wr = wr->next) {
      if (int error = queue_.Post(*wr); error != 0) {
        *bad_wr = wr;
        return error;
      }
    }
    return 0;
  }

  bool Pop(Receive& receive) {
    std::lock_guard<SpinLock> lock(lock_);
    if (!(newest_first_ ? queue_.PopNewest(receive) : queue_.Pop(receive))) return false;
    if (queue_.size() < limit_) RaiseLimit();
    return true;
  }

  // Before anything is posted.
  void TakeNewestFirst() { newest_first_ = true; }

  void SetLimit(uint32_t limit);
  ibv_srq_attr Attributes();

  // QPs that take their receives here.
  std::atomic<int>& users() { return users_; }

 private:
  void RaiseLimit();

  SpinLock lock_;
  ReceiveQueue queue_;
  uint32_t limit_ = 0;  // 0: not armed
  const bool raises_limit_;
  bool newest_first_ = false;
  EventQueue& events_;
  std::atomic<int> users_{0};
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_SHARED_RECEIVE_QUEUE_H_
