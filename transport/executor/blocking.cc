#include "verbena/transport/executor/blocking.h"

#include <pthread.h>

#include <system_error>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/executor/options.h"

namespace verbena::internal {

// Brings the end of a callable home. On the heap, because the waiting coroutine may be gone by the
// time the scheduler runs it.
class ReturnMessage final : public InboxItem {
 public:
  explicit ReturnMessage(BlockingCall& call) : call_(&call) {}

  // The rest is for the home's thread.
  void Forget() { call_ = nullptr; }
  void Run() override {
    BlockingCall* call = call_;
    VERBENA_DCHECK(call == nullptr || call->message_ == this) << "a callable came home twice";
    delete this;
    if (call == nullptr) return;
    call->message_ = nullptr;
    call->OnReturned();
  }

 private:
  BlockingCall* call_;
};

}  // namespace verbena::internal

namespace verbena {

using internal::BlockingCall;
using internal::ReturnMessage;

BlockingPool::BlockingPool(int max_threads) : max_threads_(max_threads) {
  VERBENA_CHECK(max_threads >= 1) << "max_threads " << max_threads;
}

BlockingPool::~BlockingPool() {
  {
    std::lock_guard lock(mutex_);
    VERBENA_CHECK(turns_.empty()) << "callables wait in a pool that is destroyed: " << queue_size_
                                  << "; destroy the executors that use it first";
    stopping_ = true;
    work_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
  VERBENA_CHECK(queue_size_ == 0 && static_cast<size_t>(idle_) == threads_.size())
      << queue_size_ << " callables are queued, and " << idle_ << " of " << threads_.size()
      << " threads are idle";
}

BlockingPool& BlockingPool::Default() {
  static BlockingPool& pool = *new BlockingPool;
  return pool;
}

void BlockingPool::Submit(BlockingCall& call, Scheduler& home, uint64_t client) {
  std::lock_guard lock(mutex_);
  VERBENA_CHECK(call.state_ == BlockingCall::State::kIdle) << "state " << call.state_;
  StartThreadIfNeeded();
  call.home_ = &home;
  call.message_ = new ReturnMessage(call);
  call.state_ = BlockingCall::State::kQueued;
  call.client_ = client;
  const auto [place, is_new] = flows_.try_emplace(client);
  place->second.calls.PushBack(call);
  if (is_new) turns_.PushBack(place->second);
  ++queue_size_;
  work_.notify_one();
}

bool BlockingPool::TakeBack(BlockingCall& call) {
  std::lock_guard lock(mutex_);
  if (call.state_ != BlockingCall::State::kQueued) return false;
  VERBENA_CHECK(call.linked() && queue_size_ > 0) << queue_size_ << " callables are queued";
  call.Unlink();
  --queue_size_;
  const auto place = flows_.find(call.client_);
  if (place->second.calls.empty()) flows_.erase(place);
  call.state_ = BlockingCall::State::kIdle;
  delete std::exchange(call.message_, nullptr);
  return true;
}

void BlockingPool::Abandon(BlockingCall& call) {
  if (call.message_ == nullptr || TakeBack(call)) return;
  {
    std::unique_lock lock(mutex_);
    returned_.wait(lock, [&call] { return call.state_ == BlockingCall::State::kReturned; });
  }
  // The message is in the scheduler's inbox, which deletes it.
  std::exchange(call.message_, nullptr)->Forget();
}

int BlockingPool::threads() const {
  std::lock_guard lock(mutex_);
  return static_cast<int>(threads_.size());
}

size_t BlockingPool::queued() const {
  std::lock_guard lock(mutex_);
  return queue_size_;
}

void BlockingPool::StartThreadIfNeeded() {
  const int count = static_cast<int>(threads_.size());
  if (static_cast<size_t>(idle_) > queue_size_ || count >= max_threads_) return;
  try {
    threads_.emplace_back([this, count] {
      pthread_setname_np(pthread_self(), fmt::format("verbena-block{}", count).c_str());
      RunThread();
    });
    ++idle_;
  } catch (const std::system_error&) {
    if (threads_.empty()) throw;
  }
}

BlockingCall& BlockingPool::TakeNext() {
  Flow& flow = *turns_.PopFront();
  BlockingCall& call = *flow.calls.PopFront();
  if (flow.calls.empty()) {
    flows_.erase(call.client_);
  } else {
    turns_.PushBack(flow);
  }
  return call;
}

void BlockingPool::RunThread() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [this] { return stopping_ || !turns_.empty(); });
    if (turns_.empty()) return;
    BlockingCall& call = TakeNext();
    VERBENA_CHECK(call.state_ == BlockingCall::State::kQueued && queue_size_ > 0 && idle_ > 0)
        << "state " << call.state_ << ", " << queue_size_ << " callables are queued, " << idle_
        << " threads are idle";
    --queue_size_;
    --idle_;
    call.state_ = BlockingCall::State::kRunning;
    ReturnMessage& message = *call.message_;
    lock.unlock();
    call.RunCallable();
    lock.lock();
    ++idle_;
    call.state_ = BlockingCall::State::kReturned;
    // Under the lock, so that Abandon() returns only after the message is in the inbox. The call
    // may be gone from here on.
    call.home_->Post(message);
    returned_.notify_all();
  }
}

}  // namespace verbena

namespace verbena::internal {

BlockingPool& BlockingPoolOf(Scheduler& scheduler) {
  const auto* executor = dynamic_cast<const Executor*>(&scheduler);
  BlockingPool* pool = executor == nullptr ? nullptr : executor->options().blocking_pool;
  return pool == nullptr ? BlockingPool::Default() : *pool;
}

}  // namespace verbena::internal
