// BlockingPool: a few threads that run callables which block, so that executors need not.
//
// Callers use RunBlocking(). A Runtime owns one pool for all its executors; an
// executor without a pool in its options uses Default(). Threads start with the first callables and
// stay until the pool is destroyed, which must be after the executors that use it. At most
// max_threads callables run at once. Clients (CancelScope::client()) take turns, each with its
// oldest callable that waits; those without a client have one turn together. So a client with
// thousands of slow callables costs each other client one turn of the threads. A client is what it
// says it is, and another one on each executor: a host that claims many runtime ids, or has links
// to many executors, has as many turns, and only the bounds of its calls hold it. The queue holds
// calls of suspended coroutines, and has no other bound than their number. Usable from any thread.
//
//   precondition                                how it is checked   test
//   max_threads is at least 1                   a check aborts      run_blocking_test
//   destroyed after the executors that use it   not checked

#ifndef VERBENA_TRANSPORT_EXECUTOR_BLOCKING_H_
#define VERBENA_TRANSPORT_EXECUTOR_BLOCKING_H_

#include <concepts>
#include <condition_variable>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "verbena/transport/base/export.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/options.h"

namespace verbena {

class BlockingPool;

}  // namespace verbena

namespace verbena::internal {

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
  // On the thread of the scheduler from which the call was made.
  virtual void OnReturned() = 0;

  State state_ = State::kIdle;        // under the pool's mutex
  ReturnMessage* message_ = nullptr;  // set on the scheduler's thread; null when idle
  Scheduler* home_ = nullptr;
  uint64_t client_ = 0;
};

}  // namespace verbena::internal

namespace verbena {

class VERBENA_EXPORT BlockingPool {
 public:
  // `max_threads` is at least 1.
  explicit BlockingPool(int max_threads = internal::kDefaultBlockingThreads);
  BlockingPool(const BlockingPool&) = delete;
  BlockingPool& operator=(const BlockingPool&) = delete;
  // Precondition: no callable is queued or running.
  ~BlockingPool();

  // The process's own pool, for executors that have none. Never destroyed.
  static BlockingPool& Default();

  // For RunBlocking. On `home`'s thread: queues `call` behind those of `client`. It hears
  // OnReturned() there after its callable has run. Throws std::system_error if the pool has no
  // thread and cannot start one.
  void Submit(internal::BlockingCall& call, Scheduler& home, uint64_t client);
  // On the same thread. If the callable has not begun, takes `call` back and returns true.
  bool TakeBack(internal::BlockingCall& call);
  // On the same thread. Takes `call` back, or blocks until its callable has run. OnReturned() is
  // not called.
  void Abandon(internal::BlockingCall& call);

  // From any thread.
  int threads() const;
  size_t queued() const;

 private:
  // The callables of one client that wait; at least one.
  struct Flow : internal::IntrusiveNode<Flow> {
    internal::IntrusiveList<internal::BlockingCall> calls;
  };

  void StartThreadIfNeeded();
  void RunThread();
  internal::BlockingCall& TakeNext();

  const int max_threads_;
  mutable std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable returned_;
  bool stopping_ = false;
  int idle_ = 0;
  size_t queue_size_ = 0;
  internal::IntrusiveList<Flow> turns_;
  std::unordered_map<uint64_t, Flow> flows_;  // by client
  std::vector<std::thread> threads_;
};

}  // namespace verbena

namespace verbena::internal {

// RunBlocking: runs a callable that blocks on a thread of a pool, and resumes here with its result.
//
// An executor that blocks serves nobody: after three to four and a half times
// LinkLimits::ping_interval (6 to 9 s by default), peers with calls outstanding close its links.
// Whatever may block (unlink, rename, truncate, a mutex held for long, a library without an
// asynchronous interface) belongs here. The callable may use the caller's variables by reference:
// they live until it has ended. It runs on another thread, so it must not touch what belongs to the
// executor, and must not wait for this executor (BlockOn).
//
// A callable that has begun runs to its end, and the await waits for it. If the awaiting coroutine
// is cancelled before the callable began, the callable never runs and the await returns CANCELLED
// (or DEADLINE_EXCEEDED), provided that the callable's result can hold a Status; otherwise the
// cancellation is ignored. Destroying the awaiting coroutine takes the callable back if it has not
// begun, and otherwise blocks until it has ended. An exception that it throws comes out of the
// co_await. If no thread can be started the result is RESOURCE_EXHAUSTED, or std::system_error is
// thrown if the result cannot hold a Status.
//
// The pool is ExecutorOptions::blocking_pool (a Runtime gives its own to its executors), or
// BlockingPool::Default().
//
//   absl::Status removed = co_await RunBlocking([&] {
//     return unlink(path.c_str()) == 0 ? absl::OkStatus() : absl::ErrnoToStatus(errno, path);
//   });

// The pool of the executor that `scheduler` is, or the process's.
VERBENA_EXPORT BlockingPool& BlockingPoolOf(Scheduler& scheduler);

// The await of RunBlocking. `callable` is a variable of the awaiting coroutine.
template <typename Callable>
class BlockingAwaiter final : private BlockingCall, private CancelNode {
 public:
  using Result = std::invoke_result_t<Callable&>;
  static constexpr bool kHoldsStatus = std::convertible_to<absl::Status, Result>;

  // On a thread of `pool`; null: of the executor's.
  explicit BlockingAwaiter(Callable& callable, BlockingPool* pool = nullptr)
      : callable_(callable), chosen_(pool) {}
  ~BlockingAwaiter() override {
    if (pool_ != nullptr) pool_->Abandon(*this);
  }

  bool await_ready() const noexcept { return false; }
  template <typename Promise>
    requires std::derived_from<Promise, PromiseBase>
  bool await_suspend(std::coroutine_handle<Promise> coroutine) {
    promise_ = &coroutine.promise();
    CancelScope* cancel = kHoldsStatus ? promise_->cancel : nullptr;
    if (cancel != nullptr && cancel->requested()) {
      refusal_ = cancel->status();
      return false;
    }
    BlockingPool& pool = chosen_ != nullptr ? *chosen_ : BlockingPoolOf(*promise_->scheduler);
    try {
      const CancelScope* const scope = promise_->cancel;
      pool.Submit(*this, *promise_->scheduler, scope == nullptr ? 0 : scope->client());
    } catch (const std::system_error& error) {
      if constexpr (!kHoldsStatus) throw;
      refusal_ =
          absl::ResourceExhaustedError(std::string("a thread for RunBlocking: ") + error.what());
      return false;
    }
    pool_ = &pool;
    if (cancel != nullptr) cancel->Add(*this);
    return true;
  }
  Result await_resume() {
    if (exception_) std::rethrow_exception(std::exchange(exception_, nullptr));
    if constexpr (kHoldsStatus) {
      VERBENA_RETURN_IF_ERROR(refusal_);
    }
    if constexpr (!std::is_void_v<Result>) return *std::move(result_);
  }

 private:
  struct Nothing {};

  void RunCallable() noexcept override {
    try {
      if constexpr (std::is_void_v<Result>) {
        callable_();
      } else {
        result_.emplace(callable_());
      }
    } catch (...) {
      exception_ = std::current_exception();
    }
  }

  void OnReturned() override {
    CancelNode::Unlink();
    promise_->scheduler->Ready(*promise_);
  }

  void OnCancel(absl::StatusCode reason) override {
    if (!pool_->TakeBack(*this)) return;
    refusal_ = CancelStatus(reason);
    promise_->scheduler->Ready(*promise_);
  }

  Callable& callable_;
  BlockingPool* const chosen_;
  BlockingPool* pool_ = nullptr;  // null until the callable was submitted
  PromiseBase* promise_ = nullptr;
  absl::Status refusal_;
  std::optional<std::conditional_t<std::is_void_v<Result>, Nothing, Result>> result_;
  std::exception_ptr exception_;
};

// RunBlocking() on a thread of `pool`, which outlives the await.
template <typename Callable>
  requires std::invocable<Callable&>
Task<std::invoke_result_t<Callable&>> RunBlockingOn(BlockingPool& pool, Callable callable) {
  co_return co_await BlockingAwaiter<Callable>(callable, &pool);
}

}  // namespace verbena::internal

namespace verbena {

template <typename Callable>
  requires std::invocable<Callable&>
Task<std::invoke_result_t<Callable&>> RunBlocking(Callable callable) {
  co_return co_await internal::BlockingAwaiter<Callable>(callable);
}

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_EXECUTOR_BLOCKING_H_
