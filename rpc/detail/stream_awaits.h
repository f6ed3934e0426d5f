// The awaits behind the streams of rpc/stream.h: StreamRead and StreamWrite of either side, and the
// client's ClientRead, ClientReadMessage and ClientWrite, which begin their stream first. Users
// name none of these. StreamHandle owns a client's stream.
//
// Each lives in the frame of the coroutine that awaits it, which may be destroyed at any time. If a
// Read is destroyed after its message has come, the next Read gets that message. One thread.

#ifndef VERBENA_RPC_DETAIL_STREAM_AWAITS_H_
#define VERBENA_RPC_DETAIL_STREAM_AWAITS_H_

#include <concepts>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/detail/message.h"
#include "verbena/transport/base/export.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena {

class ServerContext;

namespace internal {

class StreamReceiver;
class StreamSender;

// The payload of a message that is read. Outlives its Read.
struct ReceivedPayload {
  // Memory that the Read may use; afterwards the payload's, with its size.
  Buffer buffer = {};
  bool present = false;
  // Not 0: the Read ended without a message, since the next one wants a buffer of so many bytes.
  size_t wanted = 0;
};

// The payload of a message that is written, borrowed as the message is.
struct BorrowedPayload {
  size_t bytes() const { return view.size(); }

  BufferView view = {};
  bool present = false;
};

// The payload of a message that came with one, or none. `message` outlives the Write.
template <typename Message>
BorrowedPayload PayloadOf(const WithPayload<Message>& message) {
  if (!message.has_payload) return {};
  return {.view = message.payload.view(), .present = true};
}

// co_await gives absl::StatusOr<bool>: true when a message was read, false at the end of the
// stream.
class [[nodiscard]] VERBENA_EXPORT StreamRead final : public Suspension {
 public:
  using value_type = absl::StatusOr<bool>;

  // `payload` is null for messages that have none.
  StreamRead(StreamReceiver& receiver, google::protobuf::MessageLite& into,
             ReceivedPayload* payload = nullptr)
      : receiver_(&receiver), into_(into), payload_(payload) {}
  // In the header, for a Read that has ended leaves nothing to do.
  ~StreamRead() override {
    // The receiver may be gone if this was never awaited.
    if (state_ != State::kNew && receiver_ != nullptr) [[unlikely]]
      Leave();
  }

  bool await_ready() const noexcept { return false; }
  template <typename Promise>
    requires std::derived_from<Promise, PromiseBase>
  bool await_suspend(std::coroutine_handle<Promise> coroutine) {
    return Await(coroutine.promise());
  }
  // False: it has ended, and the caller goes on.
  bool Await(PromiseBase& caller);
  absl::StatusOr<bool> await_resume();
  VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS Task<value_type> AsTask() && {
    return ReadLater(*receiver_, into_);
  }

 private:
  friend StreamReceiver;
  enum class State : uint8_t { kNew, kWaiting, kMessage, kNeedsMemory, kEnd, kFailed, kTaken };

  static Task<value_type> ReadLater(StreamReceiver& receiver, google::protobuf::MessageLite& into) {
    co_return co_await StreamRead(receiver, into);
  }
  void End(State state);
  void Leave();
  void Detach() override;

  // Until the await, where to read. Then the receiver that knows this; nullptr if none does.
  StreamReceiver* receiver_;
  google::protobuf::MessageLite& into_;
  ReceivedPayload* const payload_;
  const CancelScope* scope_ = nullptr;  // of the caller
  State state_ = State::kNew;
  absl::Status status_;
};

// Reads a message that may have a payload: co_await gives what StreamRead does. The sink's memory
// is used again if it is large enough.
VERBENA_EXPORT Task<absl::StatusOr<bool>> ReadWithPayload(StreamReceiver& receiver,
                                                          google::protobuf::MessageLite& into,
                                                          PayloadSink sink);

// co_await gives absl::Status: OK when the message is on its way.
class [[nodiscard]] VERBENA_EXPORT StreamWrite final : public Suspension {
 public:
  using value_type = absl::Status;

  StreamWrite(StreamSender& sender, const google::protobuf::MessageLite& message,
              BorrowedPayload payload = {})
      : sender_(&sender), message_(message), payload_(payload) {}
  ~StreamWrite() override;

  bool await_ready() const noexcept { return false; }
  template <typename Promise>
    requires std::derived_from<Promise, PromiseBase>
  bool await_suspend(std::coroutine_handle<Promise> coroutine) {
    return Await(coroutine.promise());
  }
  // False: it has ended, and the caller goes on.
  bool Await(PromiseBase& caller);
  absl::Status await_resume() { return std::move(status_); }
  VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS Task<value_type> AsTask() && {
    return WriteLater(*sender_, message_, payload_);
  }

 private:
  friend StreamSender;

  static Task<value_type> WriteLater(StreamSender& sender,
                                     const google::protobuf::MessageLite& message,
                                     BorrowedPayload payload) {
    co_return co_await StreamWrite(sender, message, payload);
  }
  void End(absl::Status status);
  void Detach() override;

  // Until the await, where to write. Then the sender that knows this; nullptr if none does.
  StreamSender* sender_;
  const google::protobuf::MessageLite& message_;
  const BorrowedPayload payload_;
  bool suspended_ = false;  // and so the sender knows it
  absl::Status status_;
};

// A client's stream. No user sees its type.
class ClientStream;

// One reference to a ClientStream, which lives until its last reference is gone. So a coroutine
// that waits for the stream's end may outlive the stream's owner. One thread.
class VERBENA_EXPORT StreamRef {
 public:
  explicit StreamRef(ClientStream& stream);
  StreamRef(const StreamRef& other) : StreamRef(*other.stream_) {}
  StreamRef(StreamRef&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  StreamRef& operator=(const StreamRef&) = delete;
  ~StreamRef();

  ClientStream& operator*() const { return *stream_; }
  ClientStream* operator->() const { return stream_; }

 private:
  ClientStream* stream_;
};

// The owner of a ClientStream, whose destruction abandons the call.
class VERBENA_EXPORT StreamHandle {
 public:
  // `request` is serialized before this returns; for a method whose client sends a stream, it is
  // any message of the request's type. `reply` is any message of the reply's type.
  StreamHandle(ClientChannel& channel, const MethodDescriptor& method,
               const google::protobuf::MessageLite& request,
               const google::protobuf::MessageLite& reply, CallOptions&& options);

  ClientStream& operator*() const { return *stream_; }

 private:
  struct VERBENA_EXPORT Deleter {
    void operator()(ClientStream* stream) const;
  };
  std::unique_ptr<ClientStream, Deleter> stream_;
};

VERBENA_EXPORT StreamReceiver& ReceiverOf(ClientStream& stream);
VERBENA_EXPORT StreamSender& SenderOf(ClientStream& stream);

// Begins the stream for an await of `caller`. True once the stream has begun, or has ended, and for
// a caller that is cancelled. False: the stream waits for a link.
VERBENA_EXPORT bool HasBegun(ClientStream& stream, const PromiseBase& caller);

// co_await gives bool: whether `into` holds a message now.
class [[nodiscard]] VERBENA_EXPORT ClientRead {
 public:
  using value_type = bool;

  ClientRead(ClientStream& stream, google::protobuf::MessageLite& into)
      : stream_(stream), into_(into), read_(ReceiverOf(stream), into) {}

  bool await_ready() const noexcept { return false; }
  template <typename Caller>
    requires std::derived_from<Caller, PromiseBase>
  std::coroutine_handle<> await_suspend(std::coroutine_handle<Caller> caller) {
    if (HasBegun(stream_, caller.promise())) {
      return read_.Await(caller.promise()) ? std::noop_coroutine()
                                           : std::coroutine_handle<>(caller);
    }
    task_ = ReadLater(StreamRef(stream_), into_);
    return task_.RunFor(caller.promise());
  }
  bool await_resume() {
    if (task_) [[unlikely]]
      return task_.TakeResult();
    const absl::StatusOr<bool> read = read_.await_resume();
    return read.ok() && *read;
  }
  VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS Task<bool> AsTask() && {
    return ReadLater(StreamRef(stream_), into_);
  }

 private:
  static Task<bool> ReadLater(StreamRef stream, google::protobuf::MessageLite& into);

  ClientStream& stream_;
  google::protobuf::MessageLite& into_;
  Task<bool> task_;
  StreamRead read_;
};

// co_await gives absl::Status.
class [[nodiscard]] VERBENA_EXPORT ClientWrite {
 public:
  using value_type = absl::Status;

  ClientWrite(ClientStream& stream, const google::protobuf::MessageLite& message,
              BorrowedPayload payload = {})
      : stream_(stream),
        message_(message),
        payload_(payload),
        write_(SenderOf(stream), message, payload) {}

  bool await_ready() const noexcept { return false; }
  template <typename Caller>
    requires std::derived_from<Caller, PromiseBase>
  std::coroutine_handle<> await_suspend(std::coroutine_handle<Caller> caller) {
    if (HasBegun(stream_, caller.promise())) {
      return write_.Await(caller.promise()) ? std::noop_coroutine()
                                            : std::coroutine_handle<>(caller);
    }
    task_ = WriteLater(StreamRef(stream_), message_, payload_);
    return task_.RunFor(caller.promise());
  }
  absl::Status await_resume() {
    if (task_) [[unlikely]]
      return task_.TakeResult();
    return write_.await_resume();
  }
  VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS Task<absl::Status> AsTask() && {
    return WriteLater(StreamRef(stream_), message_, payload_);
  }

 private:
  static Task<absl::Status> WriteLater(StreamRef stream,
                                       const google::protobuf::MessageLite& message,
                                       BorrowedPayload payload);

  ClientStream& stream_;
  const google::protobuf::MessageLite& message_;
  const BorrowedPayload payload_;
  Task<absl::Status> task_;
  StreamWrite write_;
};

// co_await gives std::optional<Message>.
template <typename Message>
class [[nodiscard]] ClientReadMessage {
 public:
  using value_type = std::optional<Message>;

  explicit ClientReadMessage(ClientStream& stream) : stream_(stream), read_(stream, message_) {}

  bool await_ready() const noexcept { return false; }
  template <typename Caller>
    requires std::derived_from<Caller, PromiseBase>
  std::coroutine_handle<> await_suspend(std::coroutine_handle<Caller> caller) {
    return read_.await_suspend(caller);
  }
  value_type await_resume() {
    if (!read_.await_resume()) return std::nullopt;
    return std::move(message_);
  }
  VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS Task<value_type> AsTask() && {
    return ReadLater(StreamRef(stream_));
  }

 private:
  static Task<value_type> ReadLater(StreamRef stream) {
    co_return co_await ClientReadMessage(*stream);
  }

  ClientStream& stream_;
  Message message_;
  ClientRead read_;
};

// The Task gives whether `into` and the sink hold a message and its payload now.
VERBENA_EXPORT Task<bool> ReadWithPayload(StreamRef stream, google::protobuf::MessageLite& into,
                                          PayloadSink sink);

template <typename Message>
Task<std::optional<Message>> NextWithPayload(StreamRef stream) {
  std::optional<Message> next(std::in_place);
  if (!co_await ReadWithPayload(stream, next->message, SinkOf(*next))) next.reset();
  co_return next;
}

// Reads as ReadWithPayload() does, but gives an error if the stream broke, or the await was
// cancelled.
VERBENA_EXPORT Task<absl::StatusOr<bool>> TryRead(StreamRef stream,
                                                  google::protobuf::MessageLite& into,
                                                  PayloadSink sink);

// Read() and Read(into) of the streams that a client reads. A WithPayload takes a coroutine, which
// may wait for memory.
template <typename Message>
ClientReadMessage<Message> NextOf(ClientStream& stream) {
  return ClientReadMessage<Message>(stream);
}
template <HasPayload Message>
VERBENA_CORO_WRAPPER Task<std::optional<Message>> NextOf(ClientStream& stream) {
  return NextWithPayload<Message>(StreamRef(stream));
}
inline ClientRead ReadInto(ClientStream& stream, google::protobuf::MessageLite& into) {
  return ClientRead(stream, into);
}
template <typename Message>
VERBENA_CORO_WRAPPER Task<bool> ReadInto(ClientStream& stream, WithPayload<Message>& into) {
  return ReadWithPayload(StreamRef(stream), into.message, SinkOf(into));
}

// WritesDone() and Finish() of a client's three kinds of stream.
VERBENA_EXPORT Task<absl::Status> EndWrites(StreamRef stream);
VERBENA_EXPORT Task<absl::Status> FinishStream(StreamRef stream);
// FinishStream(), which also parses the reply.
VERBENA_EXPORT Task<absl::Status> FinishWithReply(StreamRef stream,
                                                  google::protobuf::MessageLite& reply);

template <typename Reply>
Task<absl::StatusOr<Reply>> FinishWithReply(StreamRef stream) {
  Reply reply;
  VERBENA_CO_RETURN_IF_ERROR(co_await FinishWithReply(stream, reply));
  co_return reply;
}

// The handler's halves of its call's stream. Precondition: the call has a stream.
class VERBENA_EXPORT StreamOf {
 public:
  static StreamReceiver& Receiver(ServerContext& context);
  static StreamSender& Sender(ServerContext& context);
};

// co_await gives absl::StatusOr<std::optional<Message>>.
template <typename Message>
class [[nodiscard]] ServerReadMessage {
 public:
  using value_type = absl::StatusOr<std::optional<Message>>;

  explicit ServerReadMessage(StreamReceiver& receiver)
      : receiver_(receiver), read_(receiver, message_) {}

  bool await_ready() const noexcept { return false; }
  template <typename Promise>
    requires std::derived_from<Promise, PromiseBase>
  bool await_suspend(std::coroutine_handle<Promise> coroutine) {
    return read_.await_suspend(coroutine);
  }
  value_type await_resume() {
    VERBENA_ASSIGN_OR_RETURN(const bool read, read_.await_resume());
    if (!read) return std::optional<Message>();
    return std::optional<Message>(std::move(message_));
  }
  VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS Task<value_type> AsTask() && {
    return ReadLater(receiver_);
  }

 private:
  static Task<value_type> ReadLater(StreamReceiver& receiver) {
    co_return co_await ServerReadMessage(receiver);
  }

  StreamReceiver& receiver_;
  Message message_;
  StreamRead read_;
};

template <typename Message>
Task<absl::StatusOr<std::optional<Message>>> NextWithPayload(StreamReceiver& receiver) {
  std::optional<Message> next(std::in_place);
  VERBENA_CO_ASSIGN_OR_RETURN(const bool read,
                              co_await ReadWithPayload(receiver, next->message, SinkOf(*next)));
  if (!read) next.reset();
  co_return next;
}

// Read() and Read(into) of ServerReader and ServerReaderWriter. A WithPayload takes a coroutine,
// which may wait for memory.
template <typename Message>
ServerReadMessage<Message> NextOf(StreamReceiver& receiver) {
  return ServerReadMessage<Message>(receiver);
}
template <HasPayload Message>
VERBENA_CORO_WRAPPER Task<absl::StatusOr<std::optional<Message>>> NextOf(StreamReceiver& receiver) {
  return NextWithPayload<Message>(receiver);
}
inline StreamRead ReadInto(StreamReceiver& receiver, google::protobuf::MessageLite& into) {
  return StreamRead(receiver, into);
}
template <typename Message>
VERBENA_CORO_WRAPPER Task<absl::StatusOr<bool>> ReadInto(StreamReceiver& receiver,
                                                         WithPayload<Message>& into) {
  return ReadWithPayload(receiver, into.message, SinkOf(into));
}

}  // namespace internal
}  // namespace verbena

#endif  // VERBENA_RPC_DETAIL_STREAM_AWAITS_H_
