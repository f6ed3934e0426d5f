// Executor: one thread's loop. It turns completions, ring events, timers and posted work into the
// resumption of coroutines.
//
//   turn: poll each CQ -> reap the ring -> expire timers -> drain the inbox -> run ready coroutines
//         -> flush hooks (repost receives, then one chained post per QP) -> submit to the ring
//   idle: spin for options.spin -> arm every CQ, poll it AGAIN -> sleep in the Waiter
//
// One per core. Run() makes the calling thread its thread until Stop(); a host with an event loop
// of its own calls Poll(), and sleeps on fd() after Arm(). Everything except Stop(), Post() and
// PostFunction() belongs to that thread. It must outlive all that was started on it; the destructor
// runs on a thread where the executor is not running. Nothing on the loop takes a lock or makes a
// system call while there is work.
//
//   VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Executor> executor,
//                            Executor::Create({.mode = ExecutorMode::kBusy}));
//   executor->Run();

#ifndef VERBENA_TRANSPORT_EXECUTOR_EXECUTOR_H_
#define VERBENA_TRANSPORT_EXECUTOR_EXECUTOR_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/coro/clock.h"
#include "verbena/transport/coro/intrusive_list.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/device/device.h"

namespace verbena {

enum class ExecutorMode {
  kBusy,      // never sleeps: the lowest latency, one core spent
  kAdaptive,  // spins for `spin` after the last event, then sleeps
  kEvent,     // sleeps as soon as there is nothing to do
};

// How an idle executor sleeps, and how it reaches files.
enum class WaiterKind {
  kAuto,     // io_uring where the kernel allows it, else epoll
  kIoUring,  // creation fails where the kernel forbids it
  kEpoll,
};

struct ExecutorOptions {
  std::string name = "executor";
  ExecutorMode mode = ExecutorMode::kAdaptive;
  Duration spin = std::chrono::microseconds(50);
  WaiterKind waiter = WaiterKind::kAuto;
  // The core that Run() pins its thread to; -1 leaves it to the kernel.
  int cpu = -1;
  // nullptr means Clock::Real(). Must outlive the executor.
  Clock* clock = nullptr;
};

// Who receives the completions of a CQ. Called on the executor's thread with 1 to 32 completions;
// may ready coroutines, post work requests and queue frames, and must not destroy the CQ.
class CompletionSink {
 public:
  virtual ~CompletionSink() = default;
  virtual void OnCompletions(const ibv_wc* completions, int count) = 0;
};

// Something with work to push out at the end of a turn. Queued by Executor::FlushLater for one turn
// at a time, so that a turn costs nothing for what is idle.
class FlushHook : public IntrusiveNode<FlushHook> {
 public:
  virtual ~FlushHook() = default;
  virtual void Flush() = 0;
};

struct ExecutorStats {
  uint64_t turns = 0;
  uint64_t completions = 0;
  uint64_t resumed = 0;  // coroutines run from the ready queue
  uint64_t sleeps = 0;   // times the thread slept in the Waiter
  uint64_t inbox_items = 0;
};

class Executor final : public Scheduler {
 public:
  static absl::StatusOr<std::unique_ptr<Executor>> Create(ExecutorOptions options = {});
  ~Executor() override;

  // Runs turns on this thread until Stop(). Work that is left stays queued; a later Run() goes on
  // with it.
  void Run();
  // From any thread. Before Run(), makes the next Run() return at once.
  void Stop();
  // One turn, never blocks. True when it did something.
  bool Poll();
  // Readable when an armed executor has something to do.
  int fd() const;
  // Prepares to sleep on fd(). False when there is work by now: call Poll() instead of sleeping.
  bool Arm();
  // When a host that sleeps on fd() must call Poll() at the latest: the next timer, or kNever.
  TimePoint NextTimer() const;

  // Creates a CQ of at least `entries` on `device` which every turn polls, and hands its
  // completions to `sink`. Both must outlive it. Its owner gives it back with RemoveCq() once its
  // QPs and SRQ are destroyed.
  absl::StatusOr<ibv_cq*> AddCq(Device& device, int entries, CompletionSink& sink);
  absl::Status RemoveCq(ibv_cq* cq);
  // Polls one CQ until it is empty, now: teardown needs it before and after a QP is destroyed.
  void DrainCq(ibv_cq* cq);

  // Calls hook.Flush() once at the end of this turn. Does nothing when it is queued already.
  // Receives are reposted before the SENDs that return their credits.
  enum class FlushPriority { kReceives = 0, kSends = 1 };
  void FlushLater(FlushHook& hook, FlushPriority priority);

  void StartTimer(Timer& timer, TimePoint when) override;
  void StopTimer(Timer& timer) override;
  void Post(InboxItem& item) override;
  // From any thread; allocates.
  void PostFunction(absl::AnyInvocable<void()> function);

  const ExecutorStats& stats() const;
  const ExecutorOptions& options() const;
  // "io_uring" or "epoll".
  const char* waiter_name() const;

 private:
  class Impl;
  explicit Executor(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
};

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_EXECUTOR_EXECUTOR_H_
