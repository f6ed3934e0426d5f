// ServerContext: what a handler may ask about the call that it serves.
//
// Owned by the runtime, one per call, on the executor that runs the handler; valid until the
// handler's Task ends. Awaits of the handler end with CANCELLED or DEADLINE_EXCEEDED by themselves
// when the call does, so most handlers need none of this.

#ifndef VERBENA_RPC_SERVER_CONTEXT_H_
#define VERBENA_RPC_SERVER_CONTEXT_H_

#include <string>

#include "absl/status/status.h"
#include "verbena/rpc/deadline.h"
#include "verbena/rpc/method.h"
#include "verbena/transport/coro/cancel.h"

namespace verbena {

class ServerContext {
 public:
  // The caller's deadline by this machine's clock; not set when it has none. For nested calls:
  // `stub.Get(request, {.deadline = context.deadline()})`.
  Deadline deadline() const { return deadline_; }
  // True once the caller gave up, its deadline passed, its link was lost, or the server is shutting
  // down.
  bool cancelled() const { return cancel_.requested(); }
  // OK, or why cancelled() is true.
  absl::Status cancel_status() const { return cancel_.status(); }
  // Who calls, as logs name it; the address of its bootstrap connection.
  const std::string& peer() const { return *peer_; }
  const MethodDescriptor& method() const { return *method_; }

 private:
  friend class ServerCall;
  ServerContext(const MethodDescriptor& method, CancelScope& cancel, const std::string& peer)
      : method_(&method), cancel_(cancel), peer_(&peer) {}

  const MethodDescriptor* method_;
  CancelScope& cancel_;
  const std::string* peer_;
  Deadline deadline_;
};

}  // namespace verbena

#endif  // VERBENA_RPC_SERVER_CONTEXT_H_
