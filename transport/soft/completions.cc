#include "verbena/transport/soft/completions.h"

#include <algorithm>
#include <mutex>
#include <utility>

namespace verbena::internal::soft {

void CompletionWriter::Finish() {
  using Armed = Completions::Armed;
  if (!added_ || cq_.armed_ == Armed::kNo) return;
  if (cq_.armed_ == Armed::kSolicited && !added_solicited_) return;
  cq_.armed_ = Armed::kNo;
  if (cq_.channel != nullptr) {
    static_cast<CompletionChannel*>(cq_.channel)
        ->events.Push({.element = static_cast<ibv_cq*>(&cq_)});
  }
}

Completions::Completions(SoftState& device, uint64_t id, int entries, void* user_context,
                         CompletionChannel* events, CqControl& control, InLanes& in_lanes)
    : ibv_cq{},
      device_(device),
      control_(control),
      id_(id),
      in_lanes_(in_lanes),
      queue_(std::make_unique<Queued[]>(entries)) {
  context = &device.context();
  channel = events;
  cq_context = user_context;
  handle = static_cast<uint32_t>(id % kMaxCompletionQueues);
  cqe = entries;
}

bool Completions::Resize(int entries) {
  auto resized = std::make_unique<Queued[]>(entries);
  std::lock_guard<SpinLock> lock(lock_);
  const uint64_t waiting = queue_tail_ - queue_head_;
  if (waiting > static_cast<uint64_t>(entries)) return false;
  for (uint64_t i = 0; i < waiting; ++i) {
    resized[i] = queue_[(queue_head_ + i) % static_cast<uint64_t>(cqe)];
  }
  queue_ = std::move(resized);
  queue_head_ = 0;
  queue_tail_ = waiting;
  cqe = entries;
  return true;
}

int Completions::TakeQueued(int room, ibv_wc* out) {
  int count = 0;
  while (count < room && queue_head_ != queue_tail_) {
    Queued& queued = queue_[queue_head_++ % static_cast<uint64_t>(cqe)];
    out[count++] = queued.wc;
    if (queued.released != nullptr) *queued.released = queued.value;
  }
  return count;
}

ibv_wc& Completions::Push(uint32_t* released, uint32_t value) {
  if (queue_tail_ - queue_head_ == static_cast<uint64_t>(cqe)) {
    Overrun();
    return discarded_;
  }
  Queued& queued = queue_[queue_tail_++ % static_cast<uint64_t>(cqe)];
  queued.released = released;
  queued.value = value;
  return queued.wc;
}

void Completions::IgnoreOverrun() {
  std::lock_guard<SpinLock> lock(lock_);
  ignores_overrun_ = true;
}

void Completions::Overrun() {
  if (overrun_ || ignores_overrun_) return;
  overrun_ = true;
  device_.async_events().Push({.element = static_cast<ibv_cq*>(this), .type = IBV_EVENT_CQ_ERR});
  device_.ReportOverrun();
}

void Completions::Attend(QueuePair& qp) {
  {
    std::lock_guard<SpinLock> lock(attention_lock_);
    if (std::find(attended_.begin(), attended_.end(), &qp) == attended_.end()) {
      attended_.push_back(&qp);
    }
    attention_.store(true, std::memory_order_relaxed);
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (unpolled()) WakeEngine();
}

void Completions::CancelAttention(QueuePair& qp) {
  std::lock_guard<SpinLock> lock(attention_lock_);
  std::erase(attended_, &qp);
}

void Completions::TakeAttended(std::vector<QueuePair*>& qps) {
  std::lock_guard<SpinLock> lock(attention_lock_);
  attention_.store(false, std::memory_order_relaxed);
  qps.swap(attended_);
}

bool Completions::AttendFirst(const QueuePair& qp) {
  std::lock_guard<SpinLock> lock(attention_lock_);
  const auto found = std::find(attended_.begin(), attended_.end(), &qp);
  if (found == attended_.end()) return false;
  std::rotate(attended_.begin(), found, attended_.end());
  return true;
}

void Completions::ForgetCompletions(uint32_t qpn, bool drop) {
  const uint64_t capacity = static_cast<uint64_t>(cqe);
  uint64_t kept = queue_head_;
  for (uint64_t i = queue_head_; i != queue_tail_; ++i) {
    Queued& queued = queue_[i % capacity];
    if (queued.wc.qp_num == qpn) {
      if (drop) continue;
      queued.released = nullptr;
    }
    queue_[kept++ % capacity] = queued;
  }
  queue_tail_ = kept;
}

}  // namespace verbena::internal::soft
