// Attempt: one attempt of a unary call, with the channel's interceptors around it. ClientChain: the
// interceptors of a call or a stream.
//
// In the frame of the coroutine that makes the call, on its executor's thread.

#ifndef VERBENA_RPC_CLIENT_ATTEMPT_H_
#define VERBENA_RPC_CLIENT_ATTEMPT_H_

#include <utility>

#include "absl/status/status.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/call/bulk_format.h"
#include "verbena/rpc/call/context_block.h"
#include "verbena/rpc/call/status_codec.h"
#include "verbena/rpc/client/connection.h"
#include "verbena/rpc/client/plain_call.h"
#include "verbena/rpc/client/spec.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

// ClientChain: the interceptors of one call or stream of a channel, and what is known of the call
// when one of them ends it.
//
// Lives in the frame of the coroutine that makes the call; on its executor's thread.
class ClientChain : public InterceptorChain<ClientInterceptor, ClientCallView> {
 public:
  ClientChain(const List& interceptors, ClientCallView& view)
      : InterceptorChain(interceptors, view), view_(view) {}

  // The call itself begins. Returns its context block, as the interceptors have left it.
  CallContext Start() {
    started_ = true;
    return {.priority = view_.priority,
            .request_id = view_.request_id,
            .trace = view_.trace,
            .metadata = view_.metadata};
  }
  // Whether it has begun. A Task of next() that is never awaited begins nothing.
  bool started() const { return started_; }
  // The status of a call that interceptors may have ended. If an interceptor invented it, its
  // outcome is not_executed. If it comes from another call that the interceptor made, it keeps that
  // call's outcome.
  absl::Status Marked(absl::Status status) const {
    if (status.ok() || started_ || status.GetPayload(kOutcomePayloadUrl).has_value()) return status;
    return WithOutcome(std::move(status), Outcome::kNotExecuted);
  }

 private:
  Task<absl::Status> Inner(Task<absl::Status> interceptor) override {
    absl::Status status = co_await std::move(interceptor);
    co_return Marked(std::move(status));
  }

  ClientCallView& view_;
  bool started_ = false;
};

// Makes one attempt of the call over `use`, which it keeps; without one, over a connection that the
// channel finds first. A failure is an interceptor's, or OverConnections()'s.
VERBENA_CORO_WRAPPER Task<absl::Status> Attempt(ConnectionUse use, CallSpec spec);
// One of several attempts, on a server that is not in spec.tried if another one is ready.
VERBENA_CORO_WRAPPER Task<absl::Status> AttemptApart(CallSpec spec);

// An attempt without interceptors: sends the call over `use`, or the connection that the channel
// finds, and gives its buffers back.
//
// If the link is lost before the request has left, the call is sent once more, over the connection
// that the channel finds then: no server has seen it. It is not sent again if the lost link may
// still open the caller's memory for the response.
//
// The call waits if memory or windows are short: for memory at most kMaxMemoryWait, for windows
// until its deadline. INVALID_ARGUMENT or RESOURCE_EXHAUSTED, and nothing is sent, if the method,
// the channel or the link does not take a part of the call.
Task<absl::Status> OverConnections(ConnectionUse use, CallSpec spec);

// The rest of a plain call of `channel` whose server asks for a landing of `wanted`. `call`
// outlives the Task, which takes the call's slot when it begins.
Task<absl::Status> InLanding(ClientChannel& channel, PlainCall& call, LandingRequest wanted);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_ATTEMPT_H_
