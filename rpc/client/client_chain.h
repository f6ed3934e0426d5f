// ClientChain: the interceptors of one call or stream of a channel, and what is known of the call
// when one of them ends it.
//
// Lives in the frame of the coroutine that makes the call; on its executor's thread.

#ifndef VERBENA_RPC_CLIENT_CLIENT_CHAIN_H_
#define VERBENA_RPC_CLIENT_CLIENT_CHAIN_H_

#include <utility>

#include "absl/status/status.h"
#include "verbena/rpc/call/context_format.h"
#include "verbena/rpc/call/status_codec.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/rpc/outcome.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

class ClientChain : public InterceptorChain<ClientInterceptor, ClientCallView> {
 public:
  ClientChain(const List& interceptors, ClientCallView& view)
      : InterceptorChain(interceptors, view), view_(view) {}

  // Whether the call itself has begun. A Task of next() that is never awaited begins nothing.
  bool started() const { return started_; }
  // The status of a call that interceptors may have ended. One that they made up is not_executed;
  // one of another call, which they may have made instead, keeps its outcome.
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

#endif  // VERBENA_RPC_CLIENT_CLIENT_CHAIN_H_
