// RootTask: a Task that no coroutine awaits, run by an executor. Spawn, BlockOn and RunOn are made
// of it; not for users.
//
// It is sent to its executor through the inbox, from any thread, and starts there. The executor
// keeps a list of those that run: one that has not ended when the executor is destroyed is
// abandoned, on the destroying thread. The derived class owns the Task and decides who owns itself.

#ifndef VERBENA_TRANSPORT_EXECUTOR_ROOT_TASK_H_
#define VERBENA_TRANSPORT_EXECUTOR_ROOT_TASK_H_

#include "verbena/transport/base/check.h"
#include "verbena/transport/base/intrusive_list.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/executor.h"

namespace verbena::internal {

class RootTask : public IntrusiveNode<RootTask>, public InboxItem, public TaskListener {
 public:
  // From any thread, once. `executor` must outlive the task, or destroy it.
  void Launch(Executor& executor) {
    VERBENA_CHECK(executor_ == nullptr) << "a root task was launched twice";
    executor_ = &executor;
    executor.Post(*this);
  }

  // On the executor's thread, or the one that destroys it: destroys the Task, which has not ended,
  // perhaps not begun.
  virtual void Abandon() = 0;

 protected:
  Executor& executor() const { return *executor_; }

 private:
  void Run() final;
  // On the executor's thread. Starts the Task with this object as its completion.
  virtual void StartTask() = 0;

  Executor* executor_ = nullptr;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_EXECUTOR_ROOT_TASK_H_
