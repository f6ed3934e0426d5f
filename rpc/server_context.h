// ServerContext: what a handler may ask about the call that it serves.
//
// Owned by the runtime, one per call, on the executor that runs the handler; valid until the
// handler's Task ends. Awaits of the handler end with CANCELLED or DEADLINE_EXCEEDED by themselves
// when the call does, so most handlers need none of this.

#ifndef VERBENA_RPC_SERVER_CONTEXT_H_
#define VERBENA_RPC_SERVER_CONTEXT_H_

#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/deadline.h"
#include "verbena/rpc/loan.h"
#include "verbena/rpc/method.h"
#include "verbena/rpc/payload.h"
#include "verbena/rpc/remote_memory.h"
#include "verbena/rpc/server_payloads.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/memory/buffer.h"

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

  // The payload of the request, which has arrived in full.
  size_t request_payload_bytes() const { return payloads_.request_payload_bytes(); }
  // Takes it: the handler may keep it. Empty the second time.
  Buffer TakeRequestPayload() { return payloads_.TakeRequestPayload(); }

  // Memory for what is to be sent to this caller: `bytes` of it, page-aligned. Waits while the
  // budget is used up, until the call's deadline.
  VERBENA_CORO_WRAPPER Task<absl::StatusOr<Buffer>> AllocateBuffer(size_t bytes) {
    return payloads_.AllocateBuffer(bytes);
  }
  // What the call answers with, when the handler returns OK; behind what WriteResponsePayload()
  // wrote. Memory from AllocateBuffer(), or registered with the same device.
  void SetResponsePayload(Payload payload) { payloads_.SetResponsePayload(std::move(payload)); }
  // The caller's memory that is left for it; 0 also where the caller left it to the server to say
  // how much it takes.
  size_t response_payload_room() const { return payloads_.response_payload_room(); }
  // Writes `part` into the caller's memory now, behind what was written before, for handlers that
  // produce a payload piece by piece. Returns when the part's memory may be used again.
  // RESOURCE_EXHAUSTED beyond response_payload_room(). One at a time; the part's Buffer lives until
  // the Task is awaited to its end or destroyed.
  VERBENA_CORO_WRAPPER Task<absl::Status> WriteResponsePayload(BufferView part) {
    return payloads_.WriteResponsePayload(part);
  }

  // Memory that the caller lends, by a handle of its request (remote_memory.h). INVALID_ARGUMENT
  // for a handle that names nothing, FAILED_PRECONDITION for one of another link than this call's.
  absl::StatusOr<RemoteMemory> Remote(const RemoteMemoryHandle& handle) {
    return payloads_.Remote(handle);
  }
  // Lends memory from AllocateBuffer(), or registered with the same device, to the caller, which
  // makes a Channel::Remote() of the handle (loan.h).
  VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS Task<absl::StatusOr<Loan>> Lend(
      BufferView view, LeaseAccess access) {
    return payloads_.Lend(view, access);
  }

 private:
  friend class ServerCall;
  ServerContext(const MethodDescriptor& method, CancelScope& cancel, const std::string& peer,
                ServerPayloads& payloads)
      : method_(&method), cancel_(cancel), peer_(&peer), payloads_(payloads) {}

  const MethodDescriptor* method_;
  CancelScope& cancel_;
  const std::string* peer_;
  ServerPayloads& payloads_;
  Deadline deadline_;
};

}  // namespace verbena

#endif  // VERBENA_RPC_SERVER_CONTEXT_H_
