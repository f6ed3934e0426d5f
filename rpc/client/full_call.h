// Calls that are more than one request and one reply in a frame each: CallSpec, which is all of
// such a call before it is sent, and FullCall, which makes one attempt of it over one connection.
//
// ClientChain has the interceptors around a call. All live in the frame of the coroutine that makes
// the call, on its executor's thread. A call waits for memory and windows, which bound it.

#ifndef VERBENA_RPC_CLIENT_FULL_CALL_H_
#define VERBENA_RPC_CLIENT_FULL_CALL_H_

#include <cstddef>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/call/bulk_format.h"
#include "verbena/rpc/call/context_block.h"
#include "verbena/rpc/call/status_codec.h"
#include "verbena/rpc/client/connection.h"
#include "verbena/rpc/client/plain_call.h"
#include "verbena/rpc/detail/message.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/compiler.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

class ClientChain;
class ClientChannel;

// All of a call before it is sent. Everything that it refers to, also through `received` and
// `options`, is borrowed until the call ends.
struct CallSpec {
  const MethodDescriptor& method;
  const MessageLite& request;
  MessageLite& reply;
  PayloadSink received = {};
  // `deadline` is a time, or none. The metadata goes into `context` when an attempt begins.
  CallOptions options = {};
  CallContext context = {};
  // Finds a connection for the call, and another one, once, if the link is lost before the request
  // has left and may_repeat is true.
  ClientChannel* channel = nullptr;
  bool may_repeat = true;
  // Not null: give the call its context block when it begins.
  ClientChain* interceptors = nullptr;
  // Not null: receives the request's payload, instead of returned_payload, if a server of the
  // attempt may still read it. A further attempt may send it; nobody may change it.
  Payload* lent_payload = nullptr;
};

// Waits for a connection for the call. An error has Outcome::kNotExecuted.
VERBENA_CORO_WRAPPER Task<absl::StatusOr<ConnectionUse>> RouteOf(const CallSpec& spec);

// Whether a call may send `context`. INVALID_ARGUMENT if an entry of the metadata, or the trace,
// may not be sent; RESOURCE_EXHAUSTED if the metadata takes more than `max_metadata_bytes`.
absl::Status CheckContext(const CallContext& context, size_t max_metadata_bytes);

// Whether `options` name a payload, or room for one.
inline bool HasPayloads(const CallOptions& options) {
  return options.request_payload.present() || options.response_payload_into ||
         options.max_response_payload != 0;
}
// The same, or whether `method` has payloads.
inline bool HasPayloads(const MethodDescriptor& method, const CallOptions& options) {
  return method.payloads != Payloads::kNone || HasPayloads(options);
}

// FullCall: one attempt of the call, over `connection`, which it keeps; without one, over that
// which the channel finds, whose server joins `tried` unless that is null. It connects if it must,
// chooses what travels in the frame and what one-sided, takes memory and leases, sends, and gives
// the caller its buffers back, once each.
//
// If the link is lost before the request has left, the call is made once more, over the connection
// that CallSpec::channel finds: no server has seen it. It is not made again if the lost link
// may still open the caller's memory for the response.
//
// The call waits if memory or windows are short: for memory at most kMaxMemoryWait, for windows
// until its deadline. INVALID_ARGUMENT or RESOURCE_EXHAUSTED, and nothing is sent, if the method,
// the channel or the link does not take a part of the call.
//
// The first form keeps `spec` in its frame, the second one borrows it until the Task ends. Moving a
// CallSpec costs a hundred instructions.
VERBENA_CORO_WRAPPER Task<absl::Status> FullCall(ConnectionUse connection, CallSpec&& spec);
VERBENA_CORO_WRAPPER Task<absl::Status> FullCall(ConnectionUse connection, CallSpec& spec,
                                                 TriedServers* tried = nullptr);

// Gives the caller of a call that never began its buffers back.
void ReturnUnsent(CallOptions& options, PayloadSink received);
// The same; returns `status` as the call's final one.
absl::Status FailUnsent(absl::Status status, CallOptions& options, PayloadSink received);

// The end of a plain call whose server asks for a landing of `wanted` for the response. `call`
// outlives the Task, which takes the call's slot when it begins.
Task<absl::Status> FinishInLanding(PlainCall& call, LandingRequest wanted);

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

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_FULL_CALL_H_
