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

#ifndef VERBENA_TRANSPORT_EXECUTOR_EXECUTOR_H_
#define VERBENA_TRANSPORT_EXECUTOR_EXECUTOR_H_

#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/executor/completion_listener.h"
#include "verbena/transport/executor/executor_options.h"
#include "verbena/transport/executor/executor_service.h"
#include "verbena/transport/executor/flush_queue.h"

// Declared here so that users of executors do not include verbs' headers.
struct ibv_cq;

namespace verbena {

namespace internal {
class Device;
class IoRing;
class RootTask;
}  // namespace internal

class Executor final : public Scheduler {
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

  // Creates a CQ of at least `entries` on `device` which every turn polls, and hands its
  // completions to `listener`. Both must outlive it. Its owner gives it back with RemoveCq() once
  // its QPs and SRQ are destroyed.
  absl::StatusOr<ibv_cq*> AddCq(internal::Device& device, int entries,
                                internal::CompletionListener& listener);
  absl::Status RemoveCq(ibv_cq* cq);
  // Polls one CQ until it is empty, now: teardown needs it before and after a QP is destroyed.
  void DrainCq(ibv_cq* cq);

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

#endif  // VERBENA_TRANSPORT_EXECUTOR_EXECUTOR_H_
