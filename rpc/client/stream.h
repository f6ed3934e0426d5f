// Streams at the client: ClientStream, the await of its end, and its interceptors. The bodies of
// rpc/detail/stream_awaits.h that only clients use lie here, too.
//
// The caller's ClientReader, ClientWriter or ClientReaderWriter owns them, on one executor's
// thread. The stream's windows, and the server's quota of landings, bound what they hold.

#ifndef VERBENA_RPC_CLIENT_STREAM_H_
#define VERBENA_RPC_CLIENT_STREAM_H_

#include <concepts>
#include <coroutine>
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
#include "verbena/rpc/client/policies.h"
#include "verbena/rpc/client/session.h"
#include "verbena/rpc/detail/message.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/rpc/stream/beside.h"
#include "verbena/rpc/stream/receiver.h"
#include "verbena/rpc/stream/sender.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/ticks.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/quota.h"
#include "verbena/transport/coro/sync.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

class Endpoint;
class Link;
class MethodCounts;
struct ExecutorCounts;

// ReplyBuffers: memory for the payloads of a stream's messages at its client.
//
// Landing memory, within the quota of the connection's server (landings.h): the server chooses how
// large its payloads are. Part of a ClientStream, on its executor's thread. Works on once the
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

class ClientStream;
class InterceptedStream;

// Waits for the response of a stream. co_await gives nothing: the stream knows its status.
class StreamEndAwaiter final : public Suspension {
 public:
  explicit StreamEndAwaiter(ClientStream& stream) : stream_(stream) {}
  ~StreamEndAwaiter() override;

  bool await_ready() const noexcept { return false; }
  template <typename Promise>
    requires std::derived_from<Promise, PromiseBase>
  bool await_suspend(std::coroutine_handle<Promise> coroutine) {
    return Await(coroutine.promise());
  }
  void await_resume() const noexcept {}

 private:
  friend ClientStream;
  bool Await(PromiseBase& caller);
  void Detach() override;

  ClientStream& stream_;
};

// The request and the reply of a stream, as interceptors see them. The message of a side that
// streams is empty.
struct StreamMessages {
  std::unique_ptr<MessageLite> request;
  std::unique_ptr<MessageLite> reply;
};

// ClientStream: one stream of a client, from its request to its response: a call that also sends
// and receives messages.
//
// The first await begins the call, or its interceptors, and finds a link. The server's response, a
// deadline, a cancellation or the loss of the link ends it, whichever is first. The request may
// carry a context block, in the frame or behind it, beside the messages. The messages that came
// before the response can still be read after it. Counted by StreamHandle, which abandons the call
// when it goes, and by StreamRef, which the coroutines of its awaits hold. One thread.
class ClientStream final : private RegisteredCall,
                           private StreamReceiver::Listener,
                           private SendWaiter,
                           private Timer {
 public:
  // As StreamHandle's.
  ClientStream(ClientChannel& channel, const MethodDescriptor& method, const MessageLite& request,
               const MessageLite& reply, CallOptions& options);
  ClientStream(const ClientStream&) = delete;
  ClientStream& operator=(const ClientStream&) = delete;
  ~ClientStream() override;

  // Another StreamRef has come.
  void Hold() { ++holders_; }
  // A StreamRef or the StreamHandle has gone. The last one frees the stream.
  void Release();

  ClientChannel& channel() const { return channel_; }
  const MethodDescriptor& method() const { return method_; }
  StreamReceiver& receiver() { return receiver_; }
  StreamSender& sender() { return sender_; }

  // For an await in `scope`, which may be null: begins the call, or its interceptors, unless they
  // have begun. False if the call has neither begun nor ended: then it waits for a link.
  bool BeginIn(CancelScope* scope);
  // The same, and waits for the link. After the await the call has begun, or has ended, unless the
  // await was cancelled. Several may wait at once.
  Task<void> Begin();
  // Begin() of the call itself, within its interceptors. Precondition: BeginIn() was called.
  Task<void> BeginOnceConnected();
  // Whether the call has begun. It may have ended, too.
  bool begun() const { return stage_ != Stage::kNew; }

  // Sends no more messages. Precondition: begun().
  void EndWrites() { sender_.SendEnd(); }
  // Waits for the end, and gives the final status. If the await is cancelled, the call ends.
  Task<absl::Status> Ended();
  bool ended() const { return stage_ == Stage::kEnded; }
  // How the call ended. Precondition: ended().
  const absl::Status& status() const { return status_; }
  // Gives the caller the reply of a stream that ended well. `read` is what a Read of the stream
  // into `reply` gave. The error: the reply does not parse.
  absl::Status GiveReply(const absl::StatusOr<bool>& read, MessageLite& reply);

  // Ends a call that has not ended: as not_executed if its request has not left.
  void GiveUp(absl::Status status);
  // The same for a wait that was cancelled, and for that reason.
  void GiveUpFor(absl::StatusCode reason);
  // The same, since the owner is gone. From now on, writes no CallInfo.
  void Abandon();

  // For the interceptors, until the call begins. The deadline is a time, or none.
  Deadline deadline() const { return deadline_; }
  // The caller's CallInfo. If there is none, `own`, which is the call's from now on and outlives
  // it.
  CallInfo& InfoOr(CallInfo& own) {
    if (info_ == nullptr) info_ = &own;
    return *info_;
  }
  // Gives the call its context block. Refuses the call if it may not send that.
  void SetContext(CallContext context);
  // Ends the call, as `status` says. Precondition: !begun().
  void EndUnbegun(absl::Status status);
  // For the interceptors, when the call has ended well. Whether the reply came as the stream's only
  // message; otherwise ParseReply() gives it.
  bool reply_apart() const { return reply_apart_; }
  absl::Status ParseReply(MessageLite& reply) const;

 private:
  friend StreamEndAwaiter;
  enum class Stage : uint8_t { kNew, kActive, kEnded };

  // The first await: takes over what the call inherits, and begins the interceptors. `scope`
  // belongs to the Task that awaits; null if the call inherits nothing.
  void TakeOver(const CancelScope* scope);
  void StartClock(const CancelScope* scope);
  // Empties the CallInfo.
  void BeginInfo();
  void StartCount(ExecutorCounts* counts);
  // EndUnbegun(), as not_executed.
  void Refuse(absl::Status status);
  // Begins the call over a link that is ready. False if none is, and the call has not begun.
  bool BeginHere();
  bool BeginOver(Connection& connection);
  absl::Status Refusal(const ClientSession& session) const;
  // This executor's account; null if the stream's method has no RetryPolicy.
  RetryAccount* Account() const;
  // Looks for a link, after the pause that is due before a further attempt.
  Task<absl::StatusOr<ConnectionUse>> Connect();
  // No link could be had, and no message has left. Plans a further attempt, or ends the stream.
  void OnNoLink(const absl::Status& failure);

  void SendRequest();
  void OnWritable(Link& link) override;
  // Whether the context block does not go into the request's frame.
  bool ContextTravels(const Link& link) const;
  // The bytes that the request's frame begins with: the block, or a header that tells of it.
  size_t ContextInFrame(const Link& link) const;
  void WriteContext(const Link& link, char* body);
  // Sends what is left of a block that follows the request.
  void SendContext(Link& link);

  absl::Status OnStreamFrame(const FrameHeader& frame, const char* body) override;
  // Part of a failure's Status, ahead of the response.
  absl::Status OnBeside(const FrameHeader& frame, const char* body);
  absl::Status OnResponse(const FrameHeader& frame, const char* body) override;
  // The response says that the stream failed. `body` is behind its context block.
  absl::Status SetFailure(const FrameHeader& frame, const char* body, uint32_t bytes);
  absl::Status OnLandingNeeded(const LandingRequest& wanted) override;
  void OnLinkDown(const absl::Status& reason) override;
  const char* method_name() const override { return method_.full_name; }
  void OnTimer() override;
  void OnReceiveFailed(const absl::Status& status) override;
  // The call is over, as status_ says.
  void End();
  void NoteReply(size_t bytes);
  absl::Status Unparsed(const MessageLite& reply) const;

  ClientChannel& channel_;
  const MethodDescriptor& method_;
  const MethodConfig* const policy_;  // nullptr: none
  const std::optional<uint64_t> route_key_;
  const bool wait_for_ready_;
  const bool inherits_;
  CancelScope connects_;  // of the wait for a link, which ends once the call has begun or ended
  Mutex connecting_;      // of the await that waits for a link: all share its attempts
  std::optional<RetrySeries> retries_;  // once one has waited, if the method has a RetryPolicy
  std::optional<TimePoint> retry_at_;   // a further attempt, which has not begun
  Deadline deadline_;
  CallInfo* info_;
  StreamMessages seen_;  // until interceptors begin
  std::string request_;  // serialized, until it is sent
  // Null: empty. The caller's until the call begins, and then all of it until the request is sent.
  std::unique_ptr<CallContext> context_;
  std::unique_ptr<BesideSender> context_rest_;  // a block behind the request, until it is sent
  std::unique_ptr<BesideReceiver> failure_;     // a Status that came ahead of the response
  Scheduler* scheduler_ = nullptr;              // null until the first await
  ClientSession* session_ = nullptr;
  CallId id_;
  uint16_t method_number_ = 0;
  Stage stage_ = Stage::kNew;
  bool sent_ = false;     // the request was given to the link
  uint32_t holders_ = 1;  // StreamRefs, and the StreamHandle
  TimePoint started_{};
  MethodCounts* counts_ = nullptr;  // null: not counted, or no more
  Ticks began_ = 0;
  ReplyBuffers buffers_;
  StreamReceiver receiver_{*this};
  StreamSender sender_;
  StreamEndAwaiter* finisher_ = nullptr;
  std::string reply_;  // serialized
  bool reply_apart_ = false;
  absl::Status status_;
  // Null: no interceptors have begun. Ends before the halves whose messages it hears.
  std::unique_ptr<InterceptedStream> interception_;
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
  // Part of `stream`, whose clock runs and whose call has not begun.
  InterceptedStream(ClientStream& stream, StreamMessages messages);
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

  ClientStream& stream_;
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
