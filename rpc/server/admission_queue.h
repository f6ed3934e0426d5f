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

#ifndef VERBENA_RPC_SERVER_ADMISSION_QUEUE_H_
#define VERBENA_RPC_SERVER_ADMISSION_QUEUE_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "verbena/rpc/admission.h"
#include "verbena/rpc/server/admission_pace.h"
#include "verbena/rpc/server/queued_call.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/intrusive_list.h"
#include "verbena/transport/coro/scheduler.h"

namespace verbena::internal {

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

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_ADMISSION_QUEUE_H_
