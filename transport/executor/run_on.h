// RunOn: runs a Task on another executor and resumes here with its result.
//
// It costs two hops between threads, one there and one back, and one allocation. Cancelling the
// awaiting coroutine cancels the Task over there, which runs on to its co_return; its result comes
// back as usual. Destroying the waiting coroutine abandons the Task: it is destroyed on its
// executor, by another hop. On the executor that the caller runs on already it is a plain await.
// The Task has the deadline and the trace of the awaiting coroutine.
//
// `other` must outlive the await. If `other` is destroyed before, the Task is destroyed with it and
// the await never resumes. An exception of the Task comes out here.
//
//   absl::StatusOr<Row> row = co_await RunOn(owner_of_shard, Lookup(key));

#ifndef VERBENA_TRANSPORT_EXECUTOR_RUN_ON_H_
#define VERBENA_TRANSPORT_EXECUTOR_RUN_ON_H_

#include <atomic>
#include <concepts>
#include <coroutine>
#include <cstdlib>
#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/export.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/executor.h"

namespace verbena::internal {

// RemoteTask: a Task sent from one executor, its home, to another, and its result sent back. RunOn
// is made of it; not for users.
//
// Three messages at most: out, back, and a request to cancel or abandon on the way. On the heap,
// because either side may vanish first: a reference is held by the home until it has the result or
// leaves, by the remote side until the Task is destroyed, and by each request under way.
class VERBENA_EXPORT RemoteTask : public RootTask {
 public:
  // Waits for the result, on the thread that launched the task.
  class Waiter {
   public:
    virtual ~Waiter() = default;
    // The result is there. From now on the home must drop its reference itself.
    virtual void OnReturned() = 0;
  };

  // Drops a reference at the end of a scope.
  class Reference {
   public:
    explicit Reference(RemoteTask& task) : task_(task) {}
    Reference(const Reference&) = delete;
    Reference& operator=(const Reference&) = delete;
    // Counts, so that a Drop() before this one was not the last.
    // NOLINTNEXTLINE(clang-analyzer-cplusplus.NewDelete)
    ~Reference() { task_.Drop(); }

   private:
    RemoteTask& task_;
  };

  // The rest is for the home's thread.
  //
  // The Task gets the deadline and the trace of `scope`. Before LaunchFrom().
  void TakeContext(const CancelScope& scope);
  void LaunchFrom(Scheduler& home_scheduler, Waiter& waiter, Executor& other);
  // Once at most, before OnReturned().
  void Cancel(absl::StatusCode reason);
  // The home is gone: abandons the Task. Drops the home's reference.
  void LeaveHome();

 protected:
  RemoteTask() = default;
  ~RemoteTask() override = default;

 private:
  // A message to one of the two sides, inside the object that it is about.
  class Message final : public InboxItem {
   public:
    Message(RemoteTask& task, void (RemoteTask::*arrived)()) : task_(task), arrived_(arrived) {}
    void Run() override { (task_.*arrived_)(); }

   private:
    RemoteTask& task_;
    void (RemoteTask::* const arrived_)();
  };

  enum class State {
    kRunning,    // or not begun
    kReturning,  // the remote side is posting the result to the home, which must not vanish
    kReturned,   // the remote side has posted the result
    kAbandoned,  // the home is gone: nothing may be posted to it
    kLost,       // the remote executor is gone: nothing may be posted to it
  };

  virtual void StartWith(CancelScope& scope) = 0;
  // After the Task's end.
  virtual void KeepResult() = 0;
  virtual void DestroyTask() = 0;

  // On the remote executor's thread.
  void StartTask() final { StartWith(scope_); }
  void OnTaskDone() final;
  void Abandon() final;
  void OnCancelRequested();
  void OnHomeLeft();
  // Destroys the Task. The caller must drop the remote side's reference afterwards.
  void EndTask();

  // On the home's thread.
  void OnResultArrived();

  bool Move(State to);
  void Drop();

  // Both sides.
  std::atomic<State> state_{State::kRunning};
  std::atomic<int> references_{2};
  Message result_message_{*this, &RemoteTask::OnResultArrived};
  Message cancel_message_{*this, &RemoteTask::OnCancelRequested};
  Message leave_message_{*this, &RemoteTask::OnHomeLeft};

  // The home's.
  Scheduler* home_scheduler_ = nullptr;
  Waiter* waiter_ = nullptr;
  bool result_arrived_ = false;
  absl::StatusCode cancel_reason_ = absl::StatusCode::kOk;

  // The remote side's.
  CancelScope scope_;
  bool alive_ = true;
};

// CarriedResult<T>: a Task's result on its way to another thread: a value, an exception, or the
// Status of a Task that could not run. Not for users.
template <typename T>
class CarriedResult {
 public:
  // `task` is done.
  void SetFrom(Task<T>& task) {
    try {
      if constexpr (std::is_void_v<T>) {
        task.TakeResult();
      } else {
        value_.emplace(task.TakeResult());
      }
    } catch (...) {
      exception_ = std::current_exception();
    }
  }

  // The Task could not run. If T cannot hold a Status, the process aborts.
  void SetFailed(const absl::Status& status) {
    if constexpr (std::convertible_to<absl::Status, T>) {
      value_.emplace(status);
    } else {
      WriteLog(LogComponent::kExecutor, LogLevel::kError, status.ToString());
      std::abort();
    }
  }

  // Once, after one of the above.
  T Take() && {
    if (exception_) [[unlikely]]
      std::rethrow_exception(std::exchange(exception_, nullptr));
    VERBENA_CHECK(value_.has_value() || std::is_void_v<T>) << "a result is taken that is not there";
    if constexpr (!std::is_void_v<T>) return *std::move(value_);
  }

 private:
  struct Nothing {};
  std::optional<std::conditional_t<std::is_void_v<T>, Nothing, T>> value_;
  std::exception_ptr exception_;
};

// RemoteTask with a Task of a certain type.
template <typename T>
class TypedRemoteTask final : public RemoteTask {
 public:
  explicit TypedRemoteTask(Task<T> task) : task_(std::move(task)) {}

  T TakeResult() { return std::move(result_).Take(); }

 private:
  ~TypedRemoteTask() override = default;

  void StartWith(CancelScope& scope) override { task_.Start(executor(), &scope, this); }
  void DestroyTask() override { task_ = Task<T>(); }
  void KeepResult() override { result_.SetFrom(task_); }

  Task<T> task_;
  CarriedResult<T> result_;
};

// Lives in the frame of the coroutine that waits, and may be destroyed with it.
template <typename T>
class RunOnAwaiter final : private RemoteTask::Waiter, private CancelNode {
 public:
  RunOnAwaiter(Executor& other, Task<T> task) : other_(other), task_(std::move(task)) {}
  ~RunOnAwaiter() override {
    if (remote_ != nullptr) remote_->LeaveHome();
  }

  bool await_ready() const noexcept { return false; }
  template <typename Promise>
    requires std::derived_from<Promise, PromiseBase>
  void await_suspend(std::coroutine_handle<Promise> coroutine) {
    promise_ = &coroutine.promise();
    remote_ = new TypedRemoteTask<T>(std::move(task_));
    CancelScope* cancel = promise_->cancel;
    if (cancel != nullptr) remote_->TakeContext(*cancel);
    remote_->LaunchFrom(*promise_->scheduler, *this, other_);
    if (cancel == nullptr) return;
    if (cancel->requested()) {
      remote_->Cancel(cancel->reason());
    } else {
      cancel->Add(*this);
    }
  }
  T await_resume() {
    TypedRemoteTask<T>* remote = std::exchange(remote_, nullptr);
    const RemoteTask::Reference reference(*remote);
    return remote->TakeResult();
  }

 private:
  void OnCancel(absl::StatusCode reason) override { remote_->Cancel(reason); }
  void OnReturned() override {
    CancelNode::Unlink();
    promise_->scheduler->Ready(*promise_);
  }

  Executor& other_;
  Task<T> task_;
  PromiseBase* promise_ = nullptr;
  TypedRemoteTask<T>* remote_ = nullptr;
};

}  // namespace verbena::internal

namespace verbena {

template <typename T>
Task<T> RunOn(Executor& other, Task<T> task) {
  if (Scheduler::Current() == &other) co_return co_await std::move(task);
  co_return co_await internal::RunOnAwaiter<T>(other, std::move(task));
}

template <internal::TaskSource A>
VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS Task<typename A::value_type> RunOn(Executor& other,
                                                                                    A awaitable) {
  return RunOn(other, internal::ToTask(std::move(awaitable)));
}

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_EXECUTOR_RUN_ON_H_
