// Calls of a server: ServerCall, the parts that only some calls have, CarriedContext and CallBulk,
// and the pool of an executor's calls, CallPool.
//
// A CallPool owns calls while they are pooled, and each owns itself while it runs; on that
// executor's thread. The server's limits bound the calls that run.

#ifndef VERBENA_RPC_SERVER_CALL_H_
#define VERBENA_RPC_SERVER_CALL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
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
#include "verbena/rpc/server/payload.h"
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

// A request's context block, as its frame has it: the block, or how many bytes of it travel
// one-sided.
struct IncomingContext {
  ContextHeader header;
  CallContext block;  // empty if it travels
};

// CarriedContext: what a server's call carries beside its messages: the request's context block,
// the trailing metadata of its answer, and the state of a deduplicated call.
//
// Part of a ServerCall, on its executor's thread. Made when a call first has either, and kept for
// later calls; a call that has neither pays nothing.
class CarriedContext {
 public:
  // The state of a call with a name.
  struct Once {
    // The handler runs for all requests with the name: neither the end of the link nor a CANCEL
    // reaches it.
    bool outlives_link = false;
    // Meanwhile its caller has given up.
    bool given_up = false;
    // The outcome of the call, if it fails; unset: that of a call without a name.
    std::optional<Outcome> outcome = {};
    size_t trailing_before = 0;  // entries of the answer's metadata before the handler
    // The pieces of the response's payload, if it may be kept: memory that the table counts.
    std::string written = {};
    size_t written_bytes = 0;
    bool lacks_room = false;  // for a piece, so the result is not kept
  };

  // The request's block; null if it has none.
  const CallContext* incoming() const { return in_use_ ? &state_->incoming : nullptr; }
  // Its metadata, which interceptors may change.
  Metadata& incoming_metadata() { return Make().incoming.metadata; }
  void SetIncoming(CallContext incoming) { Make().incoming = std::move(incoming); }

  // The name of a deduplicated call, until DropIncoming(); null if it has none.
  const DedupeName* name() const {
    return in_use_ && state_->incoming.dedupe ? &*state_->incoming.dedupe : nullptr;
  }
  Once& once() { return Make().once; }
  bool outlives_link() const { return in_use_ && state_->once.outlives_link; }
  // The outcome of a call that has failed, and is `outcome` without a name.
  Outcome OutcomeOr(Outcome outcome) const {
    return in_use_ ? state_->once.outcome.value_or(outcome) : outcome;
  }

  // The answer's block; null if it has none. All but the metadata is at its default.
  const CallContext* outgoing() const {
    return in_use_ && !state_->outgoing.metadata.empty() ? &state_->outgoing : nullptr;
  }
  Metadata& trailing() { return Make().outgoing.metadata; }
  // The bytes of the answer's block.
  size_t outgoing_bytes() const {
    const CallContext* block = outgoing();
    return block == nullptr ? 0 : block->encoded_bytes();
  }

  // The handler has ended: metadata does not wait with the response.
  void DropIncoming() {
    if (in_use_) state_->incoming = {};
  }
  // The call is over.
  void Clear() {
    if (!std::exchange(in_use_, false)) return;
    *state_ = {};
  }
  // The request or the answer has a block, or may get one.
  bool in_use() const { return in_use_; }

 private:
  struct State {
    CallContext incoming;
    CallContext outgoing;
    Once once;
  };
  State& Make() {
    if (state_ == nullptr) state_ = std::make_unique<State>();
    in_use_ = true;
    return *state_;
  }

  std::unique_ptr<State> state_;
  bool in_use_ = false;
};

class CallPool;
struct KeptResult;

// A request's payload: the header in its frame, the landing to which it was written, if any, and
// where it is in the frame, if it is there.
struct IncomingBulk {
  RequestBulk request;
  UsedGrant landing;
  const char* in_frame = nullptr;
};

// The one-sided part of a call: made when a call first has one, and kept for later calls.
class CallBulk {
 public:
  // This call's; null if it has none.
  ServerBulk* get() const { return in_use_ ? bulk_.get() : nullptr; }
  // For this call, which has none yet.
  ServerBulk& Make() {
    if (bulk_ == nullptr) bulk_ = std::make_unique<ServerBulk>();
    in_use_ = true;
    return *bulk_;
  }
  // The call is over.
  void Clear() {
    if (!std::exchange(in_use_, false)) return;
    bulk_->Clear();
  }
  bool in_use() const { return in_use_; }

 private:
  std::unique_ptr<ServerBulk> bulk_;
  bool in_use_ = false;
};

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

  // Parses the request and runs the handler up to its first wait; or lets the call wait for its
  // turn, if calls do. `bulk`, which `body` begins with, may be null; its landing is taken. So may
  // `context`, which lay ahead of `body`, and is taken.
  void Start(CallLink& call_link, CallId id, const FrameHeader& frame, const char* body,
             IncomingBulk* bulk, IncomingContext* context);
  // The same for a request whose frame holds its message and no more: the path of most calls.
  void StartInFrame(CallLink& call_link, CallId id, const FrameHeader& frame, const char* body);
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

  CallId id() const { return id_; }
  int method_index() const { return entry_.index; }
  const char* method_name() const { return entry_.method->descriptor->full_name; }
  // The handler has begun and not ended; after that only the response is left to be sent.
  bool running() const { return context_.has_value() && step_ != Step::kQueued; }

 private:
  friend ServerContext;
  friend StreamOf;

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

  // This call's ServerBulk, made now if there is none. Valid while the call's context lives.
  ServerBulk& Bulk();
  void BeginBulk(const RequestBulk& bulk, UsedGrant landing, const char* in_frame);
  // Bulk, context or a stream, which few calls have: a path of their own leaves them out.
  bool has_parts() const { return bulk_.in_use() || carried_.in_use() || stream_.in_use(); }
  [[gnu::noinline]] void StartWithParts(const FrameHeader& frame, const char* body,
                                        IncomingBulk* bulk, IncomingContext* context);
  void SetCall(CallLink& call_link, CallId id, const FrameHeader& frame);
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
  // For a call with a name: runs the handler, or finds its result.
  [[gnu::noinline]] Task<absl::Status> RunOnce();
  class RunningName;
  Task<absl::Status> RunNamed(RunningName& running);
  void EndNamed(RequestId id, const std::shared_ptr<const KeptResult>& result);
  // The same for a handler that was destroyed before it ended.
  void AbandonNamed(RequestId id);
  Task<absl::Status> AnswerFromStore(RunningName& running,
                                     absl::StatusOr<std::optional<DedupeResult>> stored);
  Task<absl::Status> AnswerWith(const KeptResult& result);
  std::shared_ptr<const KeptResult> ResultOf(const absl::Status& status, Outcome outcome);
  Task<absl::Status> WriteKept(BufferView part);
  // A named call's fingerprint is the CRC32C of its request and its payload, unless an interceptor
  // takes that. Continues it with the next slice of the payload, of which `done` bytes are in it;
  // false if that was the last one.
  bool ExtendFingerprint(uint32_t& fingerprint, size_t& done) const;
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
  // `ended`, or a refusal if the end of a shutdown's grace has cancelled a call that has not begun.
  const absl::Status& UnlessLeft(const absl::Status& ended) const;
  void Respond(const absl::Status& status, Outcome outcome);
  // For a call without parts.
  void RespondPlainly(const absl::Status& status, Outcome outcome);
  [[gnu::noinline]] void RespondWithParts(const absl::Status& handlers, Outcome outcome);
  void Finish();
  // The same for a call without parts, whose response left at once.
  void FinishReplied();
  // Ends the call's place at Admission. False if it has none of its own.
  [[gnu::noinline]] bool ReleasePlace();
  [[gnu::noinline]] void ClearParts();

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
  [[gnu::noinline]] void BeginStream(const FrameHeader& frame);
  // How the call ends, if its handler says `status`.
  [[gnu::noinline]] absl::Status EndStream(const absl::Status& status);
  [[gnu::cold, gnu::noinline]] void DropFailedReply();
  // Whether the method takes a request with such a payload, and this server one of its size.
  absl::Status CheckBulk() const;
  [[gnu::cold, gnu::noinline]] absl::Status NotParsed() const;
  [[gnu::cold, gnu::noinline]] absl::Status NoTask() const;
  // The error that the caller gets for the exception that is being handled.
  [[gnu::cold, gnu::noinline]] absl::Status Thrown() const;

  ServerState& state_;
  CallPool& pool_;
  const MethodTable::Entry& entry_;
  CallMessages messages_;
  ServerResponse response_;

  // State of the current call.
  CallLink* call_link_ = nullptr;
  CallId id_;
  std::optional<CancelScope> cancel_;
  std::optional<ServerContext> context_;
  Task<absl::Status> task_;
  TimePoint deadline_ = kNever;
  bool timer_running_ = false;
  CallBulk bulk_;
  CarriedContext carried_;
  CallStream stream_;
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
    if (index < 0 || draining_ || active_ >= max_at_once_ || client.full() ||
        state_.methods().entry(index).streams != streams) {
      return nullptr;
    }
    client.AddCall();
    state_.NoteStarted();
    return Take(index);
  }
  // The same if Admission decides. ServerState::NoteStarted() follows when the call's turn has
  // come. nullptr, and `reason`, which is counted, if the call is refused.
  [[gnu::noinline]] ServerCall* AdmitGuarded(const CallOffer& offer, ServerClient& client,
                                             RefusalReason& reason);
  // Why Admit() just refused, counted.
  [[gnu::cold, gnu::noinline]] RefusalReason Refusal(uint16_t method, Streams streams,
                                                     const ServerClient& client);
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
    if (--active_ == 0 && draining_) idle_.Set();
  }

  // From now on no call is admitted.
  void Drain() { draining_ = true; }
  bool draining() const { return draining_; }
  // Only after Drain().
  Task<absl::Status> WaitUntilIdle();
  // Calls that run, or wait for their turn.
  uint32_t active() const { return active_; }
  // Calls that are kept.
  size_t idle_calls() const;

 private:
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
  bool draining_ = false;
  Event idle_;  // no calls, while draining
  // By method, owned; what they hold is poisoned. A call that runs belongs to itself, until
  // Recycle().
  std::vector<BoundedVector<ServerCall*>> kept_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_CALL_H_
