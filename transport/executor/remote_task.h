// RemoteTask: a Task sent from one executor, its home, to another, and its result sent back. RunOn
// is made of it; not for users.
//
// Three messages at most: out, back, and a request to cancel or abandon on the way. On the heap,
// because either side may vanish first: a reference is held by the home until it has the result or
// leaves, by the remote side until the Task is destroyed, and by each request under way.

#ifndef VERBENA_TRANSPORT_EXECUTOR_REMOTE_TASK_H_
#define VERBENA_TRANSPORT_EXECUTOR_REMOTE_TASK_H_

#include <atomic>

#include "absl/status/status.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/root_task.h"

namespace verbena::internal {

class RemoteTask : public RootTask {
 public:
  // Waits for the result, on the thread that launched the task.
  class Waiter {
   public:
    virtual ~Waiter() = default;
    // The result is there. The home's reference is now its own to drop.
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
    kReturned,   // and has posted it
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
  // Ends the Task's life here. The remote side's reference is then to be dropped.
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

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_EXECUTOR_REMOTE_TASK_H_
