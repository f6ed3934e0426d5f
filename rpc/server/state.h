// ServerState: what all calls of a server on one executor share: the server's limits, admission,
// the memory that calls hold, and counts.
//
// Owned by the executor's ServerShard, which outlives its calls; used on its thread.

#ifndef VERBENA_RPC_SERVER_STATE_H_
#define VERBENA_RPC_SERVER_STATE_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "verbena/rpc/call/allocate.h"
#include "verbena/rpc/call/context_block.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/server/admission.h"
#include "verbena/rpc/server/backlog.h"
#include "verbena/rpc/server/clients.h"
#include "verbena/rpc/server/method_table.h"
#include "verbena/rpc/shard/call_counts.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/connect/peer.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/sync.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/link/limits.h"

namespace verbena::internal {

class DedupeTable;
class Endpoint;

// EarlierAttempts: ends attempts of calls that came over links which their clients have lost, on
// whichever executor of a server they run.
//
// The server's, for all executors; on the thread of the executor whose call asks.
class EarlierAttempts {
 public:
  // Closes the link that `attempt` came over, which must be one of `client`, gives the attempt up,
  // and waits until nothing of it goes on. An unknown link, or one of another client, has no call
  // left. Not OK if the caller's scope is cancelled.
  virtual Task<absl::Status> End(const RuntimeId& client, EarlierAttempt attempt) = 0;

 protected:
  ~EarlierAttempts() = default;
};

// What a server allows on each executor, derived from its ServerOptions and the runtime's limits.
struct ServerLimits {
  uint32_t max_concurrent_calls = 0;
  ClientBounds client;
  ClientBounds source;           // whose address names a host
  ClientBounds nameless_source;  // that stands for all other clients
  Duration memory_wait{};
  Duration response_grace{};
  size_t max_metadata_bytes = 0;
  std::vector<std::shared_ptr<ServerInterceptor>> interceptors;
  AdmissionOptions admission;
  // One for all executors, which it outlives; never null.
  DedupeTable* dedupe = nullptr;
  // The same.
  EarlierAttempts* earlier_attempts = nullptr;
  // The same: set when Server::Shutdown() begins, before any executor hears of it.
  const std::atomic<bool>* leaves = nullptr;
};

ServerLimits LimitsOf(const ServerOptions& options, const LinkLimits& link, DedupeTable& dedupe,
                      EarlierAttempts& earlier_attempts);

// The error that the caller of `method` gets whose handler returned an empty Task.
[[gnu::cold, gnu::noinline]] absl::Status NoTask(const char* method);

class ServerState {
 public:
  // All outlive it.
  ServerState(Shard& shard, const MethodTable& methods, const ServerLimits& limits);

  Executor& executor() const { return executor_; }
  const MethodTable& methods() const { return methods_; }
  const ServerLimits& limits() const { return limits_; }
  // Set when the server's shutdown begins: clients hear of it, and handlers may.
  Event& shutdown_begins() { return shutdown_begins_; }
  // Null if the server's options set no bounds for it.
  Admission* admission() const { return admission_.get(); }
  // Calls that wait since the executor lags.
  CallBacklog& backlog() { return backlog_; }
  // A call may have to wait for its turn, in the queue of admission() or in backlog().
  bool may_hold() const { return backlog_.may_hold(); }
  // When a call with a deadline has come: the turn's time. One turn may bring any number of such
  // calls, each of which takes long: one in kCallsPerLook looks at the clock.
  TimePoint ArrivalTime() {
    if (--until_look_ == 0) [[unlikely]]
      Look();
    return executor_.now();
  }
  // What the executor counts; null if the runtime counts no calls.
  ExecutorCounts* executor_counts() const { return shard_.counts(); }
  // On the executor, before the first call: hears of its lag. May be called again.
  void WatchLag();
  // Refuses all calls that wait for their turn.
  void RefuseWaiting(RefusalReason reason);
  // On the executor, before this is destroyed. Precondition: no call waits.
  void Stop();
  // An endpoint that is in service; nullptr: none is.
  const Endpoint* AnyEndpoint() const;

  // --- memory

  // The holders of the receive budget and of the send budget. Calls count there what they hold.
  MemoryHolders& receive_holders() { return *receive_; }
  const std::shared_ptr<MemoryHolders>& shared_receive_holders() const { return receive_; }
  MemoryHolders& send_holders() { return send_; }
  // A wait for send memory, for a call that ends at `deadline`.
  MemoryWait SendWait(TimePoint deadline) {
    return {.deadline = deadline,
            .longest = limits_.memory_wait,
            .holders = &send_,
            .refused = &counts_.memory_refused};
  }
  // The same for receive memory. `listener` outlives the wait.
  MemoryWait ReceiveWait(TimePoint deadline, ShortageListener& listener) {
    return {.deadline = deadline,
            .longest = limits_.memory_wait,
            .holders = receive_.get(),
            .listener = &listener,
            .refused = &counts_.memory_refused};
  }
  // The bytes of landings that are granted ahead. The links count them (landings.h).
  size_t granted_bytes() const { return receive_->grants; }

  // --- refusals

  // Counts a refusal whose response is a failure; returns `reason`.
  RefusalReason CountRefusal(RefusalReason reason) {
    NoteRefused(reason);
    NoteFailure();
    return reason;
  }
  // For a call whose response counts as a failure by itself.
  void NoteRefused(RefusalReason reason);
  // The Status of a response that refuses a call for that reason, and the same as a body.
  const absl::Status& RefusalStatus(RefusalReason reason) const {
    return refusals_[static_cast<size_t>(reason)];
  }
  const std::string& RefusalBody(RefusalReason reason) const {
    return refusal_bodies_[static_cast<size_t>(reason)];
  }

  // --- counts

  // A call has begun.
  void NoteStarted() { ++counts_.calls; }
  // A call that was counted waits instead, and is counted when it begins.
  void NoteHeld() { --counts_.calls; }
  // A call that waited for its turn has ended without it.
  void NoteGivenUp() { ++counts_.given_up; }
  void NoteFailure() { ++counts_.failures; }
  void NotePayloadWritten() { ++counts_.payloads_written; }
  // The error that the caller of `method` gets for the exception that is being handled.
  [[gnu::cold, gnu::noinline]] absl::Status Thrown(const char* method);
  // Set when no call is admitted any more.
  void NoteDraining() { draining_ = true; }
  bool draining() const { return draining_; }
  // `ended`, or a refusal if the end of a shutdown's grace has cancelled a call that has not begun:
  // its client may try another server.
  const absl::Status& UnlessLeft(const absl::Status& ended, const CancelScope& cancel) const;
  // Those of this executor's calls, but for idle_calls and by_handlers.
  ServerStats stats() const;

 private:
  // As many as a group of frames that leaves early.
  static constexpr uint32_t kCallsPerLook = 32;

  [[gnu::cold, gnu::noinline]] void Look();
  // The handler of `method` threw `what`.
  void LogThrown(const char* method, const char* what);

  Shard& shard_;
  Executor& executor_;
  const MethodTable& methods_;
  const ServerLimits limits_;
  const std::array<absl::Status, kRefusalReasons> refusals_;
  const std::array<std::string, kRefusalReasons> refusal_bodies_;  // encoded
  // Landings may outlive this, and count in it until then.
  const std::shared_ptr<MemoryHolders> receive_ = std::make_shared<MemoryHolders>();
  MemoryHolders send_;
  ServerStats counts_;
  Event shutdown_begins_;
  bool draining_ = false;
  ThrottledLog thrown_{LogComponent::kServer, {.lines = 1, .interval = std::chrono::seconds(10)}};
  const std::unique_ptr<Admission> admission_;
  CallBacklog backlog_;
  uint32_t until_look_ = kCallsPerLook;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_STATE_H_
