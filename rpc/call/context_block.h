// Context blocks: the bytes at the start of a frame's body that hold a call's context, or a
// response's trailing metadata. proto/WIRE.md is the specification.
//
// The body of a frame with kFrameHasContext begins with one. Only the Parse functions read a peer's
// bytes. They are pure functions, which take any bytes and name what is wrong.

#ifndef VERBENA_RPC_CALL_CONTEXT_BLOCK_H_
#define VERBENA_RPC_CALL_CONTEXT_BLOCK_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/call.h"
#include "verbena/transport/coro/trace.h"

namespace verbena::internal {

// The most bytes that a block takes without its metadata.
inline constexpr size_t kMaxContextFixedBytes =
    8 + 28 + TraceContext::kMaxStateBytes + 24 + 40 + 8 + 72;
inline constexpr size_t kMaxContextBytes = kMaxContextFixedBytes + Metadata::kMaxBytes;
// A larger block of a request travels one-sided.
inline constexpr size_t kMaxContextInFrame = 1024;
// The bytes of a ContextHeader, in the frame of a request whose block travels one-sided.
inline constexpr size_t kContextHeaderBytes = 8;

// The name of a deduplicated call, as each attempt carries it.
struct DedupeName {
  // The value of `earlier` if the call may have run at several servers, or nobody knows where.
  static constexpr uint64_t kSeveral = ~uint64_t{0};

  // The id's client is a channel on one executor. The id's number is at least 1.
  RequestId id;
  // The client wants no more results of calls whose number is below this. At most the id's number.
  uint64_t acknowledged_below = 0;
  // The incarnation of the server at which an earlier attempt may have run; 0 if none may have.
  uint64_t earlier = 0;
  // The highest number that the client had given when this request left it; 0 if that is not known.
  uint64_t highest = 0;

  bool operator==(const DedupeName&) const = default;
};

// EarlierAttempt: an attempt of the same call that may still run at the server, over a link that
// the client has lost. The server ends it first.
struct EarlierAttempt {
  // The most that a request names.
  static constexpr size_t kMost = 4;

  uint64_t link = 0;  // the server's end of it, by Link::identity()
  uint16_t executor = 0;
  uint16_t slot = 0;
  uint32_t generation = 0;

  bool operator==(const EarlierAttempt&) const = default;
};

struct CallContext;

// Hears that a request with a context block is given to a link, whose server has that incarnation.
class ContextSentListener {
 public:
  // May change values of `context`, the block's, but not the block's length. A block that travels
  // has left with its former values.
  virtual void OnContextSent(CallContext& context, uint64_t incarnation) = 0;

 protected:
  ~ContextSentListener() = default;
};

struct CallContext {
  Priority priority = Priority::kNormal;
  // Whether the block has dedupe->highest.
  bool tells_highest = false;
  std::optional<RequestId> request_id = {};
  std::optional<TraceContext> trace = {};
  Metadata metadata = {};
  std::optional<DedupeName> dedupe = {};
  // At most EarlierAttempt::kMost.
  std::vector<EarlierAttempt> earlier = {};
  // Does not travel. Set at the client alone; null: nobody listens.
  ContextSentListener* sent_listener = nullptr;

  bool empty() const {
    return priority == Priority::kNormal && !request_id && !trace && !dedupe && earlier.empty() &&
           metadata.empty();
  }
  // Whether it has what no stream has.
  bool is_of_unary_call() const { return dedupe.has_value() || !earlier.empty(); }
  size_t encoded_bytes() const;
  void Encode(char* to) const;
};

// The beginning of a block.
struct ContextHeader {
  size_t block_bytes = 0;
  // The block lies at the start of the message, which travels one-sided; the frame has this header
  // alone.
  bool travels = false;

  // The bytes that a frame's body begins with.
  size_t in_frame() const { return travels ? kContextHeaderBytes : block_bytes; }
};

// For a block that travels one-sided.
void EncodeTravellingContext(size_t block_bytes, char* to);

// Reads the beginning of a body of `bytes`. INVALID_ARGUMENT if it is too short for the block, a
// reserved bit is not 0, or the block is larger than kMaxContextBytes.
absl::StatusOr<ContextHeader> ParseContextHeader(const char* body, size_t bytes);
// Reads a block of exactly these bytes into `context`, which must be new. INVALID_ARGUMENT if the
// block is malformed; `context` then has no meaning.
absl::Status ParseContext(const char* block, size_t bytes, CallContext& context);
// Reads the block of a response, which holds metadata and nothing else.
absl::StatusOr<Metadata> ParseTrailingMetadata(const char* block, size_t bytes);
// The violation of a stream whose block has the name of a deduplicated call, or earlier attempts.
[[gnu::cold]] absl::Status NameOfStream();

// ContextFeatures: the parts of a block that both sides of its link must have announced.
struct ContextFeatures {
  bool names_attempts = false;  // CallContext::earlier
  bool tells_highest = false;   // DedupeName::highest
};
// Returns the violation of a context that has a part which is not among `agreed`.
[[gnu::cold]] absl::Status NotAnnounced(const CallContext& context, const ContextFeatures& agreed);
// INVALID_ARGUMENT if `context` has a part that is not among `agreed`.
inline absl::Status CheckAnnounced(const CallContext& context, const ContextFeatures& agreed) {
  const bool announced = (agreed.names_attempts || context.earlier.empty()) &&
                         (agreed.tells_highest || !context.tells_highest);
  return announced ? absl::OkStatus() : NotAnnounced(context, agreed);
}

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CALL_CONTEXT_BLOCK_H_
