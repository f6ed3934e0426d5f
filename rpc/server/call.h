// Calls of a server: ServerCall, and the pool of an executor's calls, CallPool.
//
// A CallPool owns calls while they are pooled, and each owns itself while it runs; on that
// executor's thread. The server's limits bound the calls that run.

#ifndef VERBENA_RPC_SERVER_CALL_H_
#define VERBENA_RPC_SERVER_CALL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/rpc/server/admission.h"
#include "verbena/rpc/server/call_link.h"
#include "verbena/rpc/server/clients.h"
#include "verbena/rpc/server/landings.h"
#include "verbena/rpc/server/method_table.h"
#include "verbena/rpc/server/parts.h"
#include "verbena/rpc/server/request.h"
#include "verbena/rpc/server/response.h"
#include "verbena/rpc/server/state.h"
#include "verbena/rpc/service.h"
#include "verbena/rpc/shard/call_counts.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/base/ticks.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/sync.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/transfers.h"
#include "verbena/transport/link/wire_format.h"

namespace verbena::internal {

class CallPool;
class Link;

// ServerCall: one call that a server runs, from its request frame to its response.
//
// Runs the handler, behind what comes before it; cancels it; and has ServerResponse send how it
// ended. Most calls have a message that is in their frame, and no interceptors: they take no
// coroutine but the handler's. Pooled per method and executor with its messages, so that a call in
// steady state allocates nothing. Owned by its CallPool while it is pooled, and by itself while it
// runs; on that executor's thread. The link may be lost while the handler runs: the handler is
// cancelled and runs to its end, and its response goes nowhere.
//
// The response says that nothing of the call goes on. So it waits for the changes of files that the
// handler's awaits have left, and the call keeps its slot until then. Requests that repeat a
// deduplicated call wait for these, too.
class ServerCall final : public IntrusiveNode<ServerCall>,
                         public QueuedCall,
                         private WorkOwner,
                         private Timer,
                         private ServerResponse::Listener {
 public:
  // Both outlive it.
  ServerCall(ServerState& state, CallPool& pool, int method_index);
  ~ServerCall() override;

  // Takes the request, and runs the handler up to its first wait; or lets the call wait for its
  // turn, if calls do. `landing` is what was granted for the request's payload, if anything.
  void Start(CallLink& call_link, IncomingRequest& request, UsedGrant& landing);
  // The same for a request whose frame holds its message and no more: the path of most calls.
  void StartInFrame(CallLink& call_link, const FrameHeader& frame, const char* body);
  // The memory that the response waits for has come.
  absl::Status OnLanding(const RemoteRange& landing);
  // A frame of the call's stream. A failed Status closes the link.
  absl::Status OnStreamFrame(const FrameHeader& frame, const char* body);
  // The server ends the call, or its link is lost.
  void Cancel(absl::StatusCode reason);
  // The caller gave up.
  void GiveUp(absl::StatusCode reason);
  // Waits until the call has ended, and nothing of it goes on. Returns the reason if the scope of
  // whoever waits is cancelled first.
  VERBENA_CORO_WRAPPER Task<absl::Status> Ended() { return WaitFor(parts_.carried.ended()); }
  // No response can be sent any more. Ends the call if the response was all that was left of it.
  void OnLinkDown();

  CallId id() const { return parts_.id; }
  // Whether its runtime counts calls.
  bool is_counted() const { return counts_ != nullptr; }
  // When its request was found, if so.
  Ticks arrived() const { return arrived_; }
  // If it is counted: the call is admitted, and its request was found at `arrived`.
  void NoteArrival(Ticks arrived) {
    arrived_ = arrived;
    counts_->begun.Add(1);
  }
  int method_index() const { return entry_.index; }
  const char* method_name() const { return method().full_name; }
  // The call waits neither for its turn nor to send its response. Changes that it has left may be
  // all that runs.
  bool running() const { return context_.has_value() && !QueuedCall::waits() && !behind_; }

 private:
  class Chain;

  const MethodDescriptor& method() const { return *entry_.method->descriptor; }

  // --- start: the request becomes the call's state
  void Begin(CallLink& call_link, CallId id, uint64_t time_left_us);
  // All of the request that has come. If this fails, the call ends with that.
  [[gnu::noinline]] absl::Status TakeRequest(IncomingRequest& request, UsedGrant& landing);
  [[gnu::cold, gnu::noinline]] absl::Status NotParsed() const;
  void SetTrace();
  // Makes what the handler runs in, and starts the timer of the deadline.
  void Prepare();
  // Runs the call, or lets it wait for its turn.
  [[gnu::noinline]] void Launch();
  // The same for a call that names earlier attempts, once nothing of these goes on.
  [[gnu::cold, gnu::noinline]] void LaunchBehindEarlier();
  // The wait for these has ended with `waited`.
  [[gnu::cold, gnu::noinline]] void EndBehind(const absl::Status& waited);
  // Runs the call, or lets it wait for its turn.
  void TakeTurn();
  // True if the call waits for its turn from now on.
  [[gnu::noinline]] bool Hold();
  // The call waits for its turn no more, and ends without it.
  void Leave();
  void RunQueued() override;
  void RefuseQueued(RefusalReason reason) override;

  // --- run: the handler, and what comes before it
  void Run();
  // Does what comes before the handler, and then runs it.
  Task<absl::Status> Serve();
  // Waits for what of the request has still to come.
  Task<absl::Status> FetchRequest();
  // Ends the earlier attempts that the request names, over links that its client has lost, and
  // waits until nothing of them goes on. Not OK if this call is cancelled first.
  Task<absl::Status> EndEarlier();
  // Reads a context block that did not come in the request's frame. A failure ends the call; a
  // malformed block, its link too.
  absl::Status ReadContext(std::string_view block);
  // The handler's Task, or that of a call with a name. Empty if the handler returns none.
  VERBENA_CORO_WRAPPER Task<absl::Status> InvokeHandler();
  // The same when Serve() has come so far. Never empty.
  VERBENA_CORO_WRAPPER Task<absl::Status> RunHandler();
  void OnTaskDone() override;
  uint64_t client() const override;
  void OnChangeLeft() override { ++parts_.carried.left_changes().count; }
  void OnLeftChangeEnded() override;
  // If changes that the handler has left go on: the handler ends once more, with `status`, when
  // they have ended. Returns whether that is so.
  bool AwaitLeftChanges(const absl::Status& status);
  // The handler is not there, or has no time left: its turn is over.
  [[gnu::cold, gnu::noinline]] void EndUnrun(CallEnding ending);
  void OnTimer() override;  // the deadline
  void StopTimer();
  // The handler has ended: another may run while this call's response waits for its client.
  void EndTurn();

  // --- respond: the ending travels to the client
  // The call has ended well.
  void Complete();
  // The same if there is more to the response than a reply that fits its frame.
  [[gnu::noinline]] void CompleteWithParts();
  // The handler has failed, or what goes ahead of the response has ended, well or badly.
  [[gnu::noinline]] void EndTask(const absl::Status& ended);
  // Asks the client for memory for a failure that does not fit a frame. False if there is no need,
  // or no way.
  [[gnu::cold, gnu::noinline]] bool AskForLanding(const CallEnding& failure);
  // `ahead` runs before the response, which then says `ending`.
  void RespondBehind(Task<absl::Status> ahead, CallEnding ending);
  void Respond(CallEnding ending);
  // How the call ends if its handler ended so.
  [[gnu::noinline]] CallEnding EndStream(CallEnding handlers);
  [[gnu::noinline]] void EndBulkRequest();
  // The handler and all that it had of the call are gone. Returns the link. If that is not open,
  // returns null, and the call is over.
  Link* EndHandler();
  void OnResponseSent() override { Finish(); }

  // --- finish: the call is the pool's again
  void Finish();
  // The same for a call without parts, whose response left at once.
  [[gnu::noinline]] void FinishReplied();
  // The call has ended as its parts say: counts it.
  [[gnu::noinline]] void CountEnd();
  [[gnu::cold, gnu::noinline]] CallTimes& CountFailure();
  [[gnu::noinline]] void CountPayloads();

  CallPool& pool_;
  const MethodTable::Entry& entry_;
  MethodCounts* const counts_;  // null: the runtime counts no calls
  Ticks arrived_ = 0;
  CallMessages messages_;
  CallParts parts_;
  ServerResponse response_;

  // State of the current call.
  std::optional<CancelScope> cancel_;
  std::optional<ServerContext> context_;
  Task<absl::Status> task_;
  // How the call ends, as far as is known. Until it has ended: the outcome that a failure would
  // have.
  CallEnding ending_;
  bool serves_;          // Serve() runs the call, since something comes before the handler
  bool behind_ = false;  // task_ ends earlier attempts, before the call takes its turn
  bool ahead_ = false;   // the handler has ended; task_ goes ahead of the response
  bool timer_running_ = false;
};

// CallPool: the calls of a server on one executor: those that run, and those that are kept, with
// their messages, for calls to come.
//
// The pool admits a request, or says why not. The ServerShard owns the pool, on its executor's
// thread. The pool is bounded by ServerOptions::max_concurrent_calls, or by Admission, and by
// kMaxIdleCalls.
class CallPool {
 public:
  // The most calls of one method that are kept. A burst of more leaves no more behind.
  static constexpr size_t kMaxIdleCalls = 1024;

  // `state` outlives it.
  explicit CallPool(ServerState& state);
  CallPool(const CallPool&) = delete;
  CallPool& operator=(const CallPool&) = delete;
  ~CallPool();

  // A call of the method with that number; nullptr when it is refused, or when the server's
  // Admission decides. `streams` is which sides send a stream, as the client says.
  ServerCall* Admit(uint16_t method, Streams streams, ServerClient& client) {
    const int index = state_.methods().IndexOf(method);
    if (index < 0 || state_.draining() || active_ >= max_at_once_ || client.full() ||
        state_.methods().entry(index).streams != streams) {
      return nullptr;
    }
    client.AddCall();
    state_.NoteStarted();
    return Take(index);
  }
  // The same for all of a request, over a link of these limits. nullptr, and `reason`, which is
  // counted, if the call is refused. If Admission decides, ServerState::NoteStarted() follows when
  // the call's turn has come.
  [[gnu::noinline]] ServerCall* Admit(const IncomingRequest& request, const LinkLimits& limits,
                                      ServerClient& client, RefusalReason& reason);
  // A call of `call_link` has ended: gives back its place, its part of the bounds, and its slot.
  // Keeps the call, or destroys it if there are enough. Nothing uses it afterwards.
  void End(ServerCall& call, CallLink& call_link) {
    Admission* const admission = state_.admission();
    const bool has_control_place =
        admission != nullptr && admission->Release(call, call.method_index());
    if (!has_control_place) [[likely]]
      call_link.client().RemoveCall();
    call.IntrusiveNode<ServerCall>::Unlink();
    call_link.Remove(call.id().slot, call);
    BoundedVector<ServerCall*>& kept = kept_[call.method_index()];
    if (kept.size() >= kMaxIdleCalls) [[unlikely]] {
      delete &call;
    } else {
      kept.PushBack(&call);
      PoisonMemory(&call, sizeof(call));
    }
    VERBENA_CHECK(active_ > 0);
    if (--active_ == 0 && state_.draining()) idle_.Set();
  }

  // From now on no call is admitted.
  void Drain() { state_.NoteDraining(); }
  // Only after Drain().
  Task<absl::Status> WaitUntilIdle();
  // Calls that run, or wait for their turn.
  uint32_t active() const { return active_; }
  // Calls that are kept.
  size_t idle_calls() const;
  // Precondition: its calls are counted.
  ServedCalls& served() { return counts_->served; }

 private:
  // The second Admit(), which also counts what this refuses.
  ServerCall* TryAdmit(const IncomingRequest& request, const LinkLimits& limits,
                       ServerClient& client, RefusalReason& reason);
  // Admit() for a server with an Admission.
  ServerCall* AdmitGuarded(const IncomingRequest& request, const LinkLimits& limits,
                           ServerClient& client, RefusalReason& reason);
  bool TakesMetadata(const IncomingRequest& request) const;
  // A request of that method is refused, and will be answered so.
  [[gnu::cold, gnu::noinline]] void CountRefused(uint16_t method, RefusalReason reason);
  // Why the first Admit() just refused, counted.
  [[gnu::cold, gnu::noinline]] RefusalReason Refusal(uint16_t method, Streams streams,
                                                     const ServerClient& client);
  [[gnu::cold, gnu::noinline]] ServerCall* Make(int method_index);
  // A call that is admitted.
  ServerCall* Take(int method_index) {
    ++active_;
    ServerCall* const call =
        kept_[method_index].empty() ? Make(method_index) : TakeKept(method_index);
    if (call->is_counted()) call->NoteArrival(counts_->server.ticks().found());
    return call;
  }
  ServerCall* TakeKept(int method_index) {
    ServerCall* const call = kept_[method_index].PopBack();
    UnpoisonMemory(call, sizeof(*call));
    VERBENA_DCHECK(call->method_index() == method_index) << call->method_index();
    return call;
  }
  // Calls that count in max_concurrent_calls.
  uint32_t bounded_calls() const;

  ServerState& state_;
  // max_concurrent_calls, or 0 if Admission decides.
  const uint32_t max_at_once_;
  ExecutorCounts* const counts_;  // null: the runtime counts no calls
  uint32_t active_ = 0;
  Event idle_;  // no calls, while draining
  // By method, owned; what they hold is poisoned. A call that runs belongs to itself, until End().
  std::vector<BoundedVector<ServerCall*>> kept_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_CALL_H_
