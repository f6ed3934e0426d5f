// WrittenResponse: the payload of a call's response, and its reply if that is too large for a
// frame.
//
// They go into the frame, or are written to the client's memory: to a landing that the request
// brought, or to one that the call asks for. Part of a ServerBulk, on its executor's thread, and
// empty again after each call. Its coroutines run in the call's task, and end with UNAVAILABLE if
// the link is lost.

#ifndef VERBENA_RPC_SERVER_WRITTEN_RESPONSE_H_
#define VERBENA_RPC_SERVER_WRITTEN_RESPONSE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "google/protobuf/message_lite.h"
#include "verbena/rpc/call/bulk_format.h"
#include "verbena/rpc/method.h"
#include "verbena/rpc/payload.h"
#include "verbena/rpc/server/asked_landing.h"
#include "verbena/rpc/server/served_call.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

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
  Task<absl::Status> AskForLanding(const google::protobuf::MessageLite& reply);
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

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_WRITTEN_RESPONSE_H_
