// ClientBulk: what a call moves one-sided, at the client: its request's payload, its request when
// that is too large for a frame, and the landings of its response; with the leases of all that.
//
// Lives in the frame of the coroutine that makes the call (bulk_call.h). Its buffers are the
// caller's again only once settled(): when every lease has ended. Destroyed before, it lets go of
// them; the leases keep the memory until they end. One thread.

#ifndef VERBENA_RPC_CLIENT_BULK_H_
#define VERBENA_RPC_CLIENT_BULK_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message_lite.h"
#include "verbena/rpc/bulk_format.h"
#include "verbena/rpc/client_link.h"
#include "verbena/rpc/payload.h"
#include "verbena/transport/coro/event.h"
#include "verbena/transport/link/lease.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena {

class ClientBulk final : private LeaseListener {
 public:
  ClientBulk() = default;
  ClientBulk(const ClientBulk&) = delete;
  ClientBulk& operator=(const ClientBulk&) = delete;
  ~ClientBulk() override;

  // Set before Lend().
  Payload payload;
  Buffer message;  // the serialized request, when it is too large for a frame
  Buffer landing;  // of the response's payload

  uint32_t leases_needed() const;
  // Lends all of the above to the peer, of which there are leases_needed() free leases. Nothing is
  // lent when it fails.
  absl::Status Lend(Link& link);
  // Lends a landing that the server asked for.
  absl::StatusOr<RemoteRange> LendAsked(Link& link, Buffer asked, const LandingRequest& wanted);

  // What the request says of it.
  const RequestBulk& request() const { return request_; }

  // The server's response: its memory must be what was lent. INVALID_ARGUMENT when it lies.
  absl::Status OnResponse(const ResponseBulk& response);
  // It was the final frame: ends all leases.
  void OnFinal(Link& link);
  // The caller gives up before that: whoever hears the final frame ends them. Empty when the server
  // never heard of them.
  LeaseList Abandon(Link& link, bool sent);
  void OnLinkDown();

  // Waits until every lease has ended, or is lost().
  Event::Awaiter Settled() { return settled_.Wait(); }
  bool settling() const { return !leases_.empty(); }
  // The peer may still reach what it was lent: the memory goes home when it no longer can.
  bool lost() const { return lost_; }

  // Once settled, with the response. DATA_LOSS when what arrived is not what was sent.
  absl::Status CheckResponse() const;
  bool has_message() const { return response_.message_bytes != 0; }
  bool ParseMessage(google::protobuf::MessageLite& reply) const;
  // The landing that holds the response's payload, as long as that is.
  Buffer TakeResponsePayload();

 private:
  absl::Status LendSource(Link& link, const BufferView& view);
  absl::StatusOr<RemoteRange> LendOne(Link& link, const BufferView& view, LeaseAccess access);
  // Of the message, within asked_.
  size_t message_offset() const { return response_.payload_in_asked ? response_.payload_bytes : 0; }
  void OnLeaseEnded(const Lease& lease) override;
  void OnLeaseLost(const Lease& lease) override;

  RequestBulk request_;
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
