// AdmissionQueue: calls that have arrived at one executor and wait for their turn.
//
// Each turn of the executor starts a few: one if handlers take long, more if they are short, so
// that the executor polls about every kTurnSlice. Calls of three classes wait apart, and in each
// class the clients take turns. Control goes first, but of four calls in a row one is another, and
// of eight that are normal or background one is background, so no class starves.
//
// A call is refused when it arrives if the calls ahead of it, at the present pace, would take
// longer than the longest wait; so most calls that cannot be served cost no more than a look. A
// call that has waited that long leaves: a timer watches the oldest.
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
#include "verbena/rpc/server/queued_call.h"
#include "verbena/transport/coro/clock.h"
#include "verbena/transport/coro/intrusive_list.h"
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
  uint32_t Budget() const;
  uint64_t CallsAhead(const ClientQueue& client, CallClass its_class) const;
  // The next call, which has left the queue; nullptr if none may run.
  QueuedCall* Pick();
  QueuedCall* PickFrom(CallClass its_class);
  std::optional<CallClass> NextClass() const;
  bool MayRun(CallClass its_class) const;
  void NoteClass(CallClass its_class);
  void MeasurePace(TimePoint now);
  // Lets the flow take part if its client may run a call.
  void Place(CallFlow& flow);
  // The source runs as many calls as it may.
  bool IsFull(const SourceQueue& source) const;
  // Lets a flow that was parked take part, if its source may run a call: when one has ended, or a
  // call has left whose flow may have had that place.
  void Unpark(SourceQueue& source);
  CallFlow& FlowOf(const QueuedCall& call) const;
  void Unlink(QueuedCall& call);
  void Count(QueuedCall& call);

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
  // By class: calls that wait, flows that have some, and the flows that take turns.
  std::array<uint32_t, kCallClasses> queued_{};
  std::array<uint32_t, kCallClasses> flows_{};
  std::array<IntrusiveList<CallFlow>, kCallClasses> turns_;
  IntrusiveList<AgingCall> by_age_;
  uint32_t control_in_a_row_ = 0;
  uint32_t normal_in_a_row_ = 0;
  bool timer_running_ = false;

  // The time from one start to the next while calls wait, as an average.
  Duration pace_{};
  bool measured_ = false;    // ever
  bool pace_holds_ = false;  // calls have waited ever since
  bool measuring_ = false;   // calls waited after the last turn that started some
  TimePoint last_turn_{};    // its time, and how many it started
  uint32_t last_started_ = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_ADMISSION_QUEUE_H_
