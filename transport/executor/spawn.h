// Spawn: starts a Task on an executor and returns a handle on it.
//
// From any thread; the Task starts in a later turn of the executor's loop, never inline. The
// executor owns it: it is destroyed when it ends, or unfinished when the executor is. JoinHandle
// waits for its end, takes its result or asks it to stop; dropping the handle lets the Task run on
// alone, and an exception is then logged. A callable that returns a Task, such as a lambda, lives
// as long as that Task, so its captures stay valid. It is called on the executor.
//
// The number of such Tasks is not bounded here: Spawn is for the few roots of a program (an accept
// loop, a background job), and allocates for each. A Task per request belongs in a TaskScope or a
// ForEach, which bound them.
//
//   Spawn(executor, AcceptLoop(server));
//   JoinHandle<int> sum = Spawn(executor, [numbers]() -> Task<int> { co_return Sum(numbers); });

#ifndef VERBENA_TRANSPORT_EXECUTOR_SPAWN_H_
#define VERBENA_TRANSPORT_EXECUTOR_SPAWN_H_

#include <atomic>
#include <concepts>
#include <condition_variable>
#include <coroutine>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/export.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/run_on.h"

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

// JoinState: what a spawned task and the handle on it share. JoinHandle is made of it; not for
// users.
//
// On the heap, because either side may vanish first: a reference is held by the task until its
// frame is destroyed, by the handle, and by each message under way. A message to an executor is
// posted under the lock, and only while its receiver is known to live: to the task's until the task
// has ended, to the waiter's until the waiter has left. So neither executor can be gone.
class VERBENA_EXPORT JoinState {
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
  // The Status of a task that was destroyed before it ended. ThrowAbandoned() is for results that
  // cannot hold a Status.
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
    VERBENA_CHECK(done()) << "the result of a task was taken before it ended";
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

// JoinLogged: joins a TaskScope at a shutdown, which goes on whatever the scope's tasks threw.
//
// Waits until `scope` has no child left, and says so in the log every ten seconds. Logs the first
// exception of one, as that of a task of `owner`, and never throws it.
VERBENA_EXPORT Task<void> JoinLogged(TaskScope& scope, std::string owner);

// BlockOn: runs a Task on an executor from a thread that runs none, and waits for its result.
//
// The thread sleeps until the Task has ended and its frame is destroyed. The executor must be
// running, or somebody must run it, and must not be destroyed before this returns. Called inside an
// executor's loop it would block that loop, so a check aborts the process: co_await there. An
// exception of the Task comes out of the call.
//
//   absl::StatusOr<GetReply> reply = BlockOn(thread->executor(), stub.Get(request));

// A Task that a thread waits for, on that thread's stack.
class BlockOnRoot : public RootTask {
 public:
  // On the thread that waits.
  void Wait() {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return done_; });
  }
  bool done() {
    std::lock_guard lock(mutex_);
    return done_;
  }

 protected:
  // Notifies under the lock: the waiting thread destroys this object as soon as it gets it.
  void Wake() {
    std::lock_guard lock(mutex_);
    done_ = true;
    ended_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool done_ = false;
};

template <typename T>
class BlockOnTask final : public BlockOnRoot {
 public:
  explicit BlockOnTask(Task<T> task) : task_(std::move(task)) {}

  // Once done().
  T TakeResult() { return std::move(result_).Take(); }

  void Abandon() override {
    task_ = Task<T>();
    result_.SetFailed(absl::CancelledError("BlockOn: its executor was destroyed"));
    Wake();
  }

 private:
  void StartTask() override { task_.Start(executor(), nullptr, this); }

  void OnTaskDone() override {
    RootTask::Unlink();
    result_.SetFrom(task_);
    // Its frame is the executor's to destroy, not the waiting thread's.
    task_ = Task<T>();
    Wake();
  }

  Task<T> task_;
  CarriedResult<T> result_;
};

// Aborts on a thread that is inside an executor's loop, in the name of `function`.
inline void CheckMayBlock(const char* function = "BlockOn") {
  VERBENA_CHECK(Scheduler::Current() == nullptr)
      << function
      << " was called on an executor's thread, whose loop it would block: co_await there";
}

}  // namespace verbena::internal

namespace verbena {

template <typename T>
T BlockOn(Executor& executor, Task<T> task) {
  internal::CheckMayBlock();
  internal::BlockOnTask<T> blocked(std::move(task));
  blocked.Launch(executor);
  blocked.Wait();
  return blocked.TakeResult();
}

template <internal::TaskSource A>
typename A::value_type BlockOn(Executor& executor, A awaitable) {
  return BlockOn(executor, internal::ToTask(std::move(awaitable)));
}

}  // namespace verbena

namespace verbena::internal {

template <typename T>
class JoinAwaiter;
template <typename T>
class JoinableTask;

}  // namespace verbena::internal

namespace verbena {

// JoinHandle<T>: a task that was spawned, to wait for its end, take its result or ask it to stop.
//
// Move-only. A task has one handle. A coroutine on any executor takes the result by co_await, a
// thread that runs no executor by Join(). Both give the result, or throw the task's exception, once
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
//
//   precondition                                      how it is checked   test
//   not empty, moved from or joined when it is used   a check aborts      join_handle_test
//   Join() on no executor's thread                    a check aborts      join_handle_test
//   a spawned Task is not empty                       a check aborts      join_handle_test
//   one thread at a time uses it                      not checked
template <typename T = void>
class JoinHandle {
 public:
  using value_type = T;

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
  // The same as a Task, which WhenAll, WhenAny and WithDeadline make by themselves.
  VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS Task<T> AsTask() && {
    return JoinLater(std::move(*this));
  }

 private:
  friend class internal::JoinAwaiter<T>;
  friend class internal::JoinableTask<T>;
  static Task<T> JoinLater(JoinHandle handle) { co_return co_await std::move(handle); }
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

}  // namespace verbena

namespace verbena::internal {

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

// A Task that is about to run on another executor, and its end of the JoinState. The state hears of
// the end when the Task is gone, whoever destroys this object.
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

// `root` is owned by the executor from here on. It throws nothing.
VERBENA_EXPORT void LaunchSpawned(Executor& executor, Task<void> root);

}  // namespace verbena::internal

namespace verbena {

template <typename T>
JoinHandle<T> Spawn(Executor& executor, Task<T> task) {
  internal::JoinableTask<T> joinable({.scheduler = executor}, std::move(task));
  JoinHandle<T> handle = joinable.handle();
  internal::LaunchSpawned(executor, internal::RunJoinable(std::move(joinable)));
  return handle;
}

// Spawn() for a stub's call, which must own its messages: give it the request with std::move(), and
// take the reply as its result. One that borrows them does not compile, since whoever spawns does
// not wait for its end. Spawn a lambda that has the messages, or AsTask() if they outlive the call.
// Nor does an await of an object, such as Queue::Pop(): spawn a lambda that has the object.
template <internal::TaskSource A>
JoinHandle<typename A::value_type> Spawn(Executor& executor, A awaitable) {
  return Spawn(executor, internal::ToTask(std::move(awaitable)));
}
template <internal::BorrowingSource A>
JoinHandle<typename A::value_type> Spawn(Executor& executor, A borrows_what_may_be_gone) = delete;

template <internal::TaskFunction Function>
JoinHandle<internal::TaskFunctionResult<Function>> Spawn(Executor& executor, Function function) {
  return Spawn(executor, internal::RunFunction(std::move(function)));
}

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_EXECUTOR_SPAWN_H_
