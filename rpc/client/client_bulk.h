// ClientBulk: the client's one-sided part of a call: the request's payload, the request itself if
// it is too large for a frame, the landings of the response, and the leases of all these.
//
// If the server granted a landing ahead that fits, the client writes the payload to it. Otherwise
// the client leases the payload's memory to the server, which READs it.
//
// Lives in the frame of the coroutine that makes the call (bulk_call.h). The caller may use the
// buffers again only once settled(), when every lease has ended. A ClientBulk that is destroyed
// earlier lets go of its buffers; the leases keep the memory until they end. One thread.

#ifndef VERBENA_RPC_CLIENT_CLIENT_BULK_H_
#define VERBENA_RPC_CLIENT_CLIENT_BULK_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message_lite.h"
#include "verbena/rpc/client/client_session.h"
#include "verbena/rpc/client/grants_held.h"
#include "verbena/rpc/internal/bulk_format.h"
#include "verbena/rpc/payload.h"
#include "verbena/transport/coro/event.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/memory/buffer.h"
#include "verbena/transport/onesided/lease.h"

namespace verbena::internal {

class ClientCall;

class ClientBulk final : private LeaseListener, private TransferListener {
 public:
  ClientBulk() = default;
  ClientBulk(const ClientBulk&) = delete;
  ClientBulk& operator=(const ClientBulk&) = delete;
  ~ClientBulk() override;

  // Set before OpenLeases().
  Payload payload;
  Buffer message;  // the serialized request, when it is too large for a frame
  Buffer landing;  // of the response's payload

  // The leases that OpenLeases() needs over `session` as it is now. Without a session: the most
  // that it may need.
  uint32_t leases_needed(const ClientSession* session) const;
  // Leases all of it to the peer, except a payload that has a granted landing. Never waits: the
  // caller has seen to leases_needed() free leases. Leases nothing if it fails.
  absl::Status OpenLeases(ClientSession& session);
  // Leases a landing that the server asked for.
  absl::StatusOr<RemoteRange> OpenAsked(Link& link, Buffer asked, const LandingRequest& wanted);

  // The bulk header that the request carries.
  const RequestBulk& request() const { return request_; }
  // Writes the payload to its granted landing; then `call` sends the request, behind it. False if
  // there is nothing to write.
  bool StartWrite(ClientSession& session, ClientCall& call);
  // The request has its place in the send queue: from now on the server may use its grant's slot
  // again.
  void OnRequestAppended(ClientSession& session);
  // The key of the server's lease that the request's SEND ends; 0 for none.
  uint32_t RequestKey(const Link& link) const;

  // Takes the server's response. INVALID_ARGUMENT if it names memory that was not leased.
  absl::Status OnResponse(const ResponseBulk& response);
  // The response was the final frame: ends all leases.
  void OnFinal(ClientSession& session);
  // The caller gives up before the final frame. The result is the leases that the final frame will
  // end; it is empty if the server never heard of them.
  LeaseList Abandon(ClientSession& session, bool sent);
  void OnLinkDown();

  // Waits until every lease has ended, or is lost().
  Event::Awaiter Settled() { return settled_.Wait(); }
  bool settling() const { return !leases_.empty(); }
  // True if the peer or the device may still reach the memory, which returns to its pool when they
  // no longer can.
  bool lost() const { return lost_; }

  // Once settled, with the response. DATA_LOSS when what arrived is not what was sent.
  absl::Status CheckResponse() const;
  bool has_message() const { return response_.message_bytes != 0; }
  uint32_t response_message_bytes() const { return static_cast<uint32_t>(response_.message_bytes); }
  bool has_response_payload() const { return response_.has_payload; }
  bool ParseMessage(google::protobuf::MessageLite& reply) const;
  // The landing that holds the response's payload, cut to the payload's length.
  Buffer TakeResponsePayload();

 private:
  bool WantsLanding() const;
  void EndSettling();
  void OnTransferPosted() override;
  void OnTransferDone(const absl::Status& status) override;
  absl::Status OpenSource(Link& link, const BufferView& view);
  absl::StatusOr<RemoteRange> OpenLease(Link& link, const BufferView& view, LeaseAccess access);
  // The message's offset in asked_.
  size_t message_offset() const { return response_.payload_in_asked ? response_.payload_bytes : 0; }
  void OnLeaseEnded(const Lease& lease) override;
  void OnLeaseLost(const Lease& lease) override;

  RequestBulk request_;
  std::optional<HeldGrant> landing_;  // for the payload, until the call's final frame
  Transfer* write_ = nullptr;         // the WRITE to landing_, until it is posted
  ClientCall* call_ = nullptr;        // once that WRITE has begun
  ResponseBulk response_;
  Buffer asked_;
  LandingRequest wanted_;
  bool checked_ = false;  // the link checks payloads
  bool lost_ = false;
  LeaseList leases_;
  ClientSession* settling_on_ = nullptr;  // from the final frame until the leases have ended
  Event settled_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_CLIENT_BULK_H_
