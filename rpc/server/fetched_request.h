// FetchedRequest: the payload of a call's request, and its message if that is too large for a
// frame.
//
// They lie in the frame or in a granted landing, or are read from the client's memory. Part of a
// ServerBulk, on its executor's thread, and empty again after each call. Its coroutines run in the
// call's task, and end with UNAVAILABLE if the link is lost.

#ifndef VERBENA_RPC_SERVER_FETCHED_REQUEST_H_
#define VERBENA_RPC_SERVER_FETCHED_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "google/protobuf/message_lite.h"
#include "verbena/rpc/server/grants_given.h"
#include "verbena/rpc/server/request_shares.h"
#include "verbena/rpc/server/served_call.h"
#include "verbena/transport/coro/event.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

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
  size_t message_bytes() const { return call_.header.message_bytes - context_bytes_; }
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
  // RESOURCE_EXHAUSTED when it is larger than this server takes, or memory stays short; DATA_LOSS
  // when it did not arrive as it was sent.
  Task<absl::Status> Fetch();
  bool ParseMessage(google::protobuf::MessageLite& message) const;
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
  // Waits for memory within the shares of the client and its source, then for memory.
  Task<absl::Status> AllocateMemory(Link& link, uint64_t bytes);
  // Returns the share of the landing that the request used, if any, which makes room for another.
  void ReturnLanded();
  void OnLeaseEnded(const Lease& lease) override;
  void OnLeaseLost(const Lease& lease) override;

  const ServedCall& call_;
  size_t context_bytes_ = 0;
  Buffer memory_;           // the payload, then the context, then the message
  std::string unplaced_;    // a payload that came in a frame and lacks memory
  RequestShares shares_;    // until the handler has ended
  size_t landed_ = 0;       // of the client's landings, until the handler has ended
  Lease* lease_ = nullptr;  // of the landing with the payload, until it has ended
  Event lease_over_;
  bool earns_landing_ = false;
  bool checked_ = false;  // the link checks payloads, and this one has something to check
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_FETCHED_REQUEST_H_
