// RunOn: runs a Task on another executor and resumes here with its result.
//
// It costs two hops between threads, one there and one back, and one allocation. Cancelling the
// awaiting coroutine cancels the Task over there, which runs on to its co_return; its result comes
// back as usual. Destroying the waiting coroutine abandons the Task: it is destroyed on its
// executor, by another hop. On the executor that the caller runs on already it is a plain await.
// The Task has the deadline and the trace of the awaiting coroutine.
//
// `other` must outlive the await. When it is destroyed all the same, the Task is destroyed with it
// and the await never resumes. An exception of the Task comes out here.
//
//   absl::StatusOr<Row> row = co_await RunOn(owner_of_shard, Lookup(key));

#ifndef VERBENA_TRANSPORT_EXECUTOR_RUN_ON_H_
#define VERBENA_TRANSPORT_EXECUTOR_RUN_ON_H_

#include <concepts>
#include <coroutine>
#include <utility>

#include "absl/status/status.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/carried_result.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/remote_task.h"

namespace verbena {
namespace internal {

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

}  // namespace internal

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
