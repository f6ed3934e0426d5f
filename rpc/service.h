// Services: what a server offers, and what a handler may ask about the call that it serves.
//
//   ServerContext   the call: deadline, metadata, payloads, memory
//   Service         the base of every generated service class
//
//   class Greeter final : public hello::Greeter::Service {
//     Task<absl::Status> Hello(ServerContext& context, const hello::HelloRequest& request,
//                              hello::HelloReply& reply) override {
//       reply.set_text("Hello, " + request.name());
//       co_return absl::OkStatus();
//     }
//   };

#ifndef VERBENA_RPC_SERVICE_H_
#define VERBENA_RPC_SERVICE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/detail/message.h"
#include "verbena/rpc/detail/stream_awaits.h"
#include "verbena/rpc/memory.h"
#include "verbena/rpc/stream.h"
#include "verbena/transport/base/export.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/coro/trace.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena {

enum class Outcome : uint8_t;

namespace internal {
struct CallParts;
class ContextAccess;
class ServerOf;
class StreamOf;
}  // namespace internal

// ServerContext: what a handler may ask about the call that it serves.
//
// Owned by the runtime, one per call, on the executor that runs the handler; valid until the
// handler's Task ends. Awaits of the handler end with CANCELLED or DEADLINE_EXCEEDED by themselves
// when the call does, so most handlers need none of this. Not for other threads.
//
//   VERBENA_CO_ASSIGN_OR_RETURN(Buffer data, co_await context.AllocateBuffer(request.bytes()));
//   context.SetResponsePayload(std::move(data));
//   co_return absl::OkStatus();
//
//   precondition                                        how it is checked     test
//   one WriteResponsePayload() at a time                a check aborts        call_misuse_test
//   a part fits response_payload_room()                 RESOURCE_EXHAUSTED    payload_test
//   handles are of this call's link                     FAILED_PRECONDITION   remote_memory_test
//   used until the handler's Task ends, on its thread   not checked
class VERBENA_EXPORT ServerContext {
 public:
  // The caller's deadline by this machine's clock; not set if the caller has none. Calls that the
  // handler makes have it by themselves, unless CallOptions::inherit says otherwise.
  Deadline deadline() const { return deadline_; }
  // True once the caller gave up, its deadline passed, its link was lost, or the server is shutting
  // down.
  bool cancelled() const { return cancel_.requested(); }
  // OK, or why cancelled() is true.
  absl::Status cancel_status() const { return cancel_.status(); }
  // Whether Server::Shutdown() has begun. The handler may go on until the grace is over.
  bool shutting_down() const;
  // Waits until Server::Shutdown() begins; returns the reason if the call is cancelled first. For
  // handlers that have no end of their own, as of a stream of changes: without it they take the
  // whole grace of each shutdown, and are cancelled then. They end with UNAVAILABLE, so that their
  // client knows to call another server.
  //
  //   auto first = co_await WhenAny(context.ShutdownBegins(), NextChange());
  //   if (context.shutting_down()) co_return absl::UnavailableError("the server shuts down");
  //   if (first.index() == 0) co_return context.cancel_status();
  Task<absl::Status> ShutdownBegins();
  // The caller's name in logs: the address of its bootstrap connection.
  const std::string& peer() const { return *peer_; }
  const MethodDescriptor& method() const { return *method_; }

  // The metadata that came with the request (call.h). Views of it are valid as long as this object.
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
  // The highest number that the client in dedupe_id() had given when this request left it: no call
  // with a higher number had left before. 0 if that is not known, as from an older client, in a
  // request that came longer than DedupeOptions::keep_for ago, or if the call has no name. For a
  // store that has forgotten names (dedupe.h).
  uint64_t dedupe_highest() const;
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
  // Takes the request's payload, which the handler may keep until the runtime is destroyed. Until
  // the Buffer is destroyed its memory counts as LinkLimits::memory.receive_bytes, and in
  // ServerOptions::max_bytes_per_client and max_bytes_per_source: copy what must stay long. Empty
  // if the request had no payload, or the second time.
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

  // Memory that the caller lends, by a handle of its request (memory.h). INVALID_ARGUMENT
  // for a handle that names nothing, FAILED_PRECONDITION for one of another link than this call's,
  // UNAVAILABLE once that link is lost.
  absl::StatusOr<RemoteMemory> Remote(const RemoteMemoryHandle& handle);
  // Lends memory of AllocateBuffer() or Runtime::RegisterMemory() to the caller, which passes the
  // handle to Channel::Remote() (memory.h).
  VERBENA_CORO_OWNS_ARGUMENTS Task<absl::StatusOr<Loan>> Lend(BufferView view, LeaseAccess access);

 private:
  friend class internal::ContextAccess;
  friend class internal::ServerOf;
  friend class internal::StreamOf;
  ServerContext(const MethodDescriptor& method, CancelScope& cancel, const std::string& peer,
                internal::CallParts& parts)
      : method_(&method), cancel_(cancel), peer_(&peer), parts_(parts) {}
  absl::Status Marked(absl::Status status, Outcome outcome);

  const MethodDescriptor* method_;
  CancelScope& cancel_;
  const std::string* peer_;
  internal::CallParts& parts_;
  Deadline deadline_;
  uint64_t mark_ = 0;  // of NotExecuted() and MaybeExecuted(); 0 before
};

struct ServerMethod;

// Service: what a server offers; the base of every generated service class.
//
// An implementation belongs to its user, is given to Server::Start() and must outlive the server.
// Its handlers run on every executor of the server, possibly at once: state that they share is
// theirs to guard, or to keep per executor.
class Service {
 public:
  virtual ~Service() = default;

  // "package.Service".
  virtual const char* full_name() const = 0;
  virtual absl::Span<const ServerMethod> methods() const = 0;
};

// How the runtime calls one method: generated code fills in a static table of these.
struct ServerMethod {
  const MethodDescriptor* descriptor;
  const google::protobuf::MessageLite* request_prototype;
  const google::protobuf::MessageLite* reply_prototype;
  // `request` and `reply` are of the prototypes' types. All arguments are valid until the Task
  // ends. The message of a side that streams is not used.
  Task<absl::Status> (*invoke)(Service& service, ServerContext& context,
                               const google::protobuf::MessageLite& request,
                               google::protobuf::MessageLite& reply);
};

namespace internal {

// `Method` is the type of `method`, by which gcc tells the specializations apart.
template <typename Method, Method method>
struct Handler;

template <typename S, typename Request, typename Reply,
          Task<absl::Status> (S::*method)(ServerContext&, const Request&, Reply&)>
struct Handler<Task<absl::Status> (S::*)(ServerContext&, const Request&, Reply&), method> {
  VERBENA_CORO_WRAPPER static Task<absl::Status> Invoke(
      Service& service, ServerContext& context, const google::protobuf::MessageLite& request,
      google::protobuf::MessageLite& reply) {
    return (static_cast<S&>(service).*method)(context, static_cast<const Request&>(request),
                                              static_cast<Reply&>(reply));
  }

  static ServerMethod For(const MethodDescriptor& descriptor) {
    return {&descriptor, &Request::default_instance(), &Reply::default_instance(), &Invoke};
  }
};

// Handlers of streaming methods. Their end of the stream lives in a coroutine around the handler.
inline Task<absl::Status> RunStreamHandler(ServerContext& context, Task<absl::Status> handler) {
  if (!handler) {
    co_return absl::InternalError(
        "the handler of " + std::string(context.method().full_name) +
        " returned an empty Task: make the handler a coroutine (co_return), or "
        "return a Task that has not been awaited or moved from");
  }
  co_return co_await std::move(handler);
}

template <typename S, typename Request, typename Reply,
          Task<absl::Status> (S::*method)(ServerContext&, const Request&, ServerWriter<Reply>&)>
struct Handler<Task<absl::Status> (S::*)(ServerContext&, const Request&, ServerWriter<Reply>&),
               method> {
  static Task<absl::Status> Invoke(Service& service, ServerContext& context,
                                   const google::protobuf::MessageLite& request,
                                   google::protobuf::MessageLite& /*reply*/) {
    ServerWriter<Reply> writer(StreamOf::Sender(context));
    co_return co_await RunStreamHandler(
        context,
        (static_cast<S&>(service).*method)(context, static_cast<const Request&>(request), writer));
  }

  static ServerMethod For(const MethodDescriptor& descriptor) {
    return {&descriptor, &MessageOnly<Request>::default_instance(),
            &MessageOnly<Reply>::default_instance(), &Invoke};
  }
};

template <typename S, typename Request, typename Reply,
          Task<absl::Status> (S::*method)(ServerContext&, ServerReader<Request>&, Reply&)>
struct Handler<Task<absl::Status> (S::*)(ServerContext&, ServerReader<Request>&, Reply&), method> {
  static Task<absl::Status> Invoke(Service& service, ServerContext& context,
                                   const google::protobuf::MessageLite& /*request*/,
                                   google::protobuf::MessageLite& reply) {
    ServerReader<Request> reader(StreamOf::Receiver(context));
    co_return co_await RunStreamHandler(
        context, (static_cast<S&>(service).*method)(context, reader, static_cast<Reply&>(reply)));
  }

  static ServerMethod For(const MethodDescriptor& descriptor) {
    return {&descriptor, &MessageOnly<Request>::default_instance(),
            &MessageOnly<Reply>::default_instance(), &Invoke};
  }
};

template <typename S, typename Request, typename Reply,
          Task<absl::Status> (S::*method)(ServerContext&, ServerReaderWriter<Request, Reply>&)>
struct Handler<Task<absl::Status> (S::*)(ServerContext&, ServerReaderWriter<Request, Reply>&),
               method> {
  static Task<absl::Status> Invoke(Service& service, ServerContext& context,
                                   const google::protobuf::MessageLite& /*request*/,
                                   google::protobuf::MessageLite& /*reply*/) {
    ServerReaderWriter<Request, Reply> stream(StreamOf::Receiver(context),
                                              StreamOf::Sender(context));
    co_return co_await RunStreamHandler(context,
                                        (static_cast<S&>(service).*method)(context, stream));
  }

  static ServerMethod For(const MethodDescriptor& descriptor) {
    return {&descriptor, &MessageOnly<Request>::default_instance(),
            &MessageOnly<Reply>::default_instance(), &Invoke};
  }
};

// The entry of a generated service's table for `&Service::Method`.
template <auto method>
ServerMethod ServerMethodFor(const MethodDescriptor& descriptor) {
  return Handler<decltype(method), method>::For(descriptor);
}

}  // namespace internal

}  // namespace verbena

#endif  // VERBENA_RPC_SERVICE_H_
