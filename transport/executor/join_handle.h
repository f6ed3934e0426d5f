// JoinHandle<T>: a task that was spawned, to wait for its end, take its result or ask it to stop.
//
// Move-only. A task has one handle. A coroutine on any executor takes the result by co_await, a
// thread that runs no executor by Join(). Both give the result or throw what the task threw, once
// the task has ended and its frame is destroyed. Dropping the handle detaches the task, which goes
// on; an exception that nobody takes is then logged. The handle may be dropped on any thread and
// may outlive the executor and the runtime. One thread at a time uses it.
//
// A handle that was dropped before the task's end leaves the result to the task's executor, which
// destroys it there. A handle that is dropped later destroys the result where it is dropped: so
// take or drop in time a result that must not outlive its executor, such as a File.
//
// Cancelling a coroutine that awaits the handle cancels the task, which runs on to its co_return;
// the await still gives its result. So WithDeadline() bounds the task, too. Destroying that
// coroutine detaches the task.
//
// A task that was destroyed before it ended, because its executor was, gives CANCELLED if T can
// hold a Status. Otherwise co_await and Join() throw std::future_error (broken_promise).
//
//   JoinHandle<absl::StatusOr<Index>> index = runtime.Spawn(BuildIndex(store));
//   …
//   absl::StatusOr<Index> built = co_await std::move(index);

#ifndef VERBENA_TRANSPORT_EXECUTOR_JOIN_HANDLE_H_
#define VERBENA_TRANSPORT_EXECUTOR_JOIN_HANDLE_H_

#include <concepts>
#include <coroutine>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/block_on.h"
#include "verbena/transport/executor/join_state.h"

namespace verbena {
namespace internal {

template <typename T>
class JoinAwaiter;
template <typename T>
class JoinableTask;

}  // namespace internal

template <typename T = void>
class JoinHandle {
 public:
  // Empty: no task.
  JoinHandle() = default;
  JoinHandle(JoinHandle&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
  JoinHandle& operator=(JoinHandle&& other) noexcept {
    if (this != &other) {
      Detach();
      state_ = std::exchange(other.state_, nullptr);
    }
    return *this;
  }
  ~JoinHandle() { Detach(); }

  // False when default-constructed, moved from or joined. Everything below needs a handle that has
  // a task; a check aborts otherwise.
  explicit operator bool() const { return state_ != nullptr; }

  // Whether the task has ended and its frame is destroyed.
  bool done() const { return state().done(); }

  // Asks the task to stop: its awaits return `reason`. Only the first request counts. Does nothing
  // once the task has ended.
  void RequestCancel(absl::StatusCode reason = absl::StatusCode::kCancelled) {
    state().RequestCancel(reason);
  }

  // Blocks this thread until the task has ended; the handle is empty afterwards. A check aborts
  // inside an executor's loop, which it would block: co_await there. Without threads, a runtime's
  // executors are polled meanwhile if Runtime::Spawn() gave the handle; with Spawn(executor, …)
  // somebody else must run the executor.
  T Join() {
    internal::CheckMayBlock("JoinHandle::Join");
    state().Wait();
    const JoinHandle joined(std::move(*this));
    return joined.state_->Take();
  }

  // co_await std::move(handle) gives the result.
  internal::JoinAwaiter<T> operator co_await() && {
    state();
    return internal::JoinAwaiter<T>(std::move(*this));
  }

 private:
  friend class internal::JoinAwaiter<T>;
  friend class internal::JoinableTask<T>;
  // Takes over a reference.
  explicit JoinHandle(internal::TypedJoinState<T>& state) : state_(&state) {}

  internal::TypedJoinState<T>& state() const {
    VERBENA_CHECK(state_ != nullptr) << "a JoinHandle was used that is empty, moved from or joined";
    return *state_;
  }
  void Detach() {
    if (state_ != nullptr) std::exchange(state_, nullptr)->Detach();
  }

  internal::TypedJoinState<T>* state_ = nullptr;
};

namespace internal {

// Lives in the frame of the coroutine that waits, and may be destroyed with it.
template <typename T>
class [[nodiscard]] JoinAwaiter final : private JoinState::Waiter, private CancelNode {
 public:
  explicit JoinAwaiter(JoinHandle<T> handle) : handle_(std::move(handle)) {}
  ~JoinAwaiter() override {
    if (waiting_) handle_.state_->StopAwaiting();
  }

  bool await_ready() const noexcept { return handle_.state_->done(); }
  template <typename Promise>
    requires std::derived_from<Promise, PromiseBase>
  bool await_suspend(std::coroutine_handle<Promise> coroutine) {
    promise_ = &coroutine.promise();
    if (!handle_.state_->Await(*promise_->scheduler, *this)) return false;
    waiting_ = true;
    CancelScope* cancel = promise_->cancel;
    if (cancel == nullptr) return true;
    if (cancel->requested()) {
      OnCancel(cancel->reason());
    } else {
      cancel->Add(*this);
    }
    return true;
  }
  T await_resume() { return handle_.state_->Take(); }

 private:
  void OnCancel(absl::StatusCode reason) override { handle_.state_->RequestCancel(reason); }
  void OnTaskEnded() override {
    waiting_ = false;
    CancelNode::Unlink();
    promise_->scheduler->Ready(*promise_);
  }

  JoinHandle<T> handle_;
  PromiseBase* promise_ = nullptr;
  bool waiting_ = false;  // the state knows this object
};

// A Task that is about to run on another executor, and its end of the JoinState. Whoever destroys
// it, the state hears of the end when the Task is gone.
template <typename T>
class JoinableTask {
 public:
  JoinableTask(const SpawnSite& site, Task<T> task)
      : state_(new TypedJoinState<T>(site)), task_(std::move(task)) {
    VERBENA_CHECK(static_cast<bool>(task_)) << "a Task was spawned that is empty or moved from";
  }
  JoinableTask(JoinableTask&& other) noexcept
      : state_(std::exchange(other.state_, nullptr)), task_(std::move(other.task_)) {}
  JoinableTask& operator=(JoinableTask&&) = delete;
  ~JoinableTask() {
    if (state_ == nullptr) return;
    task_ = Task<T>();
    state_->End();
  }

  // Once.
  JoinHandle<T> handle() { return JoinHandle<T>(*state_); }
  TypedJoinState<T>& state() { return *state_; }

  // Once, on the task's executor: the await of the Task, in a scope below that of `context`.
  typename Task<T>::ScopedAwaiter Run(const TaskContext& context) {
    scope_.emplace(context.cancel);
    state_->Begin(*scope_);
    return std::move(task_).In(&*scope_);
  }

 private:
  TypedJoinState<T>* state_;
  std::optional<CancelScope> scope_;  // once it runs
  Task<T> task_;
};

// The coroutine that a spawned Task runs in. Throws nothing.
template <typename T>
Task<void> RunJoinable(JoinableTask<T> task) {
  const TaskContext context = co_await CurrentContext();
  try {
    if constexpr (std::is_void_v<T>) {
      co_await task.Run(context);
      task.state().KeepValue();
    } else {
      task.state().KeepValue(co_await task.Run(context));
    }
  } catch (...) {
    task.state().KeepException();
  }
}

}  // namespace internal
}  // namespace verbena

#endif  // VERBENA_TRANSPORT_EXECUTOR_JOIN_HANDLE_H_
