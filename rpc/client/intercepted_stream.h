// InterceptedStream: the interceptors of one stream of a channel, from the stream's first await to
// its end.
//
// A Task of its own runs them, since no await of the stream lasts as long. The stream begins when
// the last one calls next(), and next() returns when the stream has ended; the status that comes
// out of the first one is the stream's. Owned by the stream, whose owner may be gone before the
// interceptors have ended: then their Task is destroyed. On the stream's executor.

#ifndef VERBENA_RPC_CLIENT_INTERCEPTED_STREAM_H_
#define VERBENA_RPC_CLIENT_INTERCEPTED_STREAM_H_

#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "google/protobuf/message_lite.h"
#include "verbena/rpc/call/context_format.h"
#include "verbena/rpc/client/intercepted_call.h"
#include "verbena/rpc/client/stream_call.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/rpc/stream/message_hooks.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/event.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

// The messages of a stream that interceptors see. A side that streams has an empty one.
struct StreamMessages {
  std::unique_ptr<google::protobuf::MessageLite> request;
  std::unique_ptr<google::protobuf::MessageLite> reply;
};

class InterceptedStream final : private TaskListener {
 public:
  // All that is given by reference outlives this. Precondition: call.clock_started(),
  // !call.begun().
  InterceptedStream(InterceptedChannel channel, StreamBeginner& beginner, StreamCall& call,
                    StreamMessages messages);
  InterceptedStream(const InterceptedStream&) = delete;
  InterceptedStream& operator=(const InterceptedStream&) = delete;
  ~InterceptedStream() override = default;

  // Runs the interceptors up to their first wait; once. `context` is the stream's before they have
  // changed it, `trace` that of the Task that begins the stream; null if there is none.
  void Start(Scheduler& scheduler, CallContext context, const TraceContext* trace);

  // The stream has begun, or ended.
  Event::Awaiter Begun() { return begun_.Wait(); }
  // The interceptors have ended, and so has the stream. If the await is cancelled, so are they, and
  // the Task goes on until they have ended.
  Task<absl::Status> Finish();
  // The reply of a stream that ended well, as the interceptors left it. Empty if it came
  // as a message of the stream, apart from the response.
  const google::protobuf::MessageLite& reply() const { return *messages_.reply; }
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
  StreamBeginner& beginner_;
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

#endif  // VERBENA_RPC_CLIENT_INTERCEPTED_STREAM_H_
