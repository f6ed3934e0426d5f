// Calls of methods that only a Schema knows: DynamicCall, and the streams' halves as Tasks.
//
// They do what a generated stub does, with messages of any type. Method, messages and Buffers are
// borrowed until the await has ended. On an executor of the channel's runtime.

#ifndef VERBENA_TOOLS_VERBENA_DYNAMIC_CALL_H_
#define VERBENA_TOOLS_VERBENA_DYNAMIC_CALL_H_

#include <concepts>
#include <coroutine>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "tools/verbena/remote.h"
#include "tools/verbena/schema.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/stream.h"
#include "verbena/rpc/task.h"

namespace verbena::command {

// A message and its payload, as WithPayload has them.
struct DynamicMessage {
  explicit DynamicMessage(const google::protobuf::Message& prototype) : message(prototype.New()) {}

  internal::PayloadSink sink(bool has_payloads) {
    return has_payloads ? internal::PayloadSink{&payload, &has_payload} : internal::PayloadSink{};
  }

  const std::unique_ptr<google::protobuf::Message> message;
  Buffer payload;
  bool has_payload = false;
};

// One unary call. co_await gives its absl::Status; `reply` is filled if that is OK.
class [[nodiscard]] DynamicCall {
 public:
  DynamicCall(Channel& channel, const DynamicMethod& method,
              const google::protobuf::Message& request, DynamicMessage& reply,
              CallOptions&& options)
      : request_(request),
        reply_(reply),
        sink_(reply.sink(method.descriptor.response_payload())),
        call_(internal::CoreOf(channel), method.descriptor, std::move(options)) {}

  bool await_ready() const noexcept { return false; }
  template <typename Caller>
    requires std::derived_from<Caller, internal::PromiseBase>
  std::coroutine_handle<> await_suspend(std::coroutine_handle<Caller> caller) {
    return call_.Begin(caller.promise(), request_, *reply_.message, sink_);
  }
  absl::Status await_resume() { return FromServer(call_.TakeStatus()); }

 private:
  const google::protobuf::Message& request_;
  DynamicMessage& reply_;
  const internal::PayloadSink sink_;
  internal::InPlaceCall call_;
};

// A call that streams. Destroying it abandons the call.
class DynamicStream {
 public:
  // `request` is that of a method whose client sends no stream, and any message of its type
  // otherwise.
  DynamicStream(Channel& channel, const DynamicMethod& method,
                const google::protobuf::Message& request, CallOptions&& options)
      : method_(method),
        stream_(internal::CoreOf(channel), method.descriptor, request, *method.reply,
                std::move(options)) {}

  // Whether `into` holds the next message now; Finish() says why not. If the client streams and the
  // server does not, that message is a reply which is larger than a frame.
  VERBENA_CORO_WRAPPER Task<bool> Read(DynamicMessage& into);
  Task<absl::Status> Write(const DynamicMessage& message);
  Task<absl::Status> WritesDone();
  Task<absl::Status> Finish();
  // Finish() of a method whose server answers with one message.
  Task<absl::Status> Finish(google::protobuf::Message& reply);

 private:
  const DynamicMethod& method_;
  internal::StreamHandle stream_;
};

}  // namespace verbena::command

#endif  // VERBENA_TOOLS_VERBENA_DYNAMIC_CALL_H_
