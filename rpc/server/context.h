// ContextAccess: makes a handler's ServerContext (service.h), and reads and sets what handlers may
// not. For ServerCall and named_run. context.cc has the bodies of ServerContext.
//
// On the executor's thread of the call.

#ifndef VERBENA_RPC_SERVER_CONTEXT_H_
#define VERBENA_RPC_SERVER_CONTEXT_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/server/parts.h"
#include "verbena/rpc/service.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/coro/cancel.h"

namespace verbena::internal {

class ContextAccess {
 public:
  // All outlive the context.
  static ServerContext Make(const MethodDescriptor& method, CancelScope& cancel,
                            const std::string& peer, CallParts& parts) {
    return {method, cancel, peer, parts};
  }
  static void SetDeadline(ServerContext& context, Deadline deadline) {
    context.deadline_ = deadline;
  }
  // The outcome that `status` got from NotExecuted() or MaybeExecuted(); none if neither made it.
  static std::optional<Outcome> OutcomeGiven(const ServerContext& context,
                                             const absl::Status& status);
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_CONTEXT_H_
