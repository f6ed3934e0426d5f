// Calls that carry more than their messages (ContextCall), and calls of a channel that has
// interceptors (InterceptedCall, ClientChain).
//
// In the caller's coroutine; on its executor's thread.

#ifndef VERBENA_RPC_CLIENT_FULL_CALL_H_
#define VERBENA_RPC_CLIENT_FULL_CALL_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "google/protobuf/message_lite.h"
#include "verbena/rpc/call/context_block.h"
#include "verbena/rpc/call/status_codec.h"
#include "verbena/rpc/call_options.h"
#include "verbena/rpc/client/connection.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/rpc/method.h"
#include "verbena/rpc/outcome.h"
#include "verbena/rpc/with_payload.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

// Whether a call may send `context`. INVALID_ARGUMENT if an entry of the metadata, or the trace,
// may not be sent; RESOURCE_EXHAUSTED if the metadata takes more than `max_metadata_bytes`.
absl::Status CheckContext(const CallContext& context, size_t max_metadata_bytes);

// ContextCall: a call with a context block, payloads, or both. It chooses how they travel.
//
// `connection`, `method`, the messages and what `received` names are borrowed until the Task ends.
// INVALID_ARGUMENT or RESOURCE_EXHAUSTED, and nothing is sent, if the metadata may not be sent or
// takes more than `max_metadata_bytes`.
Task<absl::Status> ContextCall(Connection& connection, const MethodDescriptor& method,
                               const google::protobuf::MessageLite& request,
                               google::protobuf::MessageLite& reply, PayloadSink received,
                               CallOptions options, CallContext context, size_t max_metadata_bytes);

// The members of the call's channel that count, which outlive the call.
struct InterceptedChannel {
  const std::string& target;
  const std::vector<std::shared_ptr<ClientInterceptor>>& interceptors;
  size_t max_metadata_bytes;
};

// InterceptedCall: runs the channel's interceptors, and behind them the call.
//
// `options.deadline` is a time, or none. All but `options` and `context` are borrowed until the
// Task ends, also what `received` names.
Task<absl::Status> InterceptedCall(InterceptedChannel channel, Connection& connection,
                                   const MethodDescriptor& method,
                                   const google::protobuf::MessageLite& request,
                                   google::protobuf::MessageLite& reply, PayloadSink received,
                                   CallOptions options, CallContext context);

// ClientChain: the interceptors of one call or stream of a channel, and what is known of the call
// when one of them ends it.
//
// Lives in the frame of the coroutine that makes the call; on its executor's thread.
class ClientChain : public InterceptorChain<ClientInterceptor, ClientCallView> {
 public:
  ClientChain(const List& interceptors, ClientCallView& view)
      : InterceptorChain(interceptors, view), view_(view) {}

  // Whether the call itself has begun. A Task of next() that is never awaited begins nothing.
  bool started() const { return started_; }
  // The status of a call that interceptors may have ended. If an interceptor invented it, its
  // outcome is not_executed. If it comes from another call that the interceptor made, it keeps that
  // call's outcome.
  absl::Status Marked(absl::Status status) const {
    if (status.ok() || started_ || status.GetPayload(kOutcomePayloadUrl).has_value()) return status;
    return WithOutcome(std::move(status), Outcome::kNotExecuted);
  }

 protected:
  // The call itself begins. Returns its context block, as the interceptors have left it.
  CallContext Start() {
    started_ = true;
    return {.priority = view_.priority,
            .request_id = view_.request_id,
            .trace = view_.trace,
            .metadata = view_.metadata};
  }

 private:
  Task<absl::Status> Inner(Task<absl::Status> interceptor) override {
    absl::Status status = co_await std::move(interceptor);
    co_return Marked(std::move(status));
  }

  ClientCallView& view_;
  bool started_ = false;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_FULL_CALL_H_
