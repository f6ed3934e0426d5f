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
#include "verbena/rpc/call/context_block.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/rpc/dedupe.h"
#include "verbena/rpc/detail/message.h"
#include "verbena/rpc/server/admission.h"
#include "verbena/rpc/server/call_link.h"
#include "verbena/rpc/server/clients.h"
#include "verbena/rpc/server/landings.h"
#include "verbena/rpc/server/method_table.h"
#include "verbena/rpc/server/parts.h"
#include "verbena/rpc/server/payload.h"
#include "verbena/rpc/server/request.h"
#include "verbena/rpc/server/response.h"
#include "verbena/rpc/server/served_stream.h"
#include "verbena/rpc/server/state.h"
#include "verbena/rpc/service.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/sync.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

class CallPool;

// A failure that does not fit a frame, while the client is asked for memory for it.
struct LargeFailure {
  absl::Status status;
  Outcome outcome;
  std::unique_ptr<MessageLite> body;  // the status as it travels
};

// ServerCall: one call that a server runs, from its request frame to its response.
//
// Starts the handler (behind what ServerBulk fetches for it), cancels it, and hands what it made to
// ServerResponse. Pooled per method and executor with its messages, so that a call in steady state
// allocates nothing. Owned by its CallPool while it is pooled, and by itself while it runs; on
// that executor's thread. The link may be lost while the handler runs: the handler is cancelled and
// runs to its end, and its response goes nowhere.
class ServerCall final : public IntrusiveNode<ServerCall>,
                         public QueuedCall,
                         private TaskListener,
                         private Timer,
                         private ServerResponse::Listener {
 public:
  // Both outlive it.
  ServerCall(ServerState& state, CallPool& pool, int method_index);
  ~ServerCall() override;

  // Parses the request's message and runs the handler up to its first wait; or lets the call wait
  // for its turn, if calls do. `landing` is what was granted for the request's payload, if
  // anything.
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
  // No response can be sent any more. Ends the call if the response was all that was left of it.
  void OnLinkDown();

  CallId id() const { return parts_.id; }
  int method_index() const { return entry_.index; }
  const char* method_name() const { return entry_.method->descriptor->full_name; }
  // The handler has begun and not ended; after that only the response is left to be sent.
  bool running() const { return context_.has_value() && step_ != Step::kQueued; }

 private:
  enum class Step : uint8_t {
    kHandler,        // it runs, or has ended
    kQueued,         // the call waits for its turn
    kFetch,          // the handler has not started
    kIntercept,      // likewise: interceptors run before it
    kAskForLanding,  // the handler has ended
    kSendReply,      // the handler has ended; the reply is a message of the stream
  };

  void RunQueued() override;
  void RefuseQueued(RefusalReason reason) override;
  void OnTaskDone() override;
  void OnTimer() override;  // the deadline
  void OnResponseSent() override { Finish(); }

  [[gnu::noinline]] void StartWithParts(IncomingRequest& request, UsedGrant& landing);
  void SetCall(CallLink& call_link, CallId id, uint64_t time_left_us);
  // For a call without parts.
  void StartPlainly(std::string_view message);
  // Makes the handler's context, and begins to count its time.
  void BeginContext();
  void StartTimer();
  void StopTimer();
  // `apart`: the request comes as a message of the stream.
  void Launch(bool apart);
  // The same when the call's turn has come, on a server with an Admission.
  [[gnu::noinline]] void AwaitTurn(bool apart);
  // The handler has ended: another may run while this call's response waits for its client.
  [[gnu::noinline]] void EndTurn();
  void RunHandler();
  Task<absl::Status> FetchAndRun();
  // The handler's Task, behind the interceptors. Empty if the handler returns none.
  VERBENA_CORO_WRAPPER Task<absl::Status> Invoke();
  VERBENA_CORO_WRAPPER Task<absl::Status> InvokeHandler();
  VERBENA_CORO_WRAPPER [[gnu::noinline]] Task<absl::Status> InvokeNamed();
  class Chain;
  [[gnu::noinline]] Task<absl::Status> RunIntercepted();
  // Reads a context block that did not come in the request's frame. A failure ends the call; a
  // malformed block, its link too.
  absl::Status TakeContext(std::string_view block);
  void SetTrace();
  // For a stream whose context comes beside its messages, or whose request comes as one of them.
  Task<absl::Status> ReadAndRun(bool request_apart);
  Task<absl::Status> RunFetched();
  Task<absl::Status> SendReply();
  // The handler has ended well.
  void Complete();
  // The same for a call without parts, whose reply fits a frame.
  void ReplyInFrame(size_t reply_bytes);
  [[gnu::noinline]] void CompleteWithParts(size_t reply_bytes);
  // A task has ended that is not the handler's, or not well.
  [[gnu::noinline]] void EndTask(const absl::Status& ended, Outcome outcome);
  void Respond(const absl::Status& status, Outcome outcome);
  // For a call without parts.
  void RespondPlainly(const absl::Status& status, Outcome outcome);
  [[gnu::noinline]] void RespondWithParts(const absl::Status& handlers, Outcome outcome);
  void Finish();
  // The same for a call without parts, whose response left at once.
  void FinishReplied();
  // Ends the call's place at Admission. False if it has none of its own.
  [[gnu::noinline]] bool ReleasePlace();

  // Asks the client for memory for a failure that does not fit a frame. False if there is no need,
  // or no way.
  [[gnu::cold, gnu::noinline]] bool AskForFailure(const absl::Status& status, Outcome outcome);
  // The client has answered, or `asked` says why not.
  [[gnu::cold, gnu::noinline]] void RespondLargeFailure(const absl::Status& asked);
  // The handler and all that it had of the call are gone. False, and the call is over, if the link
  // is. The second also begins the response of a call with parts.
  bool EndHandler();
  bool BeginResponse();

  // Rare paths are out of line to keep the hot path small.
  [[gnu::noinline]] void CompleteWithBulk(size_t reply_bytes);
  [[gnu::noinline]] void EndBulkRequest();
  [[gnu::noinline]] void BeginStream(const IncomingRequest& request);
  // How the call ends, if its handler says `status`.
  [[gnu::noinline]] absl::Status EndStream(const absl::Status& status);
  [[gnu::cold, gnu::noinline]] void DropFailedReply();
  // Whether the method takes a request with such a payload, and this server one of its size.
  absl::Status CheckBulk() const;
  [[gnu::cold, gnu::noinline]] absl::Status NotParsed() const;

  CallPool& pool_;
  const MethodTable::Entry& entry_;
  CallMessages messages_;
  ServerResponse response_;

  // State of the current call.
  CallParts parts_;
  std::optional<CancelScope> cancel_;
  std::optional<ServerContext> context_;
  Task<absl::Status> task_;
  bool timer_running_ = false;
  Step step_ = Step::kHandler;
  bool request_apart_ = false;  // while it waits for its turn
  std::unique_ptr<LargeFailure> failure_;
};

// The part of a request by which its call is admitted.
struct CallOffer {
  uint16_t method = 0;
  Streams streams = Streams::kNone;
  Priority priority = Priority::kNormal;
  // Bytes of its payload, and of a message that does not fit its frame: a peer's claim. 0 if
  // CheckRequestSize() fails.
  uint64_t pinned_bytes = 0;
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
  // nullptr, and `reason`, which is counted, if the call is refused. If Admission decides,
  // ServerState::NoteStarted() follows when the call's turn has come.
  [[gnu::noinline]] ServerCall* Admit(const CallOffer& offer, ServerClient& client,
                                      RefusalReason& reason);
  // The call has ended: keeps it, or destroys it if there are enough. Nothing uses it afterwards.
  void Recycle(ServerCall& call) {
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

 private:
  // Admit() for a server with an Admission.
  ServerCall* AdmitGuarded(const CallOffer& offer, ServerClient& client, RefusalReason& reason);
  // Why the first Admit() just refused, counted.
  [[gnu::cold, gnu::noinline]] RefusalReason Refusal(uint16_t method, Streams streams,
                                                     const ServerClient& client);
  [[gnu::cold, gnu::noinline]] ServerCall* Make(int method_index);
  // A call that is admitted.
  ServerCall* Take(int method_index) {
    ++active_;
    if (kept_[method_index].empty()) return Make(method_index);
    ServerCall* call = kept_[method_index].PopBack();
    UnpoisonMemory(call, sizeof(*call));
    VERBENA_DCHECK(call->method_index() == method_index) << call->method_index();
    return call;
  }
  // Calls that count in max_concurrent_calls.
  uint32_t bounded_calls() const;

  ServerState& state_;
  // max_concurrent_calls, or 0 if Admission decides.
  const uint32_t max_at_once_;
  uint32_t active_ = 0;
  Event idle_;  // no calls, while draining
  // By method, owned; what they hold is poisoned. A call that runs belongs to itself, until
  // Recycle().
  std::vector<BoundedVector<ServerCall*>> kept_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_CALL_H_
