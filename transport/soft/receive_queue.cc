#include "verbena/transport/soft/receive_queue.h"

namespace verbena::internal::soft {

SharedReceiveQueue::SharedReceiveQueue(ibv_context* device, ibv_pd* domain,
                                       const ibv_srq_init_attr& attributes, EventQueue& events,
                                       bool raises_limit)
    : ibv_srq{},
      queue_(attributes.attr.max_wr, attributes.attr.max_sge),
      raises_limit_(raises_limit),
      events_(events) {
  context = device;
  srq_context = attributes.srq_context;
  pd = domain;
}

void SharedReceiveQueue::SetLimit(uint32_t limit) {
  std::lock_guard<SpinLock> lock(lock_);
  limit_ = limit;
  if (queue_.size() < limit_) RaiseLimit();
}

ibv_srq_attr SharedReceiveQueue::Attributes() {
  std::lock_guard<SpinLock> lock(lock_);
  return {.max_wr = queue_.max_wr(), .max_sge = queue_.max_sge(), .srq_limit = limit_};
}

void SharedReceiveQueue::RaiseLimit() {
  limit_ = 0;
  if (!raises_limit_) return;
  events_.Push({.element = static_cast<ibv_srq*>(this), .type = IBV_EVENT_SRQ_LIMIT_REACHED});
}

}  // namespace verbena::internal::soft
