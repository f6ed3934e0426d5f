// BlockOn: runs a Task on an executor from a thread that runs none, and waits for its result.
//
// The thread sleeps until the Task has ended and its frame is destroyed. The executor must be
// running, or somebody must run it, and must not be destroyed before this returns. Called inside an
// executor's loop it would block that loop, so a check aborts the process: co_await there. An
// exception of the Task comes out of the call.
//
//   absl::StatusOr<GetReply> reply = BlockOn(thread->executor(), stub.Get(request));

#ifndef VERBENA_TRANSPORT_EXECUTOR_BLOCK_ON_H_
#define VERBENA_TRANSPORT_EXECUTOR_BLOCK_ON_H_

#include <condition_variable>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/carried_result.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/root_task.h"

namespace verbena {
namespace internal {

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

}  // namespace internal

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

#endif  // VERBENA_TRANSPORT_EXECUTOR_BLOCK_ON_H_
