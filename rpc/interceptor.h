// ClientInterceptor, ServerInterceptor: code that runs around each call of a channel or a server.
//
// An interceptor sees a call's messages and metadata, may change metadata, measure, or end the call
// with a status of its own. ChannelOptions::interceptors and ServerOptions::interceptors are fixed
// when the channel or server is made, and hold shared ownership. The first of the list is the
// outermost: it sees the request first and the status last. Interceptors of a channel run on the
// executor that makes the call, those of a server on the executor that serves it, so one object may
// be used on several threads at once.
//
// Intercept() is a coroutine around the rest of the call: later interceptors, then the call or the
// handler. next() returns the Task of that rest, which runs once it is awaited. Intercept() must
// call next() at most once, otherwise a check aborts: an interceptor cannot retry. It may destroy
// the Task of next() before that has ended, as a time limit does: the handler is destroyed then. A
// deduplicated call whose handler was destroyed, and each request that repeats it, has
// Outcome::kMaybeExecuted, unless the service's DedupeStore knows better. If the channel makes
// several attempts at a call (policy.h), its interceptors run around each. Intercept() may return
// another status than next() gave. It sees no payloads; a server's interceptor must leave
// TakeRequestPayload() to the handler. All references are valid until its Task ends. A call without
// interceptors pays one branch for them.
//
// Streams: interceptors run once for each stream. A channel's interceptors begin with the stream's
// first await. The stream begins when the last of them awaits next(), and next() ends when the
// stream has ended. A channel's interceptors run in a Task of their own, which is destroyed when
// the stream's owner destroys the stream. If these interceptors end before the stream, the stream
// is given up. At a server, next() ends when the handler has ended. On both sides, request() or
// reply() of a side that streams is an empty message of its type. A channel's interceptors see the
// reply of a client streaming method if it fits a frame.
//
// An interceptor whose sees_messages() is true also hears of each message of a side that streams,
// as it was written or as it is read, without its payload. It cannot change or hold up a message.
// The messages of one direction come in order; between the two directions there is no order. An
// interceptor hears of a sent message when it begins to leave, also if the stream ends before all
// of the message has left. It hears of a received message once, when a Read takes the message,
// before the coroutine of that Read resumes; if the Read is destroyed, the next one gets the
// message, and nobody hears of it again. Nobody hears of a message that no Read takes. Interceptors
// hear in the order in which a message passes them. At a client the last messages may come after
// next() has ended, since the stream may be read after its end; the view is valid that long.
// Streams that no interceptor wants to hear of pay one branch a message.
//
//   class Timing final : public ClientInterceptor {
//     Task<absl::Status> Intercept(ClientCallView& call, ClientNext next) override {
//       const TimePoint began = Clock::Real().Now();
//       absl::Status status = co_await next();
//       Record(call.method().full_name, Clock::Real().Now() - began);
//       co_return status;
//     }
//   };
//
//   precondition                                   how it is checked   test
//   none is null in ChannelOptions::interceptors   a check aborts      connection_test
//   none is null in ServerOptions::interceptors    INVALID_ARGUMENT    unary_test
//   next() is called at most once                  a check aborts      interceptor_test
//   safe on several threads at once                not checked

#ifndef VERBENA_RPC_INTERCEPTOR_H_
#define VERBENA_RPC_INTERCEPTOR_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/detail/message.h"
#include "verbena/rpc/service.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/coro/trace.h"

namespace verbena {

namespace internal {
template <typename Interceptor, typename View>
class InterceptorNext;
}  // namespace internal

class ClientInterceptor;
class ServerInterceptor;
class ClientCallView;
class ServerCallView;
// The type of next(): next() returns the Task of the rest of the call. Call it at most once.
using ClientNext = internal::InterceptorNext<ClientInterceptor, ClientCallView>;
using ServerNext = internal::InterceptorNext<ServerInterceptor, ServerCallView>;

class ClientInterceptor {
 public:
  virtual ~ClientInterceptor() = default;
  // The caller, or the interceptor before this one, hears the returned status. If the call itself
  // has not begun by then, a failure has Outcome::kNotExecuted unless it has an outcome already;
  // with OK the caller gets the reply as the interceptor filled it.
  virtual Task<absl::Status> Intercept(ClientCallView& call, ClientNext next) = 0;

  // Whether OnMessageSent() and OnMessageReceived() are called. Each call must give the same
  // answer.
  virtual bool sees_messages() const { return false; }
  // Called for each message of a stream, within the transport. So they must be short, and must not
  // use the stream.
  virtual void OnMessageSent(const ClientCallView&, const google::protobuf::MessageLite&) noexcept {
  }
  virtual void OnMessageReceived(const ClientCallView&,
                                 const google::protobuf::MessageLite&) noexcept {}
};

class ServerInterceptor {
 public:
  virtual ~ServerInterceptor() = default;
  // The client gets the returned status. If the handler has not run by then, a failure has
  // Outcome::kNotExecuted; with OK the client gets the reply as the interceptor filled it.
  virtual Task<absl::Status> Intercept(ServerCallView& call, ServerNext next) = 0;

  // As those of ClientInterceptor: the handler's Writes are sent, its Reads receive.
  virtual bool sees_messages() const { return false; }
  virtual void OnMessageSent(const ServerCallView&, const google::protobuf::MessageLite&) noexcept {
  }
  virtual void OnMessageReceived(const ServerCallView&,
                                 const google::protobuf::MessageLite&) noexcept {}
};

// A call as a channel's interceptors see it.
class ClientCallView {
 public:
  // For Verbena alone. All that is given by reference outlives the view.
  ClientCallView(const MethodDescriptor& method, const std::string& target,
                 const google::protobuf::MessageLite& request, google::protobuf::MessageLite& reply,
                 Deadline deadline, const Metadata& trailing)
      : method_(method),
        target_(target),
        request_(request),
        reply_(reply),
        deadline_(deadline),
        trailing_(trailing) {}
  ClientCallView(const ClientCallView&) = delete;
  ClientCallView& operator=(const ClientCallView&) = delete;

  const MethodDescriptor& method() const { return method_; }
  // The channel's target.
  const std::string& target() const { return target_; }
  const google::protobuf::MessageLite& request() const { return request_; }
  // Holds the server's reply once next() has given OK, unless the server streams, or the reply of a
  // stream did not fit a frame.
  google::protobuf::MessageLite& reply() { return reply_; }
  const google::protobuf::MessageLite& reply() const { return reply_; }
  // The call's deadline: a time, or none.
  Deadline deadline() const { return deadline_; }
  // The trailing metadata of the answer, once next() has ended.
  const Metadata& trailing_metadata() const { return trailing_; }

  // This and the next three fields travel as they are when the last interceptor awaits next().
  Metadata metadata = {};
  // The trace that the call belongs to, with a span id of its own. The span of the Task that makes
  // the call is that of `co_await CurrentContext()`.
  std::optional<TraceContext> trace = {};
  Priority priority = Priority::kNormal;
  std::optional<RequestId> request_id = {};

 private:
  const MethodDescriptor& method_;
  const std::string& target_;
  const google::protobuf::MessageLite& request_;
  google::protobuf::MessageLite& reply_;
  const Deadline deadline_;
  const Metadata& trailing_;
};

// A call as a server's interceptors see it.
class ServerCallView {
 public:
  // For Verbena alone. All outlive the view.
  ServerCallView(ServerContext& context, Metadata& metadata,
                 const google::protobuf::MessageLite& request, google::protobuf::MessageLite& reply)
      : context_(context), metadata_(metadata), request_(request), reply_(reply) {}
  ServerCallView(const ServerCallView&) = delete;
  ServerCallView& operator=(const ServerCallView&) = delete;

  // The context that the handler gets, with the trace, the peer, and trailing metadata.
  ServerContext& context() const { return context_; }
  const MethodDescriptor& method() const { return context_.method(); }
  // The metadata that the handler reads as its context's.
  Metadata& metadata() const { return metadata_; }
  // Complete: a large request has arrived, and so has its payload.
  const google::protobuf::MessageLite& request() const { return request_; }
  // Holds the handler's reply once next() has given OK.
  google::protobuf::MessageLite& reply() const { return reply_; }

 private:
  ServerContext& context_;
  Metadata& metadata_;
  const google::protobuf::MessageLite& request_;
  google::protobuf::MessageLite& reply_;
};

namespace internal {

template <typename Interceptor, typename View>
class InterceptorChain;

// The rest of an intercepted call.
template <typename Interceptor, typename View>
class InterceptorNext {
 public:
  InterceptorNext(InterceptorChain<Interceptor, View>& chain, size_t index)
      : chain_(&chain), index_(index) {}

  // The rest of the call, which runs when the Task is awaited. At most once.
  VERBENA_CORO_WRAPPER Task<absl::Status> operator()() const { return chain_->Next(index_); }

 private:
  InterceptorChain<Interceptor, View>* chain_;
  size_t index_;
};

// The interceptors of one call, and what lies behind the last one. Lives in the frame of the
// coroutine that makes or serves the call.
template <typename Interceptor, typename View>
class InterceptorChain {
 public:
  using List = std::vector<std::shared_ptr<Interceptor>>;

  // Both outlive the chain.
  InterceptorChain(const List& interceptors, View& view)
      : interceptors_(interceptors), view_(view) {}
  virtual ~InterceptorChain() = default;
  InterceptorChain(const InterceptorChain&) = delete;
  InterceptorChain& operator=(const InterceptorChain&) = delete;

  VERBENA_CORO_WRAPPER Task<absl::Status> Run() { return Next(0); }

  // For InterceptorNext.
  VERBENA_CORO_WRAPPER Task<absl::Status> Next(size_t index) {
    VERBENA_CHECK(index == reached_) << "an interceptor calls next() at most once";
    ++reached_;
    const size_t count = interceptors_.size();
    if (index == count) return Last();
    Task<absl::Status> interceptor = interceptors_[index]->Intercept(view_, {*this, index + 1});
    return index == 0 ? std::move(interceptor) : Inner(std::move(interceptor));
  }

 private:
  virtual Task<absl::Status> Last() = 0;
  // The Task that an interceptor awaits with next(), if that is another interceptor.
  VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS virtual Task<absl::Status> Inner(
      Task<absl::Status> interceptor) {
    return interceptor;
  }

  const List& interceptors_;
  View& view_;
  size_t reached_ = 0;  // how many of the chain's steps have begun
};

}  // namespace internal
}  // namespace verbena

#endif  // VERBENA_RPC_INTERCEPTOR_H_
