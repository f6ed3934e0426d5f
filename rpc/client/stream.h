// Streams at the client: StreamCall, the awaits of its beginning and end, and its interceptors.
//
// The caller's ClientReader, ClientWriter or ClientReaderWriter owns them, on one executor's
// thread. The stream's windows, and the server's quota of landings, bound what they hold.

#ifndef VERBENA_RPC_CLIENT_STREAM_H_
#define VERBENA_RPC_CLIENT_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/call/context_block.h"
#include "verbena/rpc/client/connection.h"
#include "verbena/rpc/client/full_call.h"
#include "verbena/rpc/client/session.h"
#include "verbena/rpc/detail/message.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/stream/beside.h"
#include "verbena/rpc/stream/receiver.h"
#include "verbena/rpc/stream/sender.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/quota.h"
#include "verbena/transport/coro/sync.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

class ClientSession;
class Endpoint;

// ReplyBuffers: memory for the payloads of a stream's messages at its client.
//
// Landing memory, within the quota of the connection's server (landings.h): the server chooses how
// large its payloads are. Part of a StreamCall, on its executor's thread. Works on once the
// link is lost, since what came before can still be read.
class ReplyBuffers final : public StreamBuffers {
 public:
  // A stream begins on `session`, which has its link. `deadline` is the stream's.
  void Begin(const ClientSession& session, TimePoint deadline);

  absl::StatusOr<Buffer> TryAllocate(size_t bytes) override;
  Task<absl::StatusOr<Buffer>> Allocate(size_t bytes) override;

 private:
  std::shared_ptr<Quota> quota_;
  const Endpoint* endpoint_ = nullptr;
  std::weak_ptr<const bool> alive_;  // the endpoint
  TimePoint deadline_ = kNever;
};

class StreamCall;

// Waits for the response of a stream. co_await gives nothing: the call knows its status.
class StreamEndAwaiter final : public Suspension {
 public:
  explicit StreamEndAwaiter(StreamCall& call) : call_(&call) {}
  ~StreamEndAwaiter() override;

  bool await_ready() const noexcept { return false; }
  template <typename Promise>
    requires std::derived_from<Promise, PromiseBase>
  bool await_suspend(std::coroutine_handle<Promise> coroutine) {
    return Await(coroutine.promise());
  }
  void await_resume() const noexcept {}

 private:
  friend StreamCall;
  bool Await(PromiseBase& caller);
  void End() { Resume(); }
  void Detach() override;

  StreamCall* call_;  // nullptr once the call has ended
};

// StreamCall: one stream of a client, from its request to its response: a call that also sends and
// receives messages.
//
// The first await begins the call and finds a link. The server's response, a deadline, a
// cancellation or the loss of the link ends it, whichever is first. The request may carry a context
// block, in the frame or behind it, beside the messages. The messages that came before the
// response can still be read after it. Owned by the caller's ClientReader, ClientWriter or
// ClientReaderWriter, whose destruction abandons the call. One thread.
class StreamCall : private RegisteredCall,
                   private StreamReceiver::Listener,
                   private SendWaiter,
                   private Timer {
 public:
  // `method` is borrowed. `request` is the serialized message of a method whose client sends one.
  StreamCall(const MethodDescriptor& method, Deadline deadline, CallInfo* info,
             std::string request);
  StreamCall(const StreamCall&) = delete;
  StreamCall& operator=(const StreamCall&) = delete;
  ~StreamCall() override;

  const MethodDescriptor& method() const { return method_; }

  // The call's time begins. Call it once, before Begin(). `scope` belongs to the Task from which
  // the call inherits its deadline; null if it inherits none. 0 is no `timeout`.
  void StartClock(Scheduler& scheduler, const CancelScope* scope, Duration timeout = {});
  bool clock_started() const { return scheduler_ != nullptr; }
  // A time, or none. Precondition: clock_started().
  Deadline deadline() const { return deadline_; }
  // The call's context block, set before it begins; none is the default.
  void set_context(CallContext context);
  // The caller's CallInfo. If there is none, `own`, which is the call's from now on and outlives
  // it.
  CallInfo& InfoOr(CallInfo& own) {
    if (info_ == nullptr) info_ = &own;
    return *info_;
  }

  // Whether it has begun; then it may have ended, too.
  bool begun() const { return stage_ != Stage::kNew; }
  // Begins the call once there is a link for it. After the await the call has begun, or has ended,
  // unless the await was cancelled.
  virtual Task<void> BeginOnceConnected() = 0;
  // Begins the call over `connection`, unless it has begun. False if there is no usable link.
  bool Begin(Connection& connection);
  // Ends a call that has not begun, and now cannot: as `status` says, or not_executed.
  void EndUnbegun(absl::Status status);
  void Refuse(absl::Status status);

  StreamReceiver& receiver() { return receiver_; }
  StreamSender& sender() { return sender_; }
  // Precondition: Begin() returned true. Sends no more messages.
  void EndWrites() { sender_.SendEnd(); }

  // Gives up a call that has not ended. Precondition of this and the following functions: Begin()
  // returned true.
  void GiveUp(absl::Status status);
  // The same for a wait that was cancelled, and for that reason.
  void GiveUpFor(absl::StatusCode reason);
  bool ended() const { return stage_ == Stage::kEnded; }
  // Its owner is gone: gives up a call that has not ended, and writes no CallInfo any more.
  void Abandon();
  // How the call ended. Precondition: ended().
  const absl::Status& status() const { return status_; }
  // Whether the reply came as the stream's only message.
  bool reply_apart() const { return reply_apart_; }
  // Notes the length of a reply_apart(), for the CallInfo.
  void NoteReply(size_t bytes);
  // Parses a reply that is not reply_apart(). False if it does not parse.
  bool ParseReply(MessageLite& reply);
  // The reply does not parse.
  absl::Status Unparsed(const MessageLite& reply) const;

 protected:
  // The scope of waits for a link. The end of the call cancels them.
  CancelScope& waits_for_link() { return connects_; }

 private:
  friend StreamEndAwaiter;
  enum class Stage : uint8_t { kNew, kActive, kEnded };

  // Empties the CallInfo, as the call begins.
  void BeginInfo();
  void BeginOn(ClientSession& session, Scheduler& scheduler);
  absl::Status Refusal(const ClientSession& session, uint16_t number) const;
  absl::Status OnResponse(const FrameHeader& frame, const char* body) override;
  absl::Status OnLandingNeeded(const LandingRequest& wanted) override;
  absl::Status OnStreamFrame(const FrameHeader& frame, const char* body) override;
  void OnLinkDown(const absl::Status& reason) override;
  void SendRequest();
  void OnWritable(Link& link) override;
  // Whether the context block does not go into the request's frame.
  bool ContextTravels(const Link& link) const;
  // The bytes that the request's frame begins with: the block, or a header that tells of it.
  size_t ContextInFrame(const Link& link) const;
  void WriteContext(const Link& link, char* body);
  // Sends what is left of a block that follows the request.
  void SendContext(Link& link);
  // Part of a failure's Status, ahead of the response.
  absl::Status OnBeside(const FrameHeader& frame, const char* body);
  // The response says that the stream failed. `body` is behind its context block.
  absl::Status SetFailure(const FrameHeader& frame, const char* body, uint32_t bytes);
  void OnTimer() override;
  void OnReceiveFailed(const absl::Status& status) override;
  // The call is over, as status_ says.
  void End();

  const MethodDescriptor& method_;
  CancelScope connects_;  // of waits_for_link()
  Deadline deadline_;
  CallInfo* info_;
  std::string request_;
  std::unique_ptr<CallContext> context_;        // until the request is sent; null: none
  std::unique_ptr<BesideSender> context_rest_;  // a block behind the request, until it is sent
  std::unique_ptr<BesideReceiver> failure_;     // a Status that came ahead of the response
  Scheduler* scheduler_ = nullptr;
  ClientSession* session_ = nullptr;
  CallId id_;
  uint16_t method_number_ = 0;
  Stage stage_ = Stage::kNew;
  bool sent_ = false;  // the request was given to the link
  TimePoint started_{};
  ReplyBuffers buffers_;
  StreamReceiver receiver_{*this};
  StreamSender sender_;
  StreamEndAwaiter* finisher_ = nullptr;
  std::string reply_;  // serialized
  bool reply_apart_ = false;
  absl::Status status_;
};

// The request and the reply of a stream, as interceptors see them. The message of a side that
// streams is empty.
struct StreamMessages {
  std::unique_ptr<MessageLite> request;
  std::unique_ptr<MessageLite> reply;
};

// The members of a stream's channel that interceptors need, which outlive the stream.
struct InterceptedChannel {
  const std::string& target;
  const std::vector<std::shared_ptr<ClientInterceptor>>& interceptors;
  size_t max_metadata_bytes;
};

// InterceptedStream: the interceptors of one stream of a channel, from the stream's first await to
// its end.
//
// A Task of its own runs them, since no await of the stream lasts as long. The stream begins when
// the last one calls next(), and next() returns when the stream has ended; the status that comes
// out of the first one is the stream's. Owned by the stream, whose owner may be gone before the
// interceptors have ended: then their Task is destroyed. On the stream's executor.
class InterceptedStream final : private TaskListener {
 public:
  // All references outlive this object. Precondition: call.clock_started(), !call.begun().
  InterceptedStream(InterceptedChannel channel, StreamCall& call, StreamMessages messages);
  InterceptedStream(const InterceptedStream&) = delete;
  InterceptedStream& operator=(const InterceptedStream&) = delete;
  ~InterceptedStream() override = default;

  // Runs the interceptors up to their first wait. Call it once. `context` is the stream's, before
  // interceptors change it. `trace` is that of the Task that begins the stream; null if there is
  // none.
  void Start(Scheduler& scheduler, CallContext context, const TraceContext* trace);

  // The stream has begun, or ended.
  Event::Awaiter Begun() { return begun_.Wait(); }
  // Waits until the interceptors, and so the stream, have ended. If the await is cancelled, the
  // interceptors are cancelled, and the Task goes on until they have ended.
  Task<absl::Status> Finish();
  // The reply of a stream that ended well, as the interceptors left it. Empty if the reply came as
  // a message of the stream, apart from the response.
  const MessageLite& reply() const { return *messages_.reply; }
  // The stream's owner is gone.
  void Abandon();

 private:
  class Chain;

  Task<absl::Status> Run();
  void OnTaskDone() override;
  absl::Status Thrown(const char* what) const;
  void End(absl::Status status);
  Task<void> AwaitDone();

  const InterceptedChannel channel_;
  StreamCall& call_;
  const StreamMessages messages_;
  CallInfo own_info_;  // interceptors read trailing metadata even if the caller does not
  // From Start() on. Messages are read also after the interceptors have ended.
  std::optional<ClientCallView> view_;
  std::optional<MessageHooks<ClientInterceptor, ClientCallView>> hooks_;
  CancelScope scope_;
  Event begun_;
  Event done_;
  bool ended_well_ = false;  // next() of the last interceptor returned OK
  absl::Status status_;
  Task<absl::Status> task_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_STREAM_H_
