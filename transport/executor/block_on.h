// BlockOn: runs a Task on an executor from a thread that runs none, and waits for its result.
//
// The thread sleeps until the Task has ended. The executor must be running, or somebody must run
// it, and must not be destroyed before this returns. On a thread that is inside an executor's loop
// it is refused, since that loop could then never end the Task: a result type that can hold a
// Status gets FAILED_PRECONDITION (and the Task never runs), any other ends the process with a
// message. What the Task throws comes out of the call.
//
//   absl::StatusOr<GetReply> reply = BlockOn(thread->executor(), stub.Get(request));

#ifndef VERBENA_TRANSPORT_EXECUTOR_BLOCK_ON_H_
#define VERBENA_TRANSPORT_EXECUTOR_BLOCK_ON_H_

#include <condition_variable>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/root_task.h"
#include "verbena/transport/executor/task_result.h"

namespace verbena {
namespace internal {

// On the stack of the thread that waits.
template <typename T>
class BlockOnTask final : public RootTask {
 public:
  explicit BlockOnTask(Task<T> task) : task_(std::move(task)) {}

  T Wait() {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return done_; });
    return std::move(result_).Take();
  }

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

  // Notifies under the lock: the waiting thread destroys this object as soon as it gets it.
  void Wake() {
    std::lock_guard lock(mutex_);
    done_ = true;
    ended_.notify_one();
  }

  Task<T> task_;
  TaskResult<T> result_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool done_ = false;
};

}  // namespace internal

template <typename T>
T BlockOn(Executor& executor, Task<T> task) {
  if (Scheduler::Current() != nullptr) {
    internal::TaskResult<T> refused;
    refused.SetFailed(absl::FailedPreconditionError(
        "BlockOn was called on an executor's thread, whose loop it would block: co_await there"));
    return std::move(refused).Take();
  }
  internal::BlockOnTask<T> blocked(std::move(task));
  blocked.Launch(executor);
  return blocked.Wait();
}

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_EXECUTOR_BLOCK_ON_H_
