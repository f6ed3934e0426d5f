// The parts of generated stubs: unary calls in the shapes that users call.
//
// UnaryCall borrows request and reply until its Task ends, and allocates nothing in steady state.
// The templates around it own a reply (StatusOr) or a request (rvalue).

#ifndef VERBENA_RPC_STUB_H_
#define VERBENA_RPC_STUB_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message_lite.h"
#include "verbena/rpc/call_options.h"
#include "verbena/rpc/method.h"
#include "verbena/transport/coro/task.h"

namespace verbena {

class Channel;

namespace internal {

// Takes `options` before it returns; the rest is borrowed until the Task ends.
VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS Task<absl::Status> UnaryCall(
    Channel& channel, const MethodDescriptor& method, const google::protobuf::MessageLite& request,
    google::protobuf::MessageLite& reply, CallOptions&& options);

template <typename Reply>
Task<absl::StatusOr<Reply>> UnaryCallReturning(Channel& channel, const MethodDescriptor& method,
                                               const google::protobuf::MessageLite& request,
                                               CallOptions options) {
  absl::StatusOr<Reply> reply(absl::in_place);
  absl::Status status = co_await UnaryCall(channel, method, request, *reply, std::move(options));
  if (!status.ok()) reply = std::move(status);
  co_return std::move(reply);
}

template <typename Reply, typename Request>
Task<absl::StatusOr<Reply>> UnaryCallOwning(Channel& channel, const MethodDescriptor& method,
                                            Request request, CallOptions options) {
  absl::StatusOr<Reply> reply(absl::in_place);
  absl::Status status = co_await UnaryCall(channel, method, request, *reply, std::move(options));
  if (!status.ok()) reply = std::move(status);
  co_return std::move(reply);
}

}  // namespace internal
}  // namespace verbena

#endif  // VERBENA_RPC_STUB_H_
