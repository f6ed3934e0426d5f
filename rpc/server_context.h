// ServerContext: what a handler may ask about the call that it serves.
//
// Owned by the runtime, one per call, on the executor that runs the handler; valid until the
// handler's Task ends. Awaits of the handler end with CANCELLED or DEADLINE_EXCEEDED by themselves
// when the call does, so most handlers need none of this. Not for other threads.
//
//   VERBENA_CO_ASSIGN_OR_RETURN(Buffer data, co_await context.AllocateBuffer(request.bytes()));
//   context.SetResponsePayload(std::move(data));
//   co_return absl::OkStatus();

#ifndef VERBENA_RPC_SERVER_CONTEXT_H_
#define VERBENA_RPC_SERVER_CONTEXT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/call_context.h"
#include "verbena/rpc/deadline.h"
#include "verbena/rpc/loan.h"
#include "verbena/rpc/metadata.h"
#include "verbena/rpc/method.h"
#include "verbena/rpc/payload.h"
#include "verbena/rpc/remote_memory.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/coro/trace.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena {

enum class Outcome : uint8_t;

namespace internal {
class ServerCall;
class StreamOf;
}  // namespace internal

class ServerContext {
 public:
  // The caller's deadline by this machine's clock; not set if the caller has none. Calls that the
  // handler makes have it by themselves, unless CallOptions::inherit says otherwise.
  Deadline deadline() const { return deadline_; }
  // True once the caller gave up, its deadline passed, its link was lost, or the server is shutting
  // down.
  bool cancelled() const { return cancel_.requested(); }
  // OK, or why cancelled() is true.
  absl::Status cancel_status() const { return cancel_.status(); }
  // The caller's name in logs: the address of its bootstrap connection.
  const std::string& peer() const { return *peer_; }
  const MethodDescriptor& method() const { return *method_; }

  // The metadata that came with the request (metadata.h). Views of it are valid as long as this
  // object.
  const Metadata& metadata() const;
  // The call's place in a trace; null if the caller has none. Calls that the handler makes belong
  // to the same trace by themselves.
  const TraceContext* trace() const { return cancel_.trace(); }
  Priority priority() const;
  // The name that the caller gave the call (CallOptions::request_id).
  std::optional<RequestId> request_id() const;
  // The name of a deduplicated call, the same in each attempt (dedupe.h): a handler that stores it
  // with its data keeps the call from running twice after a restart. None if the call has no name.
  std::optional<RequestId> dedupe_id() const;
  // The caller repeats no more calls of the client in dedupe_id() whose number is below this. 0 if
  // the call has no name.
  uint64_t dedupe_acknowledged_below() const;
  // Metadata that goes back with the answer, also with a failure: the caller finds it in
  // CallInfo::trailing_metadata. INVALID_ARGUMENT if the entry may not be sent; RESOURCE_EXHAUSTED
  // beyond ServerOptions::max_metadata_bytes, or half of a frame (LinkLimits::eager_bytes) if that
  // is less, or what a payload in the frame leaves of it: some 400 bytes beside 4 KiB.
  absl::Status AddTrailingMetadata(std::string_view key, std::string_view value);
  const Metadata& trailing_metadata() const;

  // For a handler that refuses the call before it has changed anything: `co_return
  // context.NotExecuted(absl::UnavailableError("not the leader"))`. Returns `status`. The caller
  // then gets it with Outcome::kNotExecuted, and so may try again, perhaps elsewhere. OK stays OK.
  absl::Status NotExecuted(absl::Status status);
  // For a handler that cannot tell whether the call will have changed anything, such as a write
  // that some replicas have: the caller then gets `status` with Outcome::kMaybeExecuted. If the
  // service has a DedupeStore, this failure is not kept as the result of a deduplicated call, and a
  // repeated request asks the store. OK stays OK.
  absl::Status MaybeExecuted(absl::Status status);

  // Whether the request came with a payload, perhaps an empty one. It has arrived in full.
  bool has_request_payload() const;
  size_t request_payload_bytes() const;
  // Takes the request's payload, which the handler may keep until the runtime is destroyed. Its
  // memory counts as LinkLimits::memory.receive_bytes until the Buffer is destroyed: copy what must
  // stay long. Empty if the request had no payload, or the second time.
  Buffer TakeRequestPayload();

  // Page-aligned memory of `bytes` for payloads that this call sends. Waits while the budget, or
  // what the caller may have of it (ServerOptions::max_response_bytes_per_client), is used up.
  // After at most ServerOptions::memory_wait it fails with RESOURCE_EXHAUSTED, which says who has
  // the memory. UNAVAILABLE once the caller's link is lost, unless the call is deduplicated.
  Task<absl::StatusOr<Buffer>> AllocateBuffer(size_t bytes);
  // The device that this call's payloads move over, for memory of Runtime::RegisterMemory(). ""
  // once the caller's link is lost.
  std::string device_name() const;
  // Sets the response's payload, which is sent if the handler returns OK. It follows the bytes that
  // WriteResponsePayload() wrote. Its memory comes from AllocateBuffer() or
  // Runtime::RegisterMemory(), on this call's device. Payload::Empty() is a payload of no bytes; a
  // handler that neither sets nor writes a payload answers without one.
  void SetResponsePayload(Payload payload);
  // How many bytes of the caller's memory are left for the response's payload. 0 also if the caller
  // set neither response_payload_into nor max_response_payload: then the server asks for memory
  // once the payload's size is known.
  size_t response_payload_room() const;
  // Writes `part` into the caller's memory now, behind the parts written before, for handlers that
  // produce a payload piece by piece. Returns when the part's memory may be used again.
  // RESOURCE_EXHAUSTED if `part` is larger than response_payload_room(). A check aborts if a write
  // begins before the last one has ended. The part's Buffer must live until the Task is awaited to
  // its end or destroyed.
  VERBENA_CORO_WRAPPER Task<absl::Status> WriteResponsePayload(BufferView part);

  // Memory that the caller lends, by a handle of its request (remote_memory.h). INVALID_ARGUMENT
  // for a handle that names nothing, FAILED_PRECONDITION for one of another link than this call's,
  // UNAVAILABLE once that link is lost.
  absl::StatusOr<RemoteMemory> Remote(const RemoteMemoryHandle& handle);
  // Lends memory of AllocateBuffer() or Runtime::RegisterMemory() to the caller, which passes the
  // handle to Channel::Remote() (loan.h).
  VERBENA_CORO_OWNS_ARGUMENTS Task<absl::StatusOr<Loan>> Lend(BufferView view, LeaseAccess access);

 private:
  friend class internal::ServerCall;
  friend class internal::StreamOf;
  ServerContext(const MethodDescriptor& method, CancelScope& cancel, const std::string& peer,
                internal::ServerCall& call)
      : method_(&method), cancel_(cancel), peer_(&peer), call_(call) {}
  // The outcome that `status` got from NotExecuted() or MaybeExecuted(); none if neither made it.
  std::optional<Outcome> OutcomeGiven(const absl::Status& status) const;
  absl::Status Marked(absl::Status status, Outcome outcome);

  const MethodDescriptor* method_;
  CancelScope& cancel_;
  const std::string* peer_;
  internal::ServerCall& call_;
  Deadline deadline_;
  uint64_t mark_ = 0;  // of NotExecuted() and MaybeExecuted(); 0 before
};

}  // namespace verbena

#endif  // VERBENA_RPC_SERVER_CONTEXT_H_
