// BlockingPool: a few threads that run callables which block, so that executors need not.
//
// Callers use RunBlocking() (run_blocking.h). A Runtime owns one pool for all its executors; an
// executor without a pool in its options uses Default(). Threads start with the first callables and
// stay until the pool is destroyed, which must be after the executors that use it. Callables start
// in the order of their calls, at most max_threads at once. The queue holds nothing but suspended
// coroutines, so whoever bounds those bounds the queue. Usable from any thread.

#ifndef VERBENA_TRANSPORT_EXECUTOR_BLOCKING_POOL_H_
#define VERBENA_TRANSPORT_EXECUTOR_BLOCKING_POOL_H_

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <thread>
#include <vector>

#include "verbena/transport/base/intrusive_list.h"
#include "verbena/transport/coro/scheduler.h"

namespace verbena {

class BlockingPool;

namespace internal {

class ReturnMessage;

// One callable on its way through a pool. Lives in the frame of the coroutine that waits for it.
class BlockingCall : public IntrusiveNode<BlockingCall> {
 public:
  BlockingCall() = default;
  BlockingCall(const BlockingCall&) = delete;
  BlockingCall& operator=(const BlockingCall&) = delete;
  virtual ~BlockingCall() = default;

 private:
  friend class verbena::BlockingPool;
  friend class ReturnMessage;

  enum class State { kIdle, kQueued, kRunning, kReturned };

  // On a thread of the pool.
  virtual void RunCallable() noexcept = 0;
  // On the scheduler's thread that the call was made on.
  virtual void OnReturned() = 0;

  State state_ = State::kIdle;        // under the pool's mutex
  ReturnMessage* message_ = nullptr;  // set on the scheduler's thread; null when idle
  Scheduler* home_ = nullptr;
};

}  // namespace internal

class BlockingPool {
 public:
  static constexpr int kDefaultThreads = 8;  // (start)

  // `max_threads` is at least 1.
  explicit BlockingPool(int max_threads = kDefaultThreads);
  BlockingPool(const BlockingPool&) = delete;
  BlockingPool& operator=(const BlockingPool&) = delete;
  // No callable is queued or running.
  ~BlockingPool();

  // The process's own pool, for executors that have none. Never destroyed.
  static BlockingPool& Default();

  // For RunBlocking. On `home`'s thread: queues `call`, which hears OnReturned() there after its
  // callable has run. Throws std::system_error if the pool has no thread and cannot start one.
  void Submit(internal::BlockingCall& call, Scheduler& home);
  // On the same thread: takes `call` back if its callable has not begun, and returns whether it
  // did.
  bool TakeBack(internal::BlockingCall& call);
  // On the same thread: takes `call` back, or blocks until its callable has run. OnReturned() is
  // not called.
  void Abandon(internal::BlockingCall& call);

  // From any thread.
  int threads() const;
  size_t queued() const;

 private:
  void StartThreadIfNeeded();
  void RunThread();

  const int max_threads_;
  mutable std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable returned_;
  bool stopping_ = false;
  int idle_ = 0;
  size_t queue_size_ = 0;
  internal::IntrusiveList<internal::BlockingCall> queue_;
  std::vector<std::thread> threads_;
};

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_EXECUTOR_BLOCKING_POOL_H_
