// The loop of one thread: Executor, and ExecutorThread, which runs it.
//
// ExecutorGate is a way to an executor from any thread, and RootTask a Task that no coroutine
// awaits. The program or its Runtime owns executors. Everything except posting belongs to the
// executor's thread. A turn runs a bounded amount of work.

#ifndef VERBENA_TRANSPORT_EXECUTOR_EXECUTOR_H_
#define VERBENA_TRANSPORT_EXECUTOR_EXECUTOR_H_

#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/export.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/completion_listener.h"
#include "verbena/transport/executor/flush_queue.h"
#include "verbena/transport/executor/options.h"

// Declared here so that users of executors do not include verbs' headers.
struct ibv_cq;

namespace verbena::internal {

class Device;
class ExecutorService;
class IoRing;
class LagListener;
class RootTask;

}  // namespace verbena::internal

namespace verbena {

// Executor: one thread's loop. It turns completions, ring events, timers and posted work into the
// resumption of coroutines.
//
//   turn: poll each CQ -> reap the io_uring -> expire timers -> drain the inbox
//         -> run ready coroutines -> flush hooks (repost receives, then one chained post per QP)
//         -> one io_uring submit
//   idle: spin for options.spin -> arm every CQ, poll it AGAIN -> sleep in the Waiter
//
// One per core. Run() makes the calling thread its thread until Stop(). A host with an event loop
// of its own calls Poll() until it returns false, then Arm(), and sleeps on fd() if Arm() returned
// true (examples/host_loop). Everything except Stop(), Post() and PostFunction() belongs to that
// thread. The executor must outlive all work that was started on it. Serving completions adds no
// lock and no system call; the device's provider may. A turn runs a bounded amount of work; the
// rest keeps the loop awake.
//
//   VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Executor> executor,
//                            Executor::Create({.mode = ExecutorMode::kBusy}));
//   executor->Run();
//
//   precondition                                      how it is checked   test
//   Run(), Poll() and Arm() not inside its own loop   a check aborts      host_driven_test
//   one thread at a time drives it                    a check aborts      host_driven_test
//   not destroyed inside its own loop                 a check aborts      host_driven_test
//   used on its thread, but for posting               not checked
class VERBENA_EXPORT Executor final : public Scheduler {
 public:
  static absl::StatusOr<std::unique_ptr<Executor>> Create(ExecutorOptions options = {});
  // On any thread, while none runs the executor. CQs must have been removed. Destroys the Tasks of
  // Spawn, BlockOn and RunOn that have not ended. Runs the items in the inbox, so that they can
  // delete themselves, but drops posted functions and tasks that have not begun. Waits for file
  // operations that are under way. The executor is Current() meanwhile.
  ~Executor() override;

  // Runs turns on this thread until Stop(). Work that is left stays queued; a later Run() goes on
  // with it. May be called on an armed executor.
  void Run();
  // From any thread, a signal handler too. Items that the calling thread posted earlier still run;
  // then Run() returns. A Run() that begins later returns at once. Several calls before that count
  // as one.
  void Stop();
  // One turn, never blocks. True when it did something. Not from within a turn.
  bool Poll();
  // Readable when an armed executor has something to do: a completion, a post, or a timer that is
  // due. Timers of an executor with a clock of its own are not seen here: ask NextTimer().
  int fd() const;
  // Prepares to sleep on fd(), the last thing before it. False when there is work by now: call
  // Poll() instead of sleeping.
  bool Arm();
  // The time of the next timer, or kNever.
  TimePoint NextTimer() const;

  // --- For Verbena's own transport, down to SetFileService(): users call none of these.

  // now(), read anew: for what begins by itself, as a handshake does. Its time must not run out in
  // a turn that a handler has held for long.
  TimePoint FreshNow() {
    ForgetNow();
    return now();
  }
  // Creates a CQ of at least `entries` on `device` which every turn polls, and hands its
  // completions to `listener`. Both must outlive it. Its owner gives it back with RemoveCq() once
  // its QPs and SRQ are destroyed. `comp_vector` is the device's vector whose events wake the
  // executor.
  absl::StatusOr<ibv_cq*> AddCq(internal::Device& device, int entries,
                                internal::CompletionListener& listener, int comp_vector = 0);
  absl::Status RemoveCq(ibv_cq* cq);
  // Polls one CQ until it is empty, now: teardown needs it before and after a QP is destroyed.
  void DrainCq(ibv_cq* cq);

  // `listener` hears from now on when the executor lags (lag.h): work that it finds may be out of
  // date, and what ends that work may lie behind it.
  void WatchLag(internal::LagListener& listener);
  // For work of which one turn may have much. Looks at the clock; if the turn has lasted so long
  // that the executor lags, now() is read anew.
  void CheckLag();
  // Polls every CQ until it is empty, at most as many completions of each as it has entries: so all
  // that had come when it began. False if a CQ gave as many, so that more may have come meanwhile.
  // now() is read anew. For a FlushHook; not inside a completion listener.
  bool PollOn();

  // Calls hook.Flush() once at the end of this turn. Does nothing when it is queued already.
  using FlushPriority = internal::FlushPriority;
  void FlushLater(internal::FlushHook& hook, internal::FlushPriority priority);

  // The executor's io_uring, which every turn reaps and submits from now on. FAILED_PRECONDITION
  // when it sleeps in epoll.
  absl::StatusOr<internal::IoRing*> UseRing();
  // The service that keeps the executor's files: set once, null until then.
  internal::ExecutorService* file_service() const;
  void SetFileService(std::unique_ptr<internal::ExecutorService> service);

  void StartTimer(internal::Timer& timer, TimePoint when) override;
  void StopTimer(internal::Timer& timer) override;
  void Post(internal::InboxItem& item) override;
  // From any thread; allocates.
  void PostFunction(absl::AnyInvocable<void()> function);

  const ExecutorStats& stats() const;
  const ExecutorOptions& options() const;
  // "io_uring" or "epoll".
  const char* waiter_name() const;

 private:
  class Impl;
  class Drive;
  friend class internal::RootTask;

  explicit Executor(std::unique_ptr<Impl> impl);

  TimePoint ReadClock() const override;

  void AbandonTasks();
  // The steps of a turn and of idling, in their order.
  bool Turn();
  size_t ExpireTimers();
  size_t DrainInbox();
  void Idle();
  bool PrepareToSleep();
  // The host does not sleep any more.
  void Disarm();
  // False if the alarm of a sleeping host cannot be set.
  bool SetHostAlarm();
  void Sleep();

  const std::unique_ptr<Impl> impl_;
};

}  // namespace verbena

namespace verbena::internal {

// ExecutorService: an object of a higher layer that an executor has at most once, and that ends
// with the executor.
//
// Owned by the executor and used on its thread.
class ExecutorService {
 public:
  virtual ~ExecutorService() = default;
  // The executor is being destroyed, on this thread; its tasks are gone. Blocks until nothing is
  // under way. The inbox is emptied once more before the service itself is destroyed.
  virtual void Stop() = 0;
};

// ExecutorGate: a way to an executor that is open as long as its owner lives.
//
// Some objects may be dropped on any thread, and later than the executor. The owner of a gate lives
// on the executor, closes the gate as it ends, and shares it with such objects. They reach the
// executor by Post() alone. That is safe, because Close() waits for a Post() that is under way, and
// the executor outlives the gate's owner.
//
//   gate->Post([gate, owner] { if (gate->open()) owner->Forget(); });
class ExecutorGate {
 public:
  explicit ExecutorGate(Executor& executor) : executor_(&executor) {}
  ExecutorGate(const ExecutorGate&) = delete;
  ExecutorGate& operator=(const ExecutorGate&) = delete;

  // For the owner.
  void Close() {
    std::lock_guard<std::mutex> lock(mutex_);
    executor_ = nullptr;
  }
  // For any thread: as Executor::PostFunction(). False, and `function` is destroyed, if the gate is
  // closed. The owner may end before the function runs.
  bool Post(absl::AnyInvocable<void()> function) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (executor_ == nullptr) return false;
    executor_->PostFunction(std::move(function));
    return true;
  }
  // Call it on the executor's thread: the owner closes the gate there, so the gate cannot close
  // meanwhile.
  bool open() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return executor_ != nullptr;
  }

 private:
  mutable std::mutex mutex_;
  Executor* executor_;
};

}  // namespace verbena::internal

namespace verbena {

// PollUntil: drives executors that a host owns, on this thread, until something is true.
//
// All are polled, one after another, because the one that the caller waits for may need another.
// The thread sleeps while none of them has work, unless one of them is in busy mode or has a clock
// of its own. No other thread may poll or run one of them meanwhile: a check aborts, even if `done`
// is true already. Do not call it inside an executor's loop.
//
// `done` must become true by something that one of `executors` does. It is asked after each round,
// but not before the first.
VERBENA_EXPORT void PollUntil(const std::vector<Executor*>& executors,
                              absl::FunctionRef<bool()> done);

// ExecutorThread: an executor and the thread that runs it.
//
// The thread carries the executor's name. Destroying the object stops the executor, joins the
// thread and destroys the executor with the work that is left on it (Executor::~Executor), on the
// destroying thread, which must not be the executor's own.
//
//   VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<ExecutorThread> thread,
//                            ExecutorThread::Start({.name = "io0", .cpu = 2}));
//   absl::Status status = BlockOn(thread->executor(), Work());
class VERBENA_EXPORT ExecutorThread {
 public:
  // Fails as Executor::Create() does, or RESOURCE_EXHAUSTED when there can be no more threads.
  static absl::StatusOr<std::unique_ptr<ExecutorThread>> Start(ExecutorOptions options = {});
  ExecutorThread(const ExecutorThread&) = delete;
  ExecutorThread& operator=(const ExecutorThread&) = delete;
  ~ExecutorThread();

  Executor& executor() { return *executor_; }

 private:
  explicit ExecutorThread(std::unique_ptr<Executor> executor);

  const std::unique_ptr<Executor> executor_;
  std::thread thread_;
};

}  // namespace verbena

namespace verbena::internal {

// RootTask: a Task that no coroutine awaits, run by an executor. Spawn, BlockOn and RunOn are made
// of it; not for users.
//
// Any thread sends a RootTask to its executor through the inbox, where it starts. The executor
// keeps a list of those that run. When the executor is destroyed, it abandons those that have not
// ended, on the destroying thread. The derived class owns the Task, and says who owns the RootTask.
class VERBENA_EXPORT RootTask : public IntrusiveNode<RootTask>,
                                public InboxItem,
                                public TaskListener {
 public:
  // From any thread, once. `executor` must outlive the task, or destroy it.
  void Launch(Executor& executor) {
    VERBENA_CHECK(executor_ == nullptr) << "a root task was launched twice";
    executor_ = &executor;
    executor.Post(*this);
  }

  // On the executor's thread, or the one that destroys it. Destroys the Task, which has not ended,
  // and perhaps has not begun.
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

#endif  // VERBENA_TRANSPORT_EXECUTOR_EXECUTOR_H_
