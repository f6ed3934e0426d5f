// JoinState: what a spawned task and the handle on it share. JoinHandle is made of it; not for
// users.
//
// On the heap, because either side may vanish first: a reference is held by the task until its
// frame is destroyed, by the handle, and by each message under way. A message to an executor is
// posted under the lock, and only while its receiver is known to live: to the task's until the task
// has ended, to the waiter's until the waiter has left. So neither executor can be gone.

#ifndef VERBENA_TRANSPORT_EXECUTOR_JOIN_STATE_H_
#define VERBENA_TRANSPORT_EXECUTOR_JOIN_STATE_H_

#include <atomic>
#include <concepts>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/scheduler.h"

namespace verbena::internal {

// Runs executors that have no threads, on the calling thread.
class ExecutorDriver {
 public:
  virtual ~ExecutorDriver() = default;
  virtual void DriveUntil(absl::FunctionRef<bool()> done) = 0;
};

// The executor of a spawned task, and who spawned it. All of it outlives the task.
struct SpawnSite {
  Scheduler& scheduler;
  // The function's name in the log.
  const char* function = "Spawn";
  // Counts tasks that threw. May be null.
  std::atomic<uint64_t>* failed_tasks = nullptr;
  // Null if the executor has a thread, or a host that runs it.
  ExecutorDriver* driver = nullptr;
};

class JoinState {
 public:
  // A coroutine that waits for the task's end.
  class Waiter {
   public:
    virtual ~Waiter() = default;
    // On the waiter's thread, once at most. The task has ended.
    virtual void OnTaskEnded() = 0;
  };

  explicit JoinState(const SpawnSite& site) : site_(site) {}
  JoinState(const JoinState&) = delete;
  JoinState& operator=(const JoinState&) = delete;

  // --- The task's side, on its executor's thread, or the one that destroys the executor.

  // The task begins, in `scope`, which lives until End().
  void Begin(CancelScope& scope);
  // Keeps the exception that is being handled.
  void KeepException();
  // The task is destroyed, also if it never began. Drops the task's reference.
  void End();

  // --- The handle's side, on one thread at a time.

  bool done() const { return done_.load(std::memory_order_acquire); }
  // Only the first request counts.
  void RequestCancel(absl::StatusCode reason);
  // Blocks the thread until the task has ended.
  void Wait();
  // Tells `waiter` on the thread of `home`, which is this one. False if the task has ended already.
  bool Await(Scheduler& home, Waiter& waiter);
  // The waiter of Await() is gone.
  void StopAwaiting();
  // The handle is gone. Drops its reference.
  void Detach();

 protected:
  virtual ~JoinState() = default;

  // Destroys the result, which nobody will take: on the task's executor if the handle was dropped
  // before the end, otherwise with the handle. A message under way may outlive both.
  virtual void DropResult() = 0;

  // Once done().
  void RethrowIfThrown();
  // The Status of a task that was destroyed before it ended, and the same for results that hold
  // none.
  static absl::Status AbandonedStatus();
  [[noreturn]] static void ThrowAbandoned();

 private:
  // A message to one of the two sides, inside the object that it is about.
  class Message final : public InboxItem {
   public:
    Message(JoinState& state, void (JoinState::*arrived)()) : state_(state), arrived_(arrived) {}
    void Run() override { (state_.*arrived_)(); }

   private:
    JoinState& state_;
    void (JoinState::* const arrived_)();
  };

  void OnCancelArrived();  // on the task's executor
  void OnEndArrived();     // on the waiter's
  void LogUnheard(const std::exception_ptr& exception) const;
  void Drop();

  const SpawnSite site_;
  std::atomic<int> references_{2};
  std::atomic<bool> done_{false};  // changes under the lock
  Message cancel_message_{*this, &JoinState::OnCancelArrived};
  Message end_message_{*this, &JoinState::OnEndArrived};

  std::mutex mutex_;
  std::condition_variable ended_;
  bool detached_ = false;
  Scheduler* home_ = nullptr;  // the waiter's, while there is one
  // Not OK once requested, and then constant.
  absl::StatusCode cancel_reason_ = absl::StatusCode::kOk;

  // The waiter's thread alone uses it.
  Waiter* waiter_ = nullptr;

  // The task's, and the handle's after the end.
  std::exception_ptr exception_;
  CancelScope* scope_ = nullptr;
  bool cancel_arrived_ = false;
};

template <typename T>
class TypedJoinState final : public JoinState {
 public:
  using JoinState::JoinState;

  // The task's side: the Task returned.
  template <typename... Value>
  void KeepValue(Value&&... value) {
    value_.emplace(std::forward<Value>(value)...);
  }

  // The handle's side, once done(), once.
  T Take() {
    RethrowIfThrown();
    if constexpr (std::convertible_to<absl::Status, T>) {
      if (!value_) return AbandonedStatus();
    } else {
      if (!value_) ThrowAbandoned();
    }
    if constexpr (!std::is_void_v<T>) return *std::move(value_);
  }

 private:
  ~TypedJoinState() override = default;

  void DropResult() override { value_.reset(); }

  struct Nothing {};
  std::optional<std::conditional_t<std::is_void_v<T>, Nothing, T>> value_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_EXECUTOR_JOIN_STATE_H_
