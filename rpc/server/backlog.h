// CallBacklog: calls that came while their executor lagged, and wait for their turn.
//
// Part of a ServerState, on its executor's thread. A call that waits counts among those that run,
// so ServerOptions::max_concurrent_calls bounds all of them, max_calls_per_client those of a client
// and max_calls_per_source those of a source.

#ifndef VERBENA_RPC_SERVER_BACKLOG_H_
#define VERBENA_RPC_SERVER_BACKLOG_H_

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "verbena/rpc/server/admission.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/lag.h"

namespace verbena::internal {

// CallBacklog: lets the calls of an executor that lags (lag.h) wait until it has seen what came
// behind them.
//
// A server that is slower than its clients, or that stood still, finds requests whose callers have
// given up, and their CANCELs behind them. If it started each call as it reads it, it would serve
// none but the dead. So from the moment at which the executor lags, calls wait here. The executor
// polls on until its queues are empty; CANCELs, ends of links and deadlines take calls out. Then
// each turn polls everything and starts a few, until none waits. A turn that polls as much as the
// queues can hold starts calls, too: it has read each CANCEL that had come when it began. What came
// meanwhile waits for the next turn, as do the calls behind it.
//
// The sources take turns, and in each turn of a source the next of its clients has it, as in an
// AdmissionQueue: a client with many calls holds up nobody else. Of a client the newest call starts
// first: it has the most time left, and under a lasting overload it is the one whose caller still
// waits. Of eight of its starts one is its oldest's, so that calls without a deadline start, too.
// If no more calls wait than one turn starts, those of a client start in the order in which they
// came.
//
// Servers whose calls wait in an AdmissionQueue have no use for it. Allocates nothing.
class CallBacklog final : private LagListener, private FlushHook {
 public:
  // As many as one poll brings, so that the backlog shrinks while polls are full.
  static constexpr uint32_t kMaxStartsPerTurn = 32;
  // (start) A turn starts no further call once its starts have taken this long. The clock is read
  // behind each, so that none starts whose deadline has passed.
  static constexpr Duration kTurnSlice = std::chrono::milliseconds(1);
  static constexpr uint32_t kNewestInARow = 7;

  // `is_always_asked`: may_hold() is true even if the executor does not lag.
  CallBacklog(Executor& executor, bool is_always_asked);
  CallBacklog(const CallBacklog&) = delete;
  CallBacklog& operator=(const CallBacklog&) = delete;
  // Precondition: no call waits.
  ~CallBacklog() override;

  // Hears of the executor's lag from now on. May be called again.
  void Watch();
  // A call that comes now may have to wait: one load for calls that need not.
  bool may_hold() const { return may_hold_; }
  // A call that comes now waits.
  bool holds() const { return holds_; }
  // A call of `client`, which outlives it. Precondition: holds().
  void Push(QueuedCall& call, ClientQueue& client);
  // The call leaves by itself, as when it is cancelled. Precondition: it waits.
  void Remove(QueuedCall& call);
  // Refuses all that wait.
  void RefuseAll(RefusalReason reason);
  // The executor is about to end. Precondition: no call waits.
  void Stop();

  size_t waiting() const { return waiting_; }

 private:
  void OnLag() override;
  void Flush() override;  // a turn: polls on, and starts some
  void StartSome();
  // The call whose turn it is, which stays; null if none waits. The next turn is another client's.
  QueuedCall* Next(bool in_order);
  static CallFlow& FlowOf(const QueuedCall& call);
  void SetHolds(bool holds);

  Executor& executor_;
  const bool is_always_asked_;
  bool may_hold_;
  bool holds_ = false;
  size_t waiting_ = 0;
  uint64_t last_turn_ = 0;
  IntrusiveList<SourceFlow> turns_;  // sources of calls that wait
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_BACKLOG_H_
