// Payloads of a server's call: ServerBulk, with FetchedRequest for the request's and
// WrittenResponse for the response's.
//
// Part of a ServerCall, on its executor's thread, and empty again after each call. The bounds of
// the client and of its source hold for the memory.

#ifndef VERBENA_RPC_SERVER_PAYLOAD_H_
#define VERBENA_RPC_SERVER_PAYLOAD_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/call/bulk_format.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/rpc/detail/message.h"
#include "verbena/rpc/server/call_link.h"
#include "verbena/rpc/server/landings.h"
#include "verbena/rpc/server/state.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/coro/quota.h"
#include "verbena/transport/coro/sync.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/link/leases.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/listener.h"
#include "verbena/transport/link/transfers.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

class Link;

// ServedCall: the parts of a server's call that both halves of its bulk use.
//
// A value of its ServerBulk, on its executor's thread.
struct ServedCall {
  // The link, if it is still there.
  absl::StatusOr<Link*> OpenLink() const;

  ServerState* state = nullptr;
  CallLink* call_link = nullptr;
  CallId id;
  TimePoint deadline = kNever;
  RequestBulk header;  // of the request
};

// RESOURCE_EXHAUSTED if the payload or the message of `request` is larger than this server takes.
// The message begins with a context block of `context_bytes`, which do not count.
absl::Status CheckRequestSize(const RequestBulk& request, size_t context_bytes,
                              const LinkLimits& limits);

// FetchedRequest: the payload of a call's request, and its message if that is too large for a
// frame.
//
// They lie in the frame or in a granted landing, or are read from the client's memory. Part of a
// ServerBulk, on its executor's thread, and empty again after each call. Its coroutines run in the
// call's task, and end with UNAVAILABLE if the link is lost.
class FetchedRequest final : private LeaseListener {
 public:
  // `call` is that of the ServerBulk that this is a part of.
  explicit FetchedRequest(const ServedCall& call) : call_(call) {}
  FetchedRequest(const FetchedRequest&) = delete;
  FetchedRequest& operator=(const FetchedRequest&) = delete;
  ~FetchedRequest() override = default;

  // `landing` holds the payload if it has memory; a payload in the frame is copied from `in_frame`.
  void Begin(UsedGrant landing, const char* in_frame);
  // The call is over, or its link is.
  void Clear();

  // True if the handler must wait for something of the request. fetches_message(): for its message,
  // too.
  bool fetches() const {
    return call_.header.source_count > 0 || lease_ != nullptr || checked_ || !unplaced_.empty();
  }
  bool fetches_message() const { return call_.header.message_bytes > 0; }
  // The message begins with a context block of `bytes`, at most its length. Before Fetch().
  void set_context_bytes(size_t bytes) { context_bytes_ = bytes; }
  // The context block, once fetched; empty if there is none.
  std::string_view context() const {
    if (context_bytes_ == 0) return {};
    return {memory_.data() + call_.header.payload_bytes, context_bytes_};
  }
  bool has_payload() const { return call_.header.has_payload; }
  size_t payload_bytes() const { return call_.header.payload_bytes; }
  // Once fetched, and until somebody takes it; then empty.
  BufferView payload() const {
    if (!memory_) return {};
    return memory_.Slice(0, call_.header.payload_bytes);
  }
  // INVALID_ARGUMENT if `method` takes no such payload; RESOURCE_EXHAUSTED if it is larger than
  // this server takes. Needs the link; before Fetch().
  absl::Status Check(const MethodDescriptor& method) const;
  // RESOURCE_EXHAUSTED when memory stays short; DATA_LOSS when it did not arrive as it was sent.
  Task<absl::Status> Fetch();
  // Once fetched.
  std::string_view message() const {
    return {memory_.data() + call_.header.payload_bytes + context_bytes_,
            static_cast<size_t>(call_.header.message_bytes) - context_bytes_};
  }
  // The payload counts in the client's share until its memory is free.
  Buffer TakePayload();
  // The handler has ended: frees whatever it left of the request's memory.
  void Drop();
  // The bytes of the landing to grant for the next request; 0: none. A payload that never arrived
  // earns none, unless the link has no READs, so that only a landing can take it. Nor does one that
  // came in the frame.
  size_t earned_landing_bytes() const { return earns_landing_ ? call_.header.payload_bytes : 0; }

 private:
  Task<absl::Status> Read();
  Task<absl::Status> ReadSources();
  // Copies the payload that is in the frame to memory, or keeps it until there is some.
  void TakeFromFrame(const char* bytes);
  Task<absl::Status> Place();
  // Waits for memory within what the client and its source may have.
  Task<absl::Status> AllocateMemory(Link& link, uint64_t bytes);
  // Returns the hold, which makes room for others; that of a landing whose lease has not ended
  // returns with its memory.
  void ReturnHold();
  void OnLeaseEnded(const Lease& lease) override;
  void OnLeaseLost(const Lease& lease) override;

  const ServedCall& call_;
  size_t context_bytes_ = 0;
  Buffer memory_;         // the payload, then the context, then the message
  std::string unplaced_;  // a payload that came in a frame and lacks memory
  // The payload counts among the client's requests, or grants, until the handler has ended, or the
  // memory that the handler has taken is free.
  QuotaHold hold_;
  Lease* lease_ = nullptr;  // of the landing with the payload, until it has ended
  Event lease_over_;
  bool earns_landing_ = false;
  bool checked_ = false;  // the link checks payloads, and this one has something to check
};

// AskedLanding: memory that a server's call asks its client for, and the wait for it.
//
// Part of a WrittenResponse, on its executor's thread.
class AskedLanding final : private SendWaiter {
 public:
  explicit AskedLanding(const ServedCall& call) : call_(call) {}
  AskedLanding(const AskedLanding&) = delete;
  AskedLanding& operator=(const AskedLanding&) = delete;
  ~AskedLanding() override = default;

  // Asks for `wanted` over `link`, now or when there is room. Then await Arrival().
  void Ask(Link& link, const LandingRequest& wanted);
  // Ends when the landing has come.
  Task<absl::Status> Arrival();
  // A landing that comes from now on is late.
  void StopWaiting() { awaited_ = false; }
  // The client has leased `landing`. A failed Status closes the link.
  absl::Status OnLanding(const RemoteRange& landing);
  // The call is over, or its link is.
  void Clear();

  // The landing; without bytes if none has come.
  const RemoteRange& range() const { return range_; }
  // The bytes that were asked for the payload, ahead of those for the message.
  uint64_t payload_bytes() const { return wanted_.payload_bytes; }

 private:
  void OnWritable(Link& link) override;

  const ServedCall& call_;
  LandingRequest wanted_;
  bool awaited_ = false;
  RemoteRange range_;
  Event arrived_;
};

// WrittenResponse: the payload of a call's response, and its reply if that is too large for a
// frame.
//
// They go into the frame, or are written to the client's memory: to a landing that the request
// brought, or to one that the call asks for. Part of a ServerBulk, on its executor's thread, and
// empty again after each call. Its coroutines run in the call's task, and end with UNAVAILABLE if
// the link is lost.
class WrittenResponse final {
 public:
  // `call` is that of the ServerBulk that this is a part of.
  explicit WrittenResponse(const ServedCall& call) : call_(call), asked_(call) {}
  WrittenResponse(const WrittenResponse&) = delete;
  WrittenResponse& operator=(const WrittenResponse&) = delete;

  // The call is over, or its link is.
  void Clear();

  void SetPayload(Payload payload) {
    payload_ = std::move(payload);
    has_payload_ = payload_.present() || written_ > 0;
  }
  // Whether the handler has given a payload, perhaps an empty one; and the part of it that it set
  // and did not write.
  bool has_payload() const { return has_payload_; }
  const Payload& payload() const { return payload_; }
  // All of it, once Plan() has succeeded.
  size_t payload_bytes() const { return payload_bytes_; }
  size_t room() const { return call_.header.landing.bytes - written_; }
  Task<absl::Status> Write(BufferView part);

  // How a reply of `reply_bytes` travels, of whose frame `context_bytes` are the response's context
  // block. RESOURCE_EXHAUSTED if payload or reply exceed the memory that the client leased, or the
  // limits.
  absl::Status Plan(const MethodDescriptor& method, size_t reply_bytes, size_t context_bytes);
  // The same of a failure whose Status takes `body_bytes`: it travels as a reply does. The response
  // has no payload.
  absl::Status PlanFailure(size_t body_bytes);
  // True if the client must be asked for memory first, which AskForLanding() does.
  bool needs_landing() const { return asks_payload_ || message_bytes_ > 0; }
  Task<absl::Status> AskForLanding(const MessageLite& reply);
  absl::Status OnLanding(const RemoteRange& landing) { return asked_.OnLanding(landing); }
  // Starts the writes that are left. False if there are none; otherwise `listener` hears when all
  // of them are posted.
  bool StartWrites(Link& link, TransferListener& listener);
  // The listener has heard that the last write is posted, and wants to hear no more.
  void ForgetWrites();

  // True if the response has a bulk header. Its frame then begins with prefix_bytes(), which
  // WriteTo() writes to `body`; it returns the end of them. The reply is in the frame, behind them,
  // unless reply_travels().
  bool answers() const { return has_payload_ || message_bytes_ > 0; }
  bool reply_travels() const { return message_bytes_ > 0; }
  size_t prefix_bytes() const {
    return ResponseBulk::kEncodedBytes + (in_frame_ ? payload_bytes_ : 0);
  }
  char* WriteTo(char* body) const;
  // The key of the client's lease that the response's SEND ends; 0 for none.
  uint32_t FinalKey(const Link& link) const;

 private:
  absl::Status CheckMemory(const BufferView& view, const Link& link) const;
  bool FitsFrame(const Link& link, size_t context_bytes) const;

  const ServedCall& call_;
  Payload payload_;
  bool has_payload_ = false;   // perhaps an empty one
  bool writing_part_ = false;  // in Write()
  size_t written_ = 0;         // of the payload, by Write()
  std::string staged_;         // by Write(), for the frame
  bool in_frame_ = false;
  uint32_t checksum_ = 0;
  uint64_t payload_bytes_ = 0;
  uint64_t message_bytes_ = 0;  // 0: the reply fits the frame
  bool asks_payload_ = false;
  AskedLanding asked_;
  Buffer message_;
  // The write that has the listener. An earlier write may have ended, and its Transfer may be
  // another's by now.
  Transfer* last_write_ = nullptr;
  size_t writing_ = 0;  // bytes
};

// ServerBulk: the payloads of a server's call, and its messages that are too large for a frame.
//
// Part of a ServerCall, on its executor's thread, and empty again after each call. The server reads
// and writes nothing more after the response: the client's leases rely on that.
class ServerBulk final {
 public:
  ServerBulk() = default;
  ServerBulk(const ServerBulk&) = delete;
  ServerBulk& operator=(const ServerBulk&) = delete;

  // `landing` holds the payload if it has memory; a payload in the frame is copied from `in_frame`.
  void Begin(ServerState& state, CallLink& call_link, CallId id, TimePoint deadline,
             const RequestBulk& header, UsedGrant landing, const char* in_frame);
  // The call is over, or its link is.
  void Clear();

  // The room in the response's frame that the caller asked for its payload.
  size_t room_in_frame() const {
    return call_.header.room_in_frame ? call_.header.landing.bytes : 0;
  }
  FetchedRequest& request() { return request_; }
  const FetchedRequest& request() const { return request_; }
  WrittenResponse& response() { return response_; }
  const WrittenResponse& response() const { return response_; }

 private:
  ServedCall call_;
  FetchedRequest request_{call_};
  WrittenResponse response_{call_};
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_PAYLOAD_H_
