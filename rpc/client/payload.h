// ClientBulk: the payloads of a client's call, the request itself if it is too large for a frame,
// the landings of the response, and the leases of all these.
//
// A small payload travels in the frame: it is copied from and to the caller's memory, and nothing
// is leased. For a larger payload the client looks for a landing that the server granted ahead, and
// writes the payload to it. Without one that fits, the client leases the payload's memory to the
// server, which READs it.
//
// Lives in the frame of the coroutine that makes the call. The caller may use the
// buffers again only once settled(), when every lease has ended. A ClientBulk that is destroyed
// earlier lets go of its buffers; the leases keep the memory until they end. One thread.

#ifndef VERBENA_RPC_CLIENT_PAYLOAD_H_
#define VERBENA_RPC_CLIENT_PAYLOAD_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/call/bulk_format.h"
#include "verbena/rpc/client/landings.h"
#include "verbena/rpc/client/session.h"
#include "verbena/rpc/detail/message.h"
#include "verbena/transport/coro/sync.h"
#include "verbena/transport/link/lease_access.h"
#include "verbena/transport/link/leases.h"
#include "verbena/transport/link/transfers.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

class Link;

// Hears when the request of a call may follow its payload.
class PayloadListener {
 public:
  // The payload is in the send queue: what is sent from now on arrives behind it.
  virtual void OnPayloadAhead() = 0;

 protected:
  ~PayloadListener() = default;
};

class ClientBulk final : private LeaseListener, private TransferListener {
 public:
  ClientBulk() = default;
  ClientBulk(const ClientBulk&) = delete;
  ClientBulk& operator=(const ClientBulk&) = delete;
  ~ClientBulk() override;

  // Set before OpenLeases().
  Payload payload;
  // The request, when it is not too large for a frame, and the context block in the frame.
  size_t frame_message_bytes = 0;
  // The serialized request, when it is too large for a frame. If the call's context block travels
  // one-sided, it comes first.
  Buffer message;
  size_t context_bytes = 0;  // in `message`
  Buffer landing;            // of the response's payload
  // Without a landing: the most bytes that the response's payload may have. 0: not known, or there
  // is a landing.
  size_t response_room = 0;

  // Whether the response's payload can come in a frame over `link`, so that it needs no landing in
  // advance.
  bool RoomInFrame(const Link& link) const;

  // How many leases OpenLeases() needs over `session` as it is now. Without a session: the most
  // that it may need.
  uint32_t leases_needed(const ClientSession* session) const;
  // Leases the memory of the call to the peer, except a payload that has a granted landing. Never
  // waits: the caller has made sure of leases_needed() free leases. Leases nothing if it fails.
  absl::Status OpenLeases(ClientSession& session);
  // Leases a landing that the server asked for.
  absl::StatusOr<RemoteRange> OpenAsked(Link& link, Buffer asked, const LandingRequest& wanted);

  // The bytes ahead of the message in the request's frame, which WriteTo() writes to `body`.
  // Returns the end of them.
  size_t frame_bytes() const { return request_.frame_bytes(); }
  char* WriteTo(char* body) const;
  // Writes the payload to its granted landing; `call` hears when the request may follow. False if
  // there is nothing to write.
  bool StartWrite(ClientSession& session, PayloadListener& call);
  // The request has its place in the send queue. From now on the server may grant anew
  // the slot that the request uses.
  void OnRequestAppended(ClientSession& session);
  // The key of the server's lease that the request's SEND ends; 0 for none.
  uint32_t RequestKey(const Link& link) const;

  // Takes the server's response. `in_frame` is the bytes behind its header. INVALID_ARGUMENT if it
  // names memory that was not leased, or its payload is larger than the caller's memory.
  absl::Status OnResponse(ClientSession& session, const ResponseBulk& response,
                          const char* in_frame);
  // Whether the response's payload came in the frame, and found no memory. Then the caller
  // allocates response_payload_bytes(), and calls PlaceResponse().
  bool lacks_memory() const { return !unplaced_.empty(); }
  size_t response_payload_bytes() const { return static_cast<size_t>(response_.payload_bytes); }
  void PlaceResponse(Buffer memory);
  // The response was the final frame: ends all leases.
  void OnFinal(ClientSession& session);
  // The caller gives up before the final frame. Returns the leases that the final frame will end,
  // none if the server never heard of them.
  LeaseList Abandon(ClientSession& session, bool sent);
  // The link is lost, after the request had left if `sent`.
  void OnLinkDown(bool sent);

  // Waits until every lease has ended, or is lost().
  Event::Awaiter Settled() { return settled_.Wait(); }
  bool settling() const { return !leases_.empty(); }
  // True if the peer or the device may still reach the memory. The memory returns to its pool when
  // they no longer can.
  bool lost() const { return lost_; }
  // The same of `landing` after a request that had not left. Its server has not heard of the lease,
  // but the key opens the memory until the device has invalidated it, or the queue pair of a lost
  // link is drained.
  bool landing_lost() const { return landing_lost_; }

  // Call it once settled, with the response. DATA_LOSS if other bytes arrived than were sent.
  absl::Status CheckResponse() const;
  size_t request_payload_bytes() const { return static_cast<size_t>(request_.payload_bytes); }
  bool has_message() const { return response_.message_bytes != 0; }
  uint32_t response_message_bytes() const { return static_cast<uint32_t>(response_.message_bytes); }
  bool has_response_payload() const { return response_.has_payload; }
  bool ParseMessage(MessageLite& reply) const;
  // The response is a failure, whose Status lies in the landing: then call ReadFailure().
  void NoteFailure() { failed_ = true; }
  bool has_failure() const { return failed_; }
  // Returns that failure, of which the frame said only `known`.
  absl::Status ReadFailure(const absl::Status& known) const;
  // The landing that holds the response's payload, cut to the payload's length.
  Buffer TakeResponsePayload();

 private:
  bool MayUseGrant() const;
  bool PayloadInFrame(const Link& link) const;
  // True if the server or the device may still use the memory of a call that ends before its final
  // frame.
  bool MayBeInUse(bool sent) const;
  void EndSettling();
  void OnTransferPosted() override;
  void OnTransferDone(const absl::Status& status) override;
  absl::Status OpenSource(Link& link, const BufferView& view);
  absl::Status OpenLanding(Link& link);
  uint64_t PayloadRoom(const ResponseBulk& response) const;
  void TakeFromFrame(ClientSession& session, const char* bytes);
  absl::StatusOr<RemoteRange> OpenLease(Link& link, const BufferView& view, LeaseAccess access);
  // The message's offset in asked_.
  size_t message_offset() const { return response_.payload_in_asked ? response_.payload_bytes : 0; }
  void OnLeaseEnded(const Lease& lease) override;
  void OnLeaseLost(const Lease& lease) override;

  RequestBulk request_;
  std::optional<HeldGrant> grant_;   // for the payload, until the call's final frame
  Transfer* write_ = nullptr;        // the WRITE to grant_, until it is posted
  PayloadListener* call_ = nullptr;  // once that WRITE has begun
  ResponseBulk response_;
  Buffer asked_;
  LandingRequest wanted_;
  std::string unplaced_;  // a payload that came in a frame and lacks memory
  bool failed_ = false;
  bool checked_ = false;  // the link checks payloads
  bool lost_ = false;
  bool landing_leased_ = false;
  bool landing_lost_ = false;
  LeaseList leases_;
  ClientSession* settling_on_ = nullptr;  // from the final frame until the leases have ended
  Event settled_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_PAYLOAD_H_
