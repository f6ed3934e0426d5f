// Admission of calls on one executor of a server: Admission, the queue that calls wait in, and what
// clients and source addresses have of it.
//
// Part of a ServerState, on its executor's thread. AdmissionOptions bounds it.

#ifndef VERBENA_RPC_SERVER_ADMISSION_H_
#define VERBENA_RPC_SERVER_ADMISSION_H_

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/server/method_table.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/lag.h"

namespace verbena::internal {

// AdmissionPace: the time from one start of a queued call to the next while calls are ready, as an
// average.
//
// Part of an AdmissionQueue, on its executor's thread. Measured from turn to turn: now() is the
// turn's, so the time between two turns is what the calls of the first one took.
class AdmissionPace {
 public:
  // How many calls a turn may start so that it takes `slice`: 1 to `most`.
  uint32_t StartsIn(Duration slice, uint32_t most) const {
    if (!measured_) return 1;
    if (average_ <= Duration::zero()) return most;
    return static_cast<uint32_t>(
        std::clamp<uint64_t>(static_cast<uint64_t>(slice / average_), 1, most));
  }
  // True if calls have been ready ever since the pace was measured.
  bool holds() const { return holds_ && average_ > Duration::zero(); }
  // How many calls start in `wait`. Precondition: holds().
  uint64_t StartsDuring(Duration wait) const { return static_cast<uint64_t>(wait / average_); }

  // True if calls have been ready ever since the last turn that started some. Ask before a turn.
  bool measuring() const { return measuring_; }
  // A turn at `now` has started `started` calls, not 0. `measuring` was true before the turn, and
  // calls are `ready` after it.
  void EndTurn(TimePoint now, uint32_t started, bool measuring, bool ready) {
    if (measuring) {
      const Duration sample = (now - last_turn_) / last_started_;
      average_ = measured_ ? average_ + (sample - average_) / (1 << kShift) : sample;
      measured_ = true;
      holds_ = ready;
    }
    last_turn_ = now;
    last_started_ = started;
    measuring_ = ready;
  }
  // No call is ready any more.
  void Interrupt() { measuring_ = holds_ = false; }

 private:
  // A new sample counts one in two to the power of this.
  static constexpr int kShift = 3;

  Duration average_{};
  bool measured_ = false;  // ever
  bool holds_ = false;
  bool measuring_ = false;
  TimePoint last_turn_{};  // that started calls
  uint32_t last_started_ = 0;
};

// RefusalReason: why a server starts none of a call.
enum class RefusalReason : uint8_t {
  kShuttingDown,  // UNAVAILABLE
  kNoSuchMethod,  // UNIMPLEMENTED
  kTooManyCalls,  // RESOURCE_EXHAUSTED, as are those down to kTooMuchMetadata
  kTooManyOfAClient,
  kTooManyOfASource,
  kTooManyOfAMethod,
  kTooManyBytes,
  kTooManyBytesOfAClient,
  kTooManyBytesOfAMethod,
  kQueueFull,
  kQueueTooOld,
  kTooMuchMetadata,
  kStreamsOtherwise,  // UNIMPLEMENTED
};
inline constexpr size_t kRefusalReasons = 13;

// The three queues, in the order in which they are served.
enum class CallClass : uint8_t { kControl, kNormal, kBackground };
inline constexpr size_t kCallClasses = 3;

class ClientQueue;

// A call's place in the list of all that wait, the oldest first.
class AgingCall : public IntrusiveNode<AgingCall> {};

// A call as those see it that let it wait: a ServerCall. On its executor's thread.
class QueuedCall : public AgingCall, public IntrusiveNode<QueuedCall> {
 public:
  virtual ~QueuedCall() = default;
  // The call's turn has come, and it has left the queue. May end the call.
  virtual void RunQueued() = 0;
  // Ends the call, which has left the queue and never runs.
  virtual void RefuseQueued(RefusalReason reason) = 0;

  // In a queue, or in the CallBacklog.
  bool waits() const { return waits_; }
  // Says how the call counts, from its arrival to its end.
  void SetAdmitted(ClientQueue& client, CallClass its_class, uint64_t pinned_bytes) {
    client_ = &client;
    class_ = its_class;
    pinned_bytes_ = pinned_bytes;
  }

 private:
  friend class Admission;
  friend class AdmissionQueue;
  friend class CallBacklog;

  ClientQueue* client_ = nullptr;
  uint64_t pinned_bytes_ = 0;
  CallClass class_ = CallClass::kNormal;
  bool waits_ = false;
  bool counted_ = false;  // among the handlers that run
  TimePoint arrived_{};
};

class SourceFlow;

// One client's calls of one class that wait, in the order of their arrival. In a CallBacklog all
// classes are one, the normal one.
class CallFlow : public IntrusiveNode<CallFlow> {
 private:
  friend class AdmissionQueue;
  friend class CallBacklog;
  friend class ClientQueue;

  IntrusiveList<QueuedCall> calls_;
  uint32_t size_ = 0;
  uint32_t ready_ = 0;  // as many of them as count in source_: all, if the client may run one
  SourceFlow* source_ = nullptr;
  uint32_t newest_in_a_row_ = 0;  // starts, by a CallBacklog
};

// One turn in a class. All clients of a bounded source share one; each client of an unbounded
// source has its own. Its flows take turns in it.
class SourceFlow : public IntrusiveNode<SourceFlow> {
 private:
  friend class AdmissionQueue;
  friend class CallBacklog;

  IntrusiveList<CallFlow> flows_;  // whose clients may run a call
  uint32_t flow_count_ = 0;
  uint32_t calls_ = 0;  // of these flows
  uint32_t ready_ = 0;  // as many of them as count in the class: all, if the source may run one
};

// The share that all clients of one source address have of an AdmissionQueue. A part of their
// ServerSource, and outlives their calls.
class SourceQueue {
 public:
  // `bounded`: it may take a part of the handlers that run, of the queue and of the control places,
  // and no more, and has one turn for all of its clients.
  explicit SourceQueue(bool bounded = true) : bounded_(bounded) {}

 private:
  friend class Admission;
  friend class AdmissionQueue;
  friend class ClientQueue;

  const bool bounded_;
  uint32_t running_ = 0;                        // control calls do not count
  uint32_t waiting_ = 0;                        // likewise
  uint32_t control_ = 0;                        // control places, from a call's arrival to its end
  std::array<SourceFlow, kCallClasses> flows_;  // unless it is unbounded
};

// The share that one client has of an AdmissionQueue, or its turn in a CallBacklog. A part of its
// ServerClient, and outlives its calls.
class ClientQueue {
 public:
  explicit ClientQueue(SourceQueue& source) : source_(source) {
    const bool alone = !source.bounded_;
    for (size_t i = 0; i < kCallClasses; ++i) {
      flows_[i].source_ = alone ? &alone_[i] : &source.flows_[i];
    }
  }
  ClientQueue(const ClientQueue&) = delete;
  ClientQueue& operator=(const ClientQueue&) = delete;

 private:
  friend class Admission;
  friend class AdmissionQueue;
  friend class CallBacklog;

  SourceQueue& source_;
  std::array<SourceFlow, kCallClasses> alone_;  // if the source is unbounded
  std::array<CallFlow, kCallClasses> flows_;
  uint32_t running_ = 0;
  uint32_t waiting_ = 0;  // control calls do not count
  uint32_t control_ = 0;  // control places, from a call's arrival to its end
  uint64_t pinned_bytes_ = 0;
};

// AdmissionQueue: calls that have arrived at one executor and wait for their turn.
//
// Each turn of the executor starts a few: one if handlers take long, more if they are short, so
// that the executor polls about every kTurnSlice. Calls of three classes wait apart. In each class
// the sources take turns, and in each turn of a source the next of its clients has it: so a host
// gains nothing by many runtime ids. Control goes first, but of four calls in a row one is another,
// and of eight that are normal or background one is background, so no class starves.
//
// A call is refused when it arrives if the calls ahead of it, at the present pace, would take
// longer than the longest wait; so most calls that cannot be served cost no more than a look. Calls
// that only a bound of their own client, source or class holds back count neither as ahead nor in
// the pace. A call that has waited that long leaves: a timer watches the oldest.
//
// Bounded by AdmissionOptions::max_queued and control_places. Allocates nothing. Part of an
// Admission, on its executor's thread.
class AdmissionQueue final : private Timer {
 public:
  // (start) A turn starts no further call once it has taken this long, by the pace of the calls
  // before.
  static constexpr Duration kTurnSlice = std::chrono::microseconds(20);
  static constexpr uint32_t kMaxStartsPerTurn = 16;

  // Precondition: options.max_running > 0.
  AdmissionQueue(Scheduler& scheduler, const AdmissionOptions& options);
  AdmissionQueue(const AdmissionQueue&) = delete;
  AdmissionQueue& operator=(const AdmissionQueue&) = delete;
  // Precondition: Stop() was called, or no call ever waited.
  ~AdmissionQueue() override;

  // Why a call of `client` that arrives now would not get a place, or nothing.
  std::optional<RefusalReason> Check(const ClientQueue& client, CallClass its_class) const;
  // The call waits from now on. Its class and client are set.
  void Push(QueuedCall& call);
  // The call leaves by itself, as when it is cancelled. Precondition: it waits.
  void Remove(QueuedCall& call);
  // The call's handler has ended, or it has begun and counts no more. Does nothing the second time.
  void EndRun(QueuedCall& call);
  // One turn: refuses calls that are too old, and starts some.
  void RunTurn();
  // Refuses all that wait.
  void RefuseAll(RefusalReason reason);
  // The executor is about to end. Precondition: no call waits.
  void Stop();

  // Whether a turn would start a call.
  bool can_run() const;
  size_t waiting() const { return waiting_; }

 private:
  void OnTimer() override;  // the oldest may be too old
  void RefuseOld();
  void StartTimer(TimePoint when);
  // When the call has waited too long.
  TimePoint Due(const QueuedCall& call) const;
  uint64_t CallsAhead(const ClientQueue& client, CallClass its_class) const;
  // The same of its own class alone.
  uint64_t CallsAheadInClass(const ClientQueue& client, CallClass its_class) const;
  // The next call, which has left the queue; nullptr if none may run.
  QueuedCall* Pick();
  QueuedCall& PickFrom(CallClass its_class);
  std::optional<CallClass> NextClass() const;
  bool MayRun(CallClass its_class) const;
  // As many background calls run as may.
  bool IsHeld(CallClass its_class) const;
  // A call waits that only needs its turn, or a place among all that run.
  bool AnyReady() const;
  void NoteClass(CallClass its_class);
  // Counts the calls of the client's flow and of its source's, and lets both take turns, if client
  // and source may run a call. Call after each change of what that depends on.
  void Settle(ClientQueue& client, size_t index);
  // The same for both classes whose calls count among those that run.
  void SettleBoth(ClientQueue& client);
  // The source runs as many calls as it may.
  bool IsFull(const SourceQueue& source) const;
  CallFlow& FlowOf(const QueuedCall& call) const;
  void Unlink(QueuedCall& call);
  void Count(QueuedCall& call);

  // The calls of one class that wait.
  struct ClassQueue {
    uint32_t waiting = 0;
    uint32_t ready = 0;  // whose clients and sources may run a call
    uint32_t sources = 0;
    IntrusiveList<SourceFlow> turns;  // these sources
  };

  // Calls of a class that were started one after another while those of a lower class waited.
  struct StartsInARow {
    uint32_t control = 0;
    uint32_t normal = 0;
  };

  Scheduler& scheduler_;
  const uint32_t max_running_;
  const uint32_t max_running_per_client_;
  const uint32_t max_running_per_source_;
  const uint32_t max_background_;  // handlers that run
  const uint32_t max_queued_;
  const Duration max_age_;

  uint32_t running_ = 0;  // control calls do not count
  uint32_t running_background_ = 0;
  size_t waiting_ = 0;
  std::array<ClassQueue, kCallClasses> classes_;
  IntrusiveList<AgingCall> by_age_;
  StartsInARow in_a_row_;
  AdmissionPace pace_;
  bool timer_running_ = false;
};

// Whether a server needs an Admission.
inline bool HasBounds(const AdmissionOptions& options) {
  return options.max_running != 0 || options.max_pinned_bytes_per_client != 0 ||
         options.max_pinned_bytes != 0 || !options.methods.empty();
}

// Admission: decides which calls one executor of a server starts, and when, as AdmissionOptions
// say.
//
// Counts the calls and bytes of methods and clients, keeps places for control calls, and has the
// queue, if there is one. Only servers with such bounds have an Admission; the others pay nothing:
// what a call's hot path names is out of line. Part of a ServerState, on its executor's thread.
class Admission final : private LagListener, private FlushHook {
 public:
  // Precondition: HasBounds(options), and each of its methods is in the table.
  Admission(Executor& executor, const MethodTable& methods, const AdmissionOptions& options);
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  // The class that a call counts in: a control call without a control place is a normal one.
  CallClass ClassOf(Priority priority, const ClientQueue& client) const;
  // Which bound a call of these bytes would break now, if any.
  std::optional<RefusalReason> Check(int method, CallClass its_class, uint64_t pinned_bytes,
                                     const ClientQueue& client) const;
  // The same for a call that counts already, of the queue alone.
  std::optional<RefusalReason> CheckQueue(const QueuedCall& call) const {
    return queue_ == nullptr ? std::nullopt : queue_->Check(*call.client_, call.class_);
  }
  // The call counts from now on, until Release(). Precondition: Check() has just found nothing.
  void Count(QueuedCall& call, int method, CallClass its_class, uint64_t pinned_bytes,
             ClientQueue& client);
  // The call is over. True if it had a control place.
  [[gnu::noinline]] bool Release(QueuedCall& call, int method);

  // Hears of the executor's lag from now on. May be called again.
  void Watch();
  // Calls wait for their turn.
  bool queues() const { return queue_ != nullptr; }
  // These need queues().
  [[gnu::noinline]] void Enqueue(QueuedCall& call);
  void Leave(QueuedCall& call) { queue_->Remove(call); }
  // The call's handler has ended, or counts no more. Also without a queue.
  [[gnu::noinline]] void EndRun(QueuedCall& call);

  // Refuses all that wait.
  void RefuseAll(RefusalReason reason);
  // On the executor, before this is destroyed. Precondition: no call waits.
  void Stop();

  uint32_t control_calls() const { return control_; }
  size_t waiting() const { return queue_ == nullptr ? 0 : queue_->waiting(); }

 private:
  struct MethodCount {
    MethodLimits limits;
    uint32_t calls = 0;
    uint64_t pinned_bytes = 0;
  };

  void OnLag() override { lags_ = true; }
  void Flush() override;  // a turn of the queue
  void Wake();

  Executor& executor_;
  const AdmissionOptions options_;
  std::vector<MethodCount> methods_;  // by index; empty if none has bounds
  std::unique_ptr<AdmissionQueue> queue_;
  uint32_t control_ = 0;
  uint64_t pinned_bytes_ = 0;
  uint64_t last_turn_ = 0;
  bool lags_ = false;  // the queues may hold what ends calls that wait
};

// NOT_FOUND names a method of `options` that is not in the table; INVALID_ARGUMENT a field that is
// out of its range.
absl::Status CheckAdmission(const AdmissionOptions& options, const MethodTable& methods);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_ADMISSION_H_
