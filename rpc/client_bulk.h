// ClientBulk: what a call moves one-sided, at the client: its request's payload, its request when
// that is too large for a frame, and the landings of its response; with the leases of all that.
//
// A payload is written to a landing that the server granted ahead, where there is one that fits;
// else it is lent to the server, which reads it.
//
// Lives in the frame of the coroutine that makes the call (bulk_call.h). Its buffers are the
// caller's again only once settled(): when every lease has ended. Destroyed before, it lets go of
// them; the leases keep the memory until they end. One thread.

#ifndef VERBENA_RPC_CLIENT_BULK_H_
#define VERBENA_RPC_CLIENT_BULK_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message_lite.h"
#include "verbena/rpc/bulk_format.h"
#include "verbena/rpc/client_link.h"
#include "verbena/rpc/lent_landings.h"
#include "verbena/rpc/payload.h"
#include "verbena/transport/coro/event.h"
#include "verbena/transport/link/lease.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena {

class ClientCall;

class ClientBulk final : private LeaseListener, private TransferListener {
 public:
  ClientBulk() = default;
  ClientBulk(const ClientBulk&) = delete;
  ClientBulk& operator=(const ClientBulk&) = delete;
  ~ClientBulk() override;

  // Set before Lend().
  Payload payload;
  Buffer message;  // the serialized request, when it is too large for a frame
  Buffer landing;  // of the response's payload

  // For all of the above, over `link` as it is now; at most, where that is null.
  uint32_t leases_needed(const ClientLink* link) const;
  // Lends all of it to the peer, but a payload for which there is a landing. Nothing waits since
  // there were leases_needed() free leases. Nothing is lent when it fails.
  absl::Status Lend(ClientLink& link);
  // Lends a landing that the server asked for.
  absl::StatusOr<RemoteRange> LendAsked(Link& link, Buffer asked, const LandingRequest& wanted);

  // What the request says of it.
  const RequestBulk& request() const { return request_; }
  // Writes the payload to the landing that it has; then `call` sends the request, behind it. False
  // when there is nothing to write.
  bool StartWrite(ClientLink& link, ClientCall& call);
  // The server's lease that the request ends; 0 for none.
  uint32_t RequestKey(const Link& link) const;

  // The server's response: its memory must be what was lent. INVALID_ARGUMENT when it lies.
  absl::Status OnResponse(const ResponseBulk& response);
  // It was the final frame: ends all leases.
  void OnFinal(Link& link);
  // The caller gives up before that: whoever hears the final frame ends them. Empty when the server
  // never heard of them.
  LeaseList Abandon(ClientLink& link, bool sent);
  void OnLinkDown();

  // Waits until every lease has ended, or is lost().
  Event::Awaiter Settled() { return settled_.Wait(); }
  bool settling() const { return !leases_.empty(); }
  // The peer, or the device, may still reach the memory: it goes home when they no longer can.
  bool lost() const { return lost_; }

  // Once settled, with the response. DATA_LOSS when what arrived is not what was sent.
  absl::Status CheckResponse() const;
  bool has_message() const { return response_.message_bytes != 0; }
  bool ParseMessage(google::protobuf::MessageLite& reply) const;
  // The landing that holds the response's payload, as long as that is.
  Buffer TakeResponsePayload();

 private:
  bool WantsLanding() const;
  void OnTransferPosted() override;
  void OnTransferDone(const absl::Status& status) override;
  absl::Status LendSource(Link& link, const BufferView& view);
  absl::StatusOr<RemoteRange> LendOne(Link& link, const BufferView& view, LeaseAccess access);
  // Of the message, within asked_.
  size_t message_offset() const { return response_.payload_in_asked ? response_.payload_bytes : 0; }
  void OnLeaseEnded(const Lease& lease) override;
  void OnLeaseLost(const Lease& lease) override;

  RequestBulk request_;
  std::optional<LentLanding> landing_;  // for the payload, until the call's final frame
  Transfer* write_ = nullptr;           // to it, until that is posted
  ClientCall* call_ = nullptr;          // once it was begun
  ResponseBulk response_;
  Buffer asked_;
  LandingRequest wanted_;
  bool checked_ = false;  // the link checks payloads
  bool lost_ = false;
  LeaseList leases_;
  Event settled_;
};

}  // namespace verbena

#endif  // VERBENA_RPC_CLIENT_BULK_H_
