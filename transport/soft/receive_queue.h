// Receive queues of the soft device: ReceiveQueue, which has posted receives, and
// SharedReceiveQueue, the ibv_srq.
//
// Used under the lock of the CQ or of the SRQ. Their capacity is fixed.

#ifndef VERBENA_TRANSPORT_SOFT_RECEIVE_QUEUE_H_
#define VERBENA_TRANSPORT_SOFT_RECEIVE_QUEUE_H_

#include <infiniband/verbs.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>

#include "verbena/transport/base/check.h"
#include "verbena/transport/soft/events.h"
#include "verbena/transport/soft/options.h"

namespace verbena::internal::soft {

// A receive taken off its queue: the memory that one message may fill.
struct Receive {
  uint64_t wr_id = 0;
  uint32_t num_sge = 0;
  ibv_sge sges[kMaxSge];
};

// ReceiveQueue: posted receives, consumed in the order in which they were posted, or the newest
// first.
//
// The storage behind a QP's receive queue and behind an SRQ, whose locks it relies on. The capacity
// is fixed: Post() returns ENOMEM beyond it, and EINVAL for more SGEs than agreed.
class ReceiveQueue {
 public:
  ReceiveQueue(uint32_t max_wr, uint32_t max_sge)
      : max_wr_(max_wr),
        max_sge_(max_sge),
        mask_(std::bit_ceil(max_wr == 0 ? 1 : max_wr) - 1),
        headers_(std::make_unique<Header[]>(mask_ + 1)),
        sges_(std::make_unique<ibv_sge[]>((size_t{mask_} + 1) * (max_sge == 0 ? 1 : max_sge))) {
    VERBENA_CHECK(max_sge <= kMaxSge) << max_sge << " pieces of a receive";
  }

  // 0 or a positive errno.
  int Post(const ibv_recv_wr& wr) {
    if (wr.num_sge < 0 || static_cast<uint32_t>(wr.num_sge) > max_sge_) return EINVAL;
    if (tail_ - head_ >= max_wr_) return ENOMEM;
    const uint32_t slot = tail_ & mask_;
    headers_[slot] = {wr.wr_id, static_cast<uint32_t>(wr.num_sge)};
    std::copy_n(wr.sg_list, wr.num_sge, &sges_[size_t{slot} * max_sge_]);
    ++tail_;
    return 0;
  }

  // False when nothing is posted.
  bool Pop(Receive& receive) {
    if (head_ == tail_) return false;
    Take(head_++, receive);
    return true;
  }
  bool PopNewest(Receive& receive) {
    if (head_ == tail_) return false;
    Take(--tail_, receive);
    return true;
  }

  void Clear() { head_ = tail_; }
  uint32_t size() const { return tail_ - head_; }
  uint32_t max_wr() const { return max_wr_; }
  uint32_t max_sge() const { return max_sge_; }

 private:
  struct Header {
    uint64_t wr_id = 0;
    uint32_t num_sge = 0;
  };

  void Take(uint32_t position, Receive& receive) const {
    const uint32_t slot = position & mask_;
    receive.wr_id = headers_[slot].wr_id;
    receive.num_sge = headers_[slot].num_sge;
    VERBENA_DCHECK(receive.num_sge <= kMaxSge) << receive.num_sge;
    std::memcpy(receive.sges, &sges_[size_t{slot} * max_sge_], sizeof(ibv_sge) * receive.num_sge);
  }

  uint32_t max_wr_;
  uint32_t max_sge_;
  uint32_t mask_;
  std::unique_ptr<Header[]> headers_;
  std::unique_ptr<ibv_sge[]> sges_;
  uint32_t head_ = 0;
  uint32_t tail_ = 0;
};

// SharedReceiveQueue: the ibv_srq of the soft device.
//
// Receives are consumed in posting order by whichever QP gets a message first, unless the user has
// asked for the newest first. The limit event is one-shot: raised when fewer receives than the
// limit are left, and armed again by ModifySrq only. Any thread, under its own lock, which is taken
// after a CQ's. Owned by the SoftObjects.
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
  [[gnu::cold, gnu::noinline]] void RaiseLimit();

  SpinLock lock_;
  ReceiveQueue queue_;
  uint32_t limit_ = 0;  // 0: not armed
  const bool raises_limit_;
  bool newest_first_ = false;
  EventQueue& events_;
  std::atomic<int> users_{0};
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_RECEIVE_QUEUE_H_
