// Responses of a server's calls: CallEnding, what a response says; ServerResponse, which sends it;
// and CallMessages, the messages that a call keeps.
//
// Part of a ServerCall, on its executor's thread. A response waits at most
// ServerOptions::response_grace for its client.

#ifndef VERBENA_RPC_SERVER_RESPONSE_H_
#define VERBENA_RPC_SERVER_RESPONSE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "verbena/rpc/detail/message.h"
#include "verbena/rpc/server/parts.h"
#include "verbena/rpc/server/payload.h"
#include "verbena/rpc/service.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/stream/beside.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/link/listener.h"
#include "verbena/transport/link/transfers.h"
#include "verbena/transport/link/wire_format.h"

namespace verbena::internal {

class Link;

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

  // False if `bytes` are no request of the method.
  bool ParseRequest(std::string_view bytes) {
    request_bytes_ = bytes.size();
    return request_->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  }
  // The request is not here yet, or never comes: what is here is that of the call before.
  void ClearRequest() {
    request_bytes_ = 0;
    request_->Clear();
  }
  // Each computes the size of its message on the wire, and keeps it. NoteReply() returns it.
  void NoteRequest() { request_bytes_ = request_->ByteSizeLong(); }
  size_t NoteReply() { return reply_bytes_ = reply_->ByteSizeLong(); }
  // The sizes that are kept.
  size_t request_bytes() const { return request_bytes_; }
  size_t reply_bytes() const { return reply_bytes_; }

  // Each frees its message if the size that is kept, and stays, is over `most`.
  [[gnu::noinline]] void DropRequestBeyond(size_t most);
  [[gnu::noinline]] void DropReplyBeyond(size_t most);
  // The call has failed. Its handler may have made a large reply before.
  [[gnu::cold, gnu::noinline]] void DropFailedReply();

  // The call has ended: empties the reply. A request is emptied when the next one is parsed.
  void Clear() {
    if (request_bytes_ > kMaxPooledBytes || reply_bytes_ > kMaxPooledBytes) [[unlikely]] {
      DropRequestBeyond(kMaxPooledBytes);
      DropReplyBeyond(kMaxPooledBytes);
      request_bytes_ = reply_bytes_ = 0;
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

// CallEnding: how a call ends, as its response says it.
struct CallEnding {
  // How the reply, or the Status of a failure, travels.
  enum class Way : uint8_t {
    kInFrame,    // in the response's frame, or as the call's ServerBulk has planned it
    kAhead,      // the reply went ahead, as a message of the stream
    kBeside,     // what does not fit the frame goes ahead, beside the stream's messages
    kInLanding,  // the Status goes to the landing that the client gave for it
  };

  absl::Status status;
  Outcome outcome = Outcome::kExecuted;  // of a failure
  Way way = Way::kInFrame;
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
  ServerResponse(CallParts& parts, const char* method, CallMessages& messages, Listener& listener)
      : parts_(parts), method_(method), messages_(messages), listener_(listener) {}
  ~ServerResponse() override { StopTimer(); }

  // Both send the response of the call in `parts`, whose link is open. They return true if the
  // response has left, and false if the listener will hear of it. The parts stay as they are until
  // then. The messages keep the size of the reply, which has just been computed.
  //
  // The reply of a call without parts, of `reply_bytes`, which fit a frame of `link`.
  bool SendInFrame(Link& link, size_t reply_bytes);
  // Any other response. A failure that goes in the frame is cut to it. So is one that goes beside
  // if it is too large, or finds the client's share of memory used up.
  bool Send(const CallEnding& ending);
  // The call is over, or its link is lost.
  void Clear() {
    if (begun_) [[unlikely]]
      End();
  }

 private:
  void OnWritable(Link& link) override;
  void OnTimer() override;
  void OnTransferPosted() override;
  void OnTransferDone(const absl::Status& status) override;

  void Begin();
  bool SendFailure(const CallEnding& ending);
  bool Append();
  // Sends what is left to go beside the messages, and then the response.
  [[gnu::cold, gnu::noinline]] bool SendBeside();
  void Write(char* body);
  // Whether the frame has a bulk header.
  bool has_bulk() const { return (frame_.flags & kFrameHasBulk) != 0; }
  WrittenResponse& bulk() const { return parts_.bulk.get()->response(); }
  // The bytes ahead of the message in the body: a context block, a bulk header, and a payload.
  size_t prefix_bytes() const {
    return parts_.carried.outgoing_bytes() + (has_bulk() ? bulk().prefix_bytes() : 0);
  }
  // Whether the reply is not in the frame.
  bool reply_travels() const {
    return (frame_.flags & kFrameMessageApart) != 0 ||
           (parts_.bulk.get() != nullptr && bulk().reply_travels());
  }

  // Rare paths are out of line to keep the hot path small.
  // SendInFrame() found no room.
  [[gnu::cold, gnu::noinline]] void AwaitRoomInFrame();
  // Returns the end of what it wrote.
  [[gnu::noinline]] char* WritePrefix(char* body);
  [[gnu::noinline]] void End();
  // False when there are no WRITEs for the response to wait for.
  [[gnu::noinline]] bool StartWrites();
  // The response finds no room, so it waits. If it waits too long, the link closes.
  [[gnu::cold, gnu::noinline]] void AwaitRoom(Link& link);
  // Call it before a response that had to wait is serialized.
  [[gnu::noinline]] void CheckReply();
  // The response says so, with `body` in its frame.
  [[gnu::cold, gnu::noinline]] void SetFailure(absl::StatusCode code, Outcome outcome,
                                               std::string body);
  void StartTimer(TimePoint until);
  void StopTimer();
  // The response does not wait for room any more.
  void EndWait();

  CallParts& parts_;
  const char* const method_;
  CallMessages& messages_;
  Listener& listener_;

  // State of the current response.
  FrameHeader frame_;
  std::string failure_body_;              // of a failed call, in the frame
  std::unique_ptr<BesideSender> beside_;  // until it has left; null: nothing
  TimePoint beside_until_ = kNever;       // it has left by then, or the link closes
  bool begun_ = false;                    // until Clear()
  bool waits_ = false;                    // for room; counted by the CallLink
  bool timer_running_ = false;            // only while it waits
  uint64_t frames_sent_ = 0;              // over the link, when the response began to wait
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_RESPONSE_H_
