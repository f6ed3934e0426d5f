// Service: what a server offers; the base of every generated service class.
//
// An implementation belongs to its user, is given to Server::Start() and must outlive the server.
// Its handlers run on every executor of the server, possibly at once: state that they share is
// theirs to guard, or to keep per executor.
//
//   class Greeter final : public hello::Greeter::Service {
//     Task<absl::Status> Hello(ServerContext& context, const hello::HelloRequest& request,
//                              hello::HelloReply& reply) override;
//   };

#ifndef VERBENA_RPC_SERVICE_H_
#define VERBENA_RPC_SERVICE_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "google/protobuf/message_lite.h"
#include "verbena/rpc/method.h"
#include "verbena/rpc/server_context.h"
#include "verbena/rpc/server_stream.h"
#include "verbena/transport/coro/task.h"

namespace verbena {

class Service;

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

class Service {
 public:
  virtual ~Service() = default;

  // "package.Service".
  virtual const char* full_name() const = 0;
  virtual absl::Span<const ServerMethod> methods() const = 0;
};

namespace internal {

template <auto method>
struct Handler;

template <typename S, typename Request, typename Reply,
          Task<absl::Status> (S::*method)(ServerContext&, const Request&, Reply&)>
struct Handler<method> {
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
struct Handler<method> {
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
struct Handler<method> {
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
struct Handler<method> {
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
  return Handler<method>::For(descriptor);
}

}  // namespace internal
}  // namespace verbena

#endif  // VERBENA_RPC_SERVICE_H_
