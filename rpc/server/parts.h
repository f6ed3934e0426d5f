// What a server's call has beside its messages: CallParts; with CarriedContext and Kept, for the
// parts that only some calls have.
//
// Part of a ServerCall, on its executor's thread. The handler's ServerContext, and the run of a
// deduplicated call, know these and not the call.

#ifndef VERBENA_RPC_SERVER_PARTS_H_
#define VERBENA_RPC_SERVER_PARTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/call/bulk_format.h"
#include "verbena/rpc/call/context_block.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/rpc/server/call_link.h"
#include "verbena/rpc/server/landings.h"
#include "verbena/rpc/server/payload.h"
#include "verbena/rpc/server/request.h"
#include "verbena/rpc/server/served_stream.h"
#include "verbena/rpc/server/state.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/coro/sync.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

struct KeptResult;

// CarriedContext: what a server's call carries beside its messages: the request's context block,
// the trailing metadata of its answer, the state of a deduplicated call, and the changes of files
// that the handler's awaits have left.
//
// Part of a ServerCall, on its executor's thread. Made when a call first has one of these, and kept
// for later calls; a call that has neither pays nothing.
class CarriedContext {
 public:
  // The state of a call with a name.
  struct Once {
    // The handler runs for all requests with the name: neither the end of the link nor a CANCEL
    // reaches it.
    bool outlives_link = false;
    // Meanwhile its caller has given up.
    bool given_up = false;
    // The outcome of the call, if it fails; unset: that of a call without a name. A call whose kept
    // result is good fails only if its answer cannot be brought: then a further attempt gets it.
    std::optional<Outcome> outcome = {};
    size_t trailing_before = 0;  // entries of the answer's metadata before the handler
    // The pieces of the response's payload, if it may be kept: memory that the table counts.
    std::string written = {};
    size_t written_bytes = 0;
    bool lacks_room = false;  // for a piece, so the result is not kept
  };
  // The changes of files that the handler's awaits have left.
  struct LeftChanges {
    uint32_t count = 0;
    Event ended = {};  // the last of them
    // The result of a deduplicated call whose run has ended, until the table hears of it: when the
    // last of the changes has ended. Null otherwise.
    std::shared_ptr<const KeptResult> result = {};
  };

  // The request's block; null if it has none.
  const CallContext* incoming() const {
    return in_use_ && state_->incoming ? &*state_->incoming : nullptr;
  }
  // Its metadata, which interceptors may change.
  Metadata& incoming_metadata() {
    State& state = Make();
    if (!state.incoming) state.incoming.emplace();
    return state.incoming->metadata;
  }
  // The block has come at `now`.
  void SetIncoming(CallContext&& incoming, TimePoint now) {
    State& state = Make();
    state.incoming.emplace(std::move(incoming));
    state.came = now;
  }

  // The name of a deduplicated call, until DropIncoming(); null if it has none.
  const DedupeName* name() const {
    const CallContext* block = incoming();
    return block != nullptr && block->dedupe ? &*block->dedupe : nullptr;
  }
  // When the name came. Precondition: name() is not null, here and below.
  TimePoint came() const { return state_->came; }
  // The name tells no highest number any more.
  void ForgetHighest() { state_->incoming->dedupe->highest = 0; }
  // The attempts that the request names; null if there are none.
  const std::vector<EarlierAttempt>* earlier() const {
    const CallContext* block = incoming();
    return block != nullptr && !block->earlier.empty() ? &block->earlier : nullptr;
  }
  // Set for a moment when the call is over.
  Event& ended() {
    Make().is_awaited = true;
    return state_->ended;
  }
  Once& once() { return Make().once; }
  LeftChanges& left_changes() { return Make().left_changes; }
  // Whether some have not ended.
  bool has_left_changes() const { return in_use_ && state_->left_changes.count > 0; }
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

  // The handler has ended: frees the request's block, which the response does not need.
  void DropIncoming() {
    if (in_use_) [[unlikely]]
      ResetIncoming();
  }
  // The call is over, and has dropped the request's block.
  void Clear() {
    if (!std::exchange(in_use_, false)) return;
    VERBENA_DCHECK(state_->left_changes.count == 0 && state_->left_changes.result == nullptr)
        << state_->left_changes.count << " changes that the call has left go on";
    state_->outgoing.metadata = {};
    state_->once = {};
    if (std::exchange(state_->is_awaited, false)) [[unlikely]]
      TellEnd();
  }
  // The request or the answer has a block, or may get one.
  bool in_use() const { return in_use_; }

 private:
  struct State {
    std::optional<CallContext> incoming;
    TimePoint came{};  // `incoming`
    CallContext outgoing;
    Once once;
    LeftChanges left_changes;
    Event ended;
    bool is_awaited = false;  // its end
  };
  // Out of line to keep the hot path small.
  [[gnu::noinline]] void ResetIncoming() { state_->incoming.reset(); }
  [[gnu::cold, gnu::noinline]] void TellEnd() {
    state_->ended.Set();
    state_->ended.Reset();
  }
  State& Make() {
    if (state_ == nullptr) state_ = std::make_unique<State>();
    in_use_ = true;
    return *state_;
  }

  std::unique_ptr<State> state_;
  bool in_use_ = false;
};

// A part that only some calls have: made when a call first has one, and kept for later calls.
template <typename T>
class Kept {
 public:
  // This call's; null if it has none.
  T* get() const { return in_use_ ? kept_.get() : nullptr; }
  // For this call, which has none yet.
  T& Make() {
    if (kept_ == nullptr) kept_ = std::make_unique<T>();
    in_use_ = true;
    return *kept_;
  }
  // The call is over.
  void Clear() {
    if (!std::exchange(in_use_, false)) return;
    kept_->Clear();
  }
  bool in_use() const { return in_use_; }

 private:
  std::unique_ptr<T> kept_;
  bool in_use_ = false;
};

// How a call has failed; `code` is 0 if it has not.
struct CallFailure {
  uint8_t code = 0;  // an absl::StatusCode
  Outcome outcome = Outcome::kNotExecuted;
};

// The state of a call between its request and its response.
struct CallParts {
  explicit CallParts(ServerState& its_state) : state(its_state) {}

  // Bulk, context or a stream, which few calls have: a path of their own leaves them out.
  bool in_use() const { return bulk.in_use() || carried.in_use() || stream.in_use(); }
  // This call's ServerBulk, made now if there is none. Valid while the call's context lives.
  ServerBulk& Bulk();
  void BeginBulk(const RequestBulk& header, UsedGrant landing, const char* in_frame) {
    bulk.Make().Begin(state, *link, id, deadline, header, std::move(landing), in_frame);
  }
  void BeginStream(const IncomingRequest& request, const MethodDescriptor& method);
  // Something of the request has still to come.
  bool AwaitsRequest() const {
    return (bulk.in_use() && bulk.get()->request().fetches()) ||
           (stream.in_use() && (stream.get()->expects_context() || stream.get()->request_apart()));
  }
  // WriteResponsePayload() of a deduplicated call: also keeps `part` for those that repeat it.
  Task<absl::Status> WriteKept(BufferView part);
  // The run of a call with a name has ended with `result`. Tells the table now, or when the last
  // change of a file that the run has left has ended. So no repetition runs beside such a change.
  void EndNamedRun(const std::shared_ptr<const KeptResult>& result);
  // The response says so, or would.
  void NoteFailure(absl::StatusCode code, Outcome outcome) {
    failure = {.code = static_cast<uint8_t>(code), .outcome = outcome};
  }
  // The link was lost before the response: nobody hears how the call ended.
  void NoteUnheard() { NoteFailure(absl::StatusCode::kCancelled, Outcome::kMaybeExecuted); }
  // Leaves `failure`, which is for whoever counts the call afterwards.
  void Clear() {
    bulk.Clear();
    carried.Clear();
    stream.Clear();
  }

  ServerState& state;
  CallLink* link = nullptr;  // null: no call
  CallId id;
  TimePoint deadline = kNever;
  CallFailure failure;
  Kept<ServerBulk> bulk;
  CarriedContext carried;
  Kept<ServedStream> stream;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_PARTS_H_
