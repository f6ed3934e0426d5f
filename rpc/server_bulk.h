// ServerBulk: what a call moves one-sided, at the server: its request, which lies in a landing that
// was granted ahead or is read from the client's memory, and its response, written there.
//
// Part of a ServerCall, on its executor's thread, and empty again after each call. Its coroutines
// run in the call's task, and end with UNAVAILABLE when the link is lost. Nothing is read or
// written after the response: that is what the client's leases rest on.

#ifndef VERBENA_RPC_SERVER_BULK_H_
#define VERBENA_RPC_SERVER_BULK_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message_lite.h"
#include "verbena/rpc/bulk_format.h"
#include "verbena/rpc/client_link.h"
#include "verbena/rpc/landing_lender.h"
#include "verbena/rpc/method.h"
#include "verbena/rpc/payload.h"
#include "verbena/transport/coro/clock.h"
#include "verbena/transport/coro/event.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena {

class ServerLink;

class ServerBulk final : private SendWaiter, private LeaseListener {
 public:
  ServerBulk() = default;
  ServerBulk(const ServerBulk&) = delete;
  ServerBulk& operator=(const ServerBulk&) = delete;
  ~ServerBulk() override = default;

  // `landing` holds the payload if it has memory.
  void Begin(ServerLink& link, CallId id, TimePoint deadline, const RequestBulk& request,
             UsedLanding landing);
  // The call is over, or its link is.
  void Clear();

  // --- the request

  // Whether something of it is to be waited for before the handler runs, and whether its message
  // is.
  bool fetches() const { return request_.source_count > 0 || lease_ != nullptr || checked_; }
  bool fetches_message() const { return request_.message_bytes > 0; }
  size_t message_bytes() const { return request_.message_bytes; }
  size_t request_payload_bytes() const { return request_.payload_bytes; }
  // RESOURCE_EXHAUSTED when it is larger than this server takes, or memory stays short; DATA_LOSS
  // when it did not arrive as it was sent.
  Task<absl::Status> Fetch();
  bool ParseMessage(google::protobuf::MessageLite& message) const;
  Buffer TakeRequestPayload();
  // The handler has ended: what it left of the request's memory is free.
  void DropRequest() { fetched_.Reset(); }

  // --- the response

  void SetResponse(Payload payload) { response_ = std::move(payload); }
  size_t room() const { return request_.landing.bytes - written_; }
  Task<absl::Status> Write(BufferView part);

  // How a reply of `reply_bytes` travels. RESOURCE_EXHAUSTED when payload or reply are larger than
  // what was lent, or than what may be.
  absl::Status Plan(const MethodDescriptor& method, size_t reply_bytes);
  // Whether the client must be asked for memory first, and the asking.
  bool needs_landing() const { return asks_payload_ || message_bytes_ > 0; }
  Task<absl::Status> AskForLanding(const google::protobuf::MessageLite& reply);
  absl::Status OnLanding(const RemoteRange& landing);
  // Starts to write what is left to be. False when nothing is; else `listener` hears when all of it
  // is posted.
  bool StartWrites(Link& link, TransferListener& listener);
  // Their listener has heard, or wants to hear no more.
  void ForgetWrites();

  // Whether the response is to tell of it, and what. The reply is in the frame unless
  // reply_travels().
  bool answers() const { return payload_bytes_ + message_bytes_ > 0; }
  bool reply_travels() const { return message_bytes_ > 0; }
  ResponseBulk response() const;
  // Of the client's leases, the one that the response's SEND ends; 0 for none.
  uint32_t FinalKey(const Link& link) const;

 private:
  // The link, if it is still there.
  absl::StatusOr<Link*> OpenLink() const;
  Task<absl::Status> ReadRequest();
  absl::Status CheckMemory(const BufferView& view, const Link& link) const;
  Task<absl::Status> ReadSources();
  void OnWritable(Link& link) override;
  void OnLeaseEnded(const Lease& lease) override;
  void OnLeaseLost(const Lease& lease) override;
  FrameHeader LandingNeededHeader() const;
  void Start(Link& link, absl::Span<const BufferView> views, RemoteRange to,
             TransferListener* listener);

  ServerLink* link_ = nullptr;
  CallId id_;
  TimePoint deadline_ = kNever;

  RequestBulk request_;
  Buffer fetched_;          // the payload, then the message
  Lease* lease_ = nullptr;  // of the landing that it lies in, until it has ended
  Event lease_over_;
  bool checked_ = false;  // the link checks payloads, and this one has something to check

  Payload response_;
  size_t written_ = 0;  // of the payload, by Write()
  uint32_t checksum_ = 0;
  uint64_t payload_bytes_ = 0;
  uint64_t message_bytes_ = 0;  // 0: the reply fits the frame
  bool asks_payload_ = false;
  LandingRequest wanted_;
  bool landing_awaited_ = false;
  RemoteRange asked_;  // what came of it
  Event landing_arrived_;
  Buffer message_;
  std::array<Transfer*, 2> writes_{};
};

}  // namespace verbena

#endif  // VERBENA_RPC_SERVER_BULK_H_
