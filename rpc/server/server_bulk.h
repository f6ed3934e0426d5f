// ServerBulk: the payloads of a server's call, and its messages that are too large for a frame. The
// request's lie in the frame or in a granted landing, or are read from the client's memory; the
// response's go into the frame, or are written to the client's memory.
//
// Part of a ServerCall, on its executor's thread, and empty again after each call. Its coroutines
// run in the call's task, and end with UNAVAILABLE if the link is lost. The server reads and writes
// nothing more after the response: the client's leases rely on that. server_bulk_request.cc has the
// functions for the request, server_bulk_response.cc those for the response.

#ifndef VERBENA_RPC_SERVER_SERVER_BULK_H_
#define VERBENA_RPC_SERVER_SERVER_BULK_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message_lite.h"
#include "verbena/rpc/internal/bulk_format.h"
#include "verbena/rpc/internal/call_id.h"
#include "verbena/rpc/method.h"
#include "verbena/rpc/payload.h"
#include "verbena/rpc/server/grants_given.h"
#include "verbena/rpc/server/request_shares.h"
#include "verbena/transport/coro/clock.h"
#include "verbena/transport/coro/event.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/log/mutant.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

class ServerSession;
class ServerShard;

class ServerBulk final : private SendWaiter, private LeaseListener {
 public:
  ServerBulk() = default;
  ServerBulk(const ServerBulk&) = delete;
  ServerBulk& operator=(const ServerBulk&) = delete;
  ~ServerBulk() override = default;

  // `landing` holds the payload if it has memory; a payload in the frame is copied from `in_frame`.
  void Begin(ServerShard& shard, ServerSession& session, CallId id, TimePoint deadline,
             const RequestBulk& request, UsedGrant landing, const char* in_frame);
  // The call is over, or its link is.
  void Clear();

  // --- the request

  // True if the handler must wait for something of the request. fetches_message(): for its message,
  // too.
  bool fetches() const {
    return request_.source_count > 0 || lease_ != nullptr || checked_ || !unplaced_.empty();
  }
  bool fetches_message() const { return request_.message_bytes > 0; }
  size_t message_bytes() const { return request_.message_bytes - context_bytes_; }
  // The message begins with a context block of `bytes`, at most its length. Before Fetch().
  void set_context_bytes(size_t bytes) { context_bytes_ = bytes; }
  // The context block, once fetched; empty if there is none.
  std::string_view context() const {
    if (context_bytes_ == 0) return {};
    return {fetched_.data() + request_.payload_bytes, context_bytes_};
  }
  bool has_request_payload() const { return request_.has_payload; }
  // The room in the response's frame that the caller asked for its payload.
  size_t room_in_frame() const { return request_.room_in_frame ? request_.landing.bytes : 0; }
  size_t request_payload_bytes() const { return request_.payload_bytes; }
  // Once fetched, and until somebody takes it; then empty.
  BufferView request_payload() const {
    if (!fetched_ && !VERBENA_MUTANT(kTakenPayloadIsRead)) return {};
    return fetched_.Slice(0, request_.payload_bytes);
  }
  // RESOURCE_EXHAUSTED when it is larger than this server takes, or memory stays short; DATA_LOSS
  // when it did not arrive as it was sent.
  Task<absl::Status> Fetch();
  bool ParseMessage(google::protobuf::MessageLite& message) const;
  Buffer TakeRequestPayload();
  // The handler has ended: frees whatever it left of the request's memory.
  void DropRequest();
  // The bytes of the landing to grant for the next request; 0: none. A payload that never arrived
  // earns none, unless the link has no READs, so that only a landing can take it. Nor does one that
  // came in the frame.
  size_t earned_landing_bytes() const {
    return earns_landing_ || VERBENA_MUTANT(kClaimedPayloadsGranted) ? request_.payload_bytes : 0;
  }

  // --- the response

  void SetResponse(Payload payload) {
    response_ = std::move(payload);
    has_response_ = response_.present() || written_ > 0;
  }
  // Whether the handler has given a payload, perhaps an empty one; and the part of it that it set
  // and did not write.
  bool has_response() const { return has_response_; }
  const Payload& response() const { return response_; }
  size_t room() const { return request_.landing.bytes - written_; }
  Task<absl::Status> Write(BufferView part);

  // How a reply of `reply_bytes` travels. RESOURCE_EXHAUSTED if payload or reply exceed the memory
  // that the client leased, or the limits.
  // `context_bytes` of the response's context block lie in its frame.
  absl::Status Plan(const MethodDescriptor& method, size_t reply_bytes, size_t context_bytes);
  // The same of a failure whose Status takes `body_bytes`: it travels as a reply does. The response
  // has no payload.
  absl::Status PlanFailure(size_t body_bytes);
  // True if the client must be asked for memory first, which AskForLanding() does.
  bool needs_landing() const { return asks_payload_ || message_bytes_ > 0; }
  Task<absl::Status> AskForLanding(const google::protobuf::MessageLite& reply);
  absl::Status OnLanding(const RemoteRange& landing);
  // Starts the writes that are left. False if there are none; otherwise `listener` hears when all
  // of them are posted.
  bool StartWrites(Link& link, TransferListener& listener);
  // The listener has heard that the last write is posted, and wants to hear no more.
  void ForgetWrites();

  // True if the response has a bulk header. Its frame then begins with prefix_bytes(), which
  // WriteTo() writes to `body`; it returns the end of them. The reply is in the frame, behind them,
  // unless reply_travels().
  bool answers() const { return has_response_ || message_bytes_ > 0; }
  bool reply_travels() const { return message_bytes_ > 0; }
  size_t prefix_bytes() const {
    return ResponseBulk::kEncodedBytes + (response_in_frame_ ? payload_bytes_ : 0);
  }
  char* WriteTo(char* body) const;
  // The key of the client's lease that the response's SEND ends; 0 for none.
  uint32_t FinalKey(const Link& link) const;

 private:
  // The link, if it is still there.
  absl::StatusOr<Link*> OpenLink() const;
  // RESOURCE_EXHAUSTED if `what` has more bytes than the endpoint of `link` takes.
  static absl::Status CheckLimit(const char* what, uint64_t bytes, const Link& link);
  Task<absl::Status> ReadRequest();
  // Copies the payload that is in the frame to memory, or keeps it until there is some.
  void TakeFromFrame(const char* bytes);
  Task<absl::Status> PlaceRequest();
  bool ResponseFitsFrame(const Link& link, size_t context_bytes) const;
  // Waits for memory within the shares of the client and its source, then for memory.
  Task<absl::Status> AllocateFetched(Link& link, uint64_t bytes);
  // Returns the share of the landing that the request used, if any, which makes room for another.
  void ReturnLanded();
  absl::Status CheckMemory(const BufferView& view, const Link& link) const;
  Task<absl::Status> ReadSources();
  void OnWritable(Link& link) override;
  void OnLeaseEnded(const Lease& lease) override;
  void OnLeaseLost(const Lease& lease) override;

  ServerShard* shard_ = nullptr;
  ServerSession* session_ = nullptr;
  CallId id_;
  TimePoint deadline_ = kNever;

  RequestBulk request_;
  size_t context_bytes_ = 0;
  Buffer fetched_;          // the payload, then the context, then the message
  std::string unplaced_;    // a payload that came in a frame and lacks memory
  RequestShares shares_;    // until the handler has ended
  size_t landed_ = 0;       // of the client's landings, until the handler has ended
  Lease* lease_ = nullptr;  // of the landing with the payload, until it has ended
  Event lease_over_;
  bool earns_landing_ = false;
  bool checked_ = false;  // the link checks payloads, and this one has something to check

  Payload response_;
  bool has_response_ = false;  // a payload, perhaps an empty one
  bool writing_part_ = false;  // in Write()
  size_t written_ = 0;         // of the payload, by Write()
  std::string staged_;         // by Write(), for the frame
  bool response_in_frame_ = false;
  uint32_t checksum_ = 0;
  uint64_t payload_bytes_ = 0;
  uint64_t message_bytes_ = 0;  // 0: the reply fits the frame
  bool asks_payload_ = false;
  LandingRequest wanted_;
  bool landing_awaited_ = false;
  RemoteRange asked_;  // the landing that the client leased
  Event landing_arrived_;
  Buffer message_;
  // The write that has the listener. An earlier write may have ended, and its Transfer may be
  // another's by now.
  Transfer* last_write_ = nullptr;
  size_t writing_ = 0;  // bytes
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_SERVER_BULK_H_
