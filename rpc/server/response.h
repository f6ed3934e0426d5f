// Responses of a server's calls: ServerResponse, and CallMessages, the messages that a call keeps.
//
// Part of a ServerCall, on its executor's thread. A response waits at most
// ServerOptions::response_grace for its client.

#ifndef VERBENA_RPC_SERVER_RESPONSE_H_
#define VERBENA_RPC_SERVER_RESPONSE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "verbena/rpc/call/context_block.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/rpc/detail/message.h"
#include "verbena/rpc/server/call_link.h"
#include "verbena/rpc/server/payload.h"
#include "verbena/rpc/server/state.h"
#include "verbena/rpc/service.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/stream/beside.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {

// CallMessages: the request and the reply of a server's call, kept from call to call.
//
// Part of a ServerCall, on its executor's thread. Messages that were large on the wire are freed
// when their call no longer needs them, so that an idle call holds little.
class CallMessages {
 public:
  // Messages that were larger than this on the wire are not kept for the next call.
  static constexpr size_t kMaxPooledBytes = 16 * 1024;
  // Requests that were larger than this are not kept while their response waits for room: parsed, a
  // message of small parts takes up to twenty times its bytes.
  static constexpr size_t kMaxWaitingRequestBytes = 256;

  // `method` must outlive it.
  explicit CallMessages(const ServerMethod& method)
      : method_(method),
        request_(method.request_prototype->New()),
        reply_(method.reply_prototype->New()) {}

  MessageLite& request() const { return *request_; }
  MessageLite& reply() const { return *reply_; }

  // Their sizes on the wire, as their owner has noted them.
  size_t request_bytes() const { return request_bytes_; }
  size_t reply_bytes() const { return reply_bytes_; }
  void NoteRequest(size_t bytes) { request_bytes_ = bytes; }
  void NoteReply(size_t bytes) { reply_bytes_ = bytes; }

  // Each frees its message if that is larger than `most` bytes.
  [[gnu::noinline]] void DropRequestBeyond(size_t most);
  [[gnu::noinline]] void DropReplyBeyond(size_t most);

  // The call has ended: empties the reply. A request is emptied when the next one is parsed.
  void Clear() {
    if (request_bytes_ > kMaxPooledBytes || reply_bytes_ > kMaxPooledBytes) [[unlikely]] {
      DropRequestBeyond(kMaxPooledBytes);
      DropReplyBeyond(kMaxPooledBytes);
    }
    reply_->Clear();
  }

 private:
  const ServerMethod& method_;
  std::unique_ptr<MessageLite> request_;
  std::unique_ptr<MessageLite> reply_;
  size_t request_bytes_ = 0;
  size_t reply_bytes_ = 0;
};

// ServerResponse: the last step of a server's call: its response, on the way into the link.
//
// Part of a ServerCall, on its executor's thread. A response leaves at once if the link has room
// and nothing has to be written ahead of it. Otherwise it waits behind its WRITEs, then for room;
// if the client takes nothing for ServerOptions::response_grace, the link closes.
class ServerResponse final : private SendWaiter, private Timer, private TransferListener {
 public:
  // Hears that a response which had to wait was given to the link. May destroy the ServerResponse.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void OnResponseSent() = 0;
  };

  // All must outlive it. `method` is the method's full name.
  ServerResponse(ServerState& state, const char* method, CallMessages& messages, Listener& listener)
      : state_(state), method_(method), messages_(messages), listener_(listener) {}
  ~ServerResponse() override { StopTimer(); }

  // Begins the response of call `id`, which has a deadline or kNever, over the link of `call_link`,
  // which is open. `bulk` is the call's one-sided part, or null; `context` the response's context
  // block, or null. Both outlive the response.
  void Begin(CallLink& call_link, CallId id, TimePoint deadline, ServerBulk* bulk,
             const CallContext* context);
  // All that follow return true if the response has left, and false if the listener will hear of
  // it.
  // The reply of a call without bulk and without context, whose ByteSizeLong() has just returned
  // `reply_bytes`: instead of Begin() and SendReply().
  bool SendInFrame(CallLink& call_link, CallId id, TimePoint deadline, size_t reply_bytes);
  // Call Begin() before the others.
  // Sends the reply, whose ByteSizeLong() has just returned `reply_bytes`.
  bool SendReply(size_t reply_bytes);
  // As much of `status` as fits a frame.
  bool SendFailure(const absl::Status& status, Outcome outcome);
  // The failure of a stream: what does not fit the frame goes ahead of it, beside the messages. Too
  // large a Status, or one that finds the client's share of memory used up, is cut to the frame.
  bool SendStreamFailure(const absl::Status& status, Outcome outcome);
  // A failure whose Status the bulk part writes to the landing that the client gave for it.
  bool SendFailureInLanding(absl::StatusCode code, Outcome outcome);
  // For a reply that went ahead as a message of the call's stream.
  bool SendReplyApart();
  // The call is over, or its link is lost.
  void Clear() {
    SendWaiter::Unlink();
    if (waits_ || bulk_ != nullptr || beside_ != nullptr) [[unlikely]]
      ClearRest();
  }

 private:
  void OnWritable(Link& link) override;
  void OnTimer() override;
  void OnTransferPosted() override;
  void OnTransferDone(const absl::Status& status) override;

  bool Append();
  // Sends what is left to go beside the messages, and then the response.
  [[gnu::cold, gnu::noinline]] bool SendBeside();
  void Write(char* body);
  bool has_bulk() const { return (frame_.flags & kFrameHasBulk) != 0; }
  size_t context_bytes() const { return context_ == nullptr ? 0 : context_->encoded_bytes(); }
  // The bytes ahead of the message in the body: a context block, a bulk header, and a payload.
  size_t prefix_bytes() const {
    return context_bytes() + (has_bulk() ? bulk_->response().prefix_bytes() : 0);
  }
  // Whether the reply is not in the frame.
  bool reply_travels() const {
    return (frame_.flags & kFrameMessageApart) != 0 ||
           (bulk_ != nullptr && bulk_->response().reply_travels());
  }

  // Rare paths are out of line to keep the hot path small.
  // SendInFrame() found no room.
  [[gnu::cold, gnu::noinline]] void AwaitRoomInFrame(CallLink& call_link, CallId id,
                                                     TimePoint deadline, size_t reply_bytes);
  // Returns the end of what it wrote.
  [[gnu::noinline]] char* WritePrefix(char* body);
  [[gnu::noinline]] void ClearRest();
  // False when there are no WRITEs for the response to wait for.
  [[gnu::noinline]] bool StartWrites();
  // The response finds no room, so it waits. If it waits too long, the link closes.
  [[gnu::cold, gnu::noinline]] void AwaitRoom(Link& link);
  // Call it before a response that had to wait is serialized.
  [[gnu::noinline]] void CheckReply();
  [[gnu::cold, gnu::noinline]] void SetFailure(const absl::Status& status, Outcome outcome,
                                               size_t max_bytes);
  void StartTimer(TimePoint until);
  void StopTimer();
  // The response does not wait for room any more.
  void EndWait();

  ServerState& state_;
  const char* const method_;
  CallMessages& messages_;
  Listener& listener_;

  // State of the current response.
  CallLink* call_link_ = nullptr;
  ServerBulk* bulk_ = nullptr;
  const CallContext* context_ = nullptr;
  TimePoint deadline_ = kNever;
  FrameHeader frame_;
  std::string failure_body_;              // of a failed call, in the frame
  std::unique_ptr<BesideSender> beside_;  // until it has left; null: nothing
  TimePoint beside_until_ = kNever;       // it has left by then, or the link closes
  bool waits_ = false;                    // for room; counted by the CallLink
  bool timer_running_ = false;            // only while it waits
  uint64_t frames_sent_ = 0;              // over the link, when the response began to wait
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_RESPONSE_H_
