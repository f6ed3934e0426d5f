#include "examples/kv/group_commit.h"

#include <algorithm>

namespace kv {
namespace {

size_t BytesOf(const StoreWrite& write) {
  size_t bytes = write.key.size() + write.value.value_or("").size();
  for (const StoreRecord& record : write.records) {
    bytes += record.id.size() + std::max(record.bytes.value_or("").size(),
                                         record.bytes_if_existed.value_or("").size());
  }
  return bytes;
}

}  // namespace

GroupCommit::GroupCommit(BatchEngine& engine) : engine_(engine) {
  thread_ = std::thread([this] { RunThread(); });
}

GroupCommit::~GroupCommit() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  work_.notify_one();
  thread_.join();
}

void GroupCommit::Enter(Awaiter& awaiter) {
  std::lock_guard<std::mutex> lock(mutex_);
  awaiter.state_ = Awaiter::State::kQueued;
  queue_.push_back(&awaiter);
  // Under the mutex: once it is free, the awaiter may be resumed, and its owner destroy all this.
  work_.notify_one();
}

void GroupCommit::Leave(Awaiter& awaiter) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (awaiter.state_ == Awaiter::State::kQueued) {
    std::erase(queue_, &awaiter);
    // Nobody resumes it any more.
    awaiter.waiting_.destroy();
    return;
  }
  ended_.wait(lock, [&] { return awaiter.state_ != Awaiter::State::kInBatch; });
}

void GroupCommit::RunThread() {
  std::vector<PendingWrite*> writes;
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    work_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    TakeBatch();
    lock.unlock();
    writes.clear();
    for (Awaiter* awaiter : batch_) writes.push_back(&awaiter->pending_);
    const absl::Status status = engine_.StoreBatch(writes);
    lock.lock();
    EndBatch(status);
    lock.unlock();
    // The awaiters may be gone by now, and their handles still be resumed.
    for (const std::coroutine_handle<> waiting : waiting_) waiting.resume();
    lock.lock();
  }
}

void GroupCommit::TakeBatch() {
  batch_.clear();
  size_t bytes = 0;
  while (!queue_.empty() && batch_.size() < kMaxBatchWrites) {
    Awaiter* next = queue_.front();
    bytes += BytesOf(*next->pending_.write);
    if (!batch_.empty() && bytes > kMaxBatchBytes) break;
    queue_.pop_front();
    next->state_ = Awaiter::State::kInBatch;
    batch_.push_back(next);
  }
  batches_.fetch_add(1, std::memory_order_relaxed);
}

void GroupCommit::EndBatch(const absl::Status& status) {
  waiting_.clear();
  for (Awaiter* awaiter : batch_) {
    // A write that the engine left out did not share the batch's fate.
    absl::Status& own = awaiter->pending_.status;
    if (own.ok()) own = status;
    awaiter->state_ = Awaiter::State::kStored;
    waiting_.push_back(awaiter->waiting_);
  }
  ended_.notify_all();
}

}  // namespace kv
