// ClientReader, ClientWriter, ClientReaderWriter: a client's end of a stream, as the stub's method
// of a server streaming, client streaming or bidirectional streaming method returns it.
//
// The stream is a call. It begins with the first await, which connects if need be, and ends with
// the status that the server's handler returns; Finish() waits for it. The stub's method serializes
// the request before it returns; the channel must outlive the object and all awaits of it. The
// deadline of CallOptions holds for the whole stream, and so does that of the Task that begins it,
// if that is earlier (CallOptions::inherit). Destroying the object before the end abandons the
// call: the handler is cancelled, and so are awaits in other Tasks. Movable while nobody awaits it.
// All awaits and the destruction are on one executor. A Read and a Write may be awaited at once; a
// check aborts if two Reads or two Writes are.
//
// Messages that the application does not read stay in its memory: at most 256 KiB of a stream and
// 16 MiB of a link (no option sets these yet). Beyond that the peer's Write waits. Cancelling an
// await of Read or Write leaves the stream as it is; cancelling Finish() ends the call.
//
// A stream never ends well with a message missing. If a Write fails although the stream goes on, or
// is cancelled or destroyed, Finish() gives the call up, even if later Writes succeed. It returns
// the status of the first such Write (CANCELLED if it was destroyed). The handler is cancelled, and
// the Outcome is kMaybeExecuted, or kExecuted if the handler had ended well already. To say that
// the messages are complete without the failed one, call WritesDone() after that Write: if it
// succeeds, Finish() waits for the end as always.
//
//   ClientReader<Entry> entries = stub.Scan(request, {.deadline = 5s});
//   Entry entry;
//   while (co_await entries.Read(entry)) Use(entry);
//   // Why Read returned false: the end, or a failure.
//   absl::Status status = co_await entries.Finish();
//
//   ClientWriter<Chunk, UploadReply> upload = stub.Upload();
//   for (const Chunk& chunk : chunks) {
//     if (!(co_await upload.Write(chunk)).ok()) break;  // Finish() says why
//   }
//   absl::StatusOr<UploadReply> reply = co_await upload.Finish();
//
// If the messages of a stream have payloads (with_payload.h), its type says WithPayload<Reply>, or
// WithPayload<Request>, and Read() and Write() take payloads too. Payloads of streams travel in the
// stream's frames, in order with its messages, within its windows, and are copied on both sides.
// For bulk that no processor should copy make a unary call.
//
//   ClientReader<WithPayload<Part>> parts = stub.Export(request);
//   WithPayload<Part> part;
//   while (co_await parts.Read(part)) Use(part->offset(), part.payload.view());
//
//   ClientWriter<WithPayload<Part>, ImportReply> writer = stub.Import();
//   absl::Status written = co_await writer.Write(part, buffer.view());

#ifndef VERBENA_RPC_CLIENT_STREAM_H_
#define VERBENA_RPC_CLIENT_STREAM_H_

#include <concepts>
#include <coroutine>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message_lite.h"
#include "verbena/rpc/call_options.h"
#include "verbena/rpc/method.h"
#include "verbena/rpc/stream_awaits.h"
#include "verbena/rpc/with_payload.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena {

class Channel;

namespace internal {

// A stream and its channel. No user sees its type.
class ChannelStream;

// One reference to a ChannelStream, which lives until its last reference is gone. So a coroutine
// that waits for the stream's end may outlive the stream's owner. One thread.
class StreamRef {
 public:
  explicit StreamRef(ChannelStream& stream);
  StreamRef(const StreamRef& other) : StreamRef(*other.stream_) {}
  StreamRef(StreamRef&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  StreamRef& operator=(const StreamRef&) = delete;
  ~StreamRef();

  ChannelStream& operator*() const { return *stream_; }
  ChannelStream* operator->() const { return stream_; }

 private:
  ChannelStream* stream_;
};

// The owner of a ChannelStream, whose destruction abandons the call.
class StreamHandle {
 public:
  // `request` is serialized before this returns; for a method whose client sends a stream, it is
  // any message of the request's type. `reply` is any message of the reply's type.
  StreamHandle(Channel& channel, const MethodDescriptor& method,
               const google::protobuf::MessageLite& request,
               const google::protobuf::MessageLite& reply, CallOptions&& options);

  ChannelStream& operator*() const { return *stream_; }

 private:
  struct Deleter {
    void operator()(ChannelStream* stream) const;
  };
  std::unique_ptr<ChannelStream, Deleter> stream_;
};

StreamReceiver& ReceiverOf(ChannelStream& stream);
StreamSender& SenderOf(ChannelStream& stream);

// The base of the awaits that may have to begin their stream first.
class BeginsStream {
 protected:
  explicit BeginsStream(ChannelStream& stream) : stream_(stream) {}

  // True once the stream has begun, or has ended, and for a caller that is cancelled.
  bool HasBegun(const PromiseBase& caller);
  // Call this if HasBegun() is false. When the Task ends, HasBegun() is true, unless the await was
  // cancelled.
  static Task<void> Begin(StreamRef stream);

  ChannelStream& stream_;
};

// co_await gives bool: whether `into` holds a message now.
class [[nodiscard]] ClientRead : private BeginsStream {
 public:
  using value_type = bool;

  ClientRead(ChannelStream& stream, google::protobuf::MessageLite& into)
      : BeginsStream(stream), into_(into), read_(ReceiverOf(stream), into) {}

  bool await_ready() const noexcept { return false; }
  template <typename Caller>
    requires std::derived_from<Caller, PromiseBase>
  std::coroutine_handle<> await_suspend(std::coroutine_handle<Caller> caller) {
    if (HasBegun(caller.promise())) {
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

  google::protobuf::MessageLite& into_;
  Task<bool> task_;
  StreamRead read_;
};

// co_await gives absl::Status.
class [[nodiscard]] ClientWrite : private BeginsStream {
 public:
  using value_type = absl::Status;

  ClientWrite(ChannelStream& stream, const google::protobuf::MessageLite& message,
              BorrowedPayload payload = {})
      : BeginsStream(stream),
        message_(message),
        payload_(payload),
        write_(SenderOf(stream), message, payload) {}

  bool await_ready() const noexcept { return false; }
  template <typename Caller>
    requires std::derived_from<Caller, PromiseBase>
  std::coroutine_handle<> await_suspend(std::coroutine_handle<Caller> caller) {
    if (HasBegun(caller.promise())) {
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

  explicit ClientReadMessage(ChannelStream& stream) : stream_(stream), read_(stream, message_) {}

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

  ChannelStream& stream_;
  Message message_;
  ClientRead read_;
};

// The Task gives whether `into` and the sink hold a message and its payload now.
Task<bool> ReadWithPayload(StreamRef stream, google::protobuf::MessageLite& into, PayloadSink sink);

template <typename Message>
Task<std::optional<Message>> NextWithPayload(StreamRef stream) {
  std::optional<Message> next(std::in_place);
  if (!co_await ReadWithPayload(stream, next->message, SinkOf(*next))) next.reset();
  co_return next;
}

// Reads as ReadWithPayload() does, but gives an error if the stream broke, or the await was
// cancelled.
Task<absl::StatusOr<bool>> TryRead(StreamRef stream, google::protobuf::MessageLite& into,
                                   PayloadSink sink);

// Read() and Read(into) of the streams that a client reads. A WithPayload takes a coroutine, which
// may wait for memory.
template <typename Message>
ClientReadMessage<Message> NextOf(ChannelStream& stream) {
  return ClientReadMessage<Message>(stream);
}
template <HasPayload Message>
VERBENA_CORO_WRAPPER Task<std::optional<Message>> NextOf(ChannelStream& stream) {
  return NextWithPayload<Message>(StreamRef(stream));
}
inline ClientRead ReadInto(ChannelStream& stream, google::protobuf::MessageLite& into) {
  return ClientRead(stream, into);
}
template <typename Message>
VERBENA_CORO_WRAPPER Task<bool> ReadInto(ChannelStream& stream, WithPayload<Message>& into) {
  return ReadWithPayload(StreamRef(stream), into.message, SinkOf(into));
}

// WritesDone() and Finish() of the three kinds of stream.
Task<absl::Status> EndWrites(StreamRef stream);
Task<absl::Status> FinishStream(StreamRef stream);
// FinishStream(), which also parses the reply.
Task<absl::Status> FinishWithReply(StreamRef stream, google::protobuf::MessageLite& reply);

template <typename Reply>
Task<absl::StatusOr<Reply>> FinishWithReply(StreamRef stream) {
  Reply reply;
  VERBENA_CO_RETURN_IF_ERROR(co_await FinishWithReply(stream, reply));
  co_return reply;
}

}  // namespace internal

// Server streaming: the client sends one request, and reads replies.
template <typename Reply>
class [[nodiscard("a stream begins when it is read")]] ClientReader {
 public:
  // For generated stubs. `channel` and `descriptor` are borrowed until the object is destroyed.
  ClientReader(Channel& channel, const MethodDescriptor& descriptor,
               const google::protobuf::MessageLite& request, CallOptions&& options)
      : stream_(channel, descriptor, request, internal::MessageOnly<Reply>::default_instance(),
                std::move(options)) {}

  // The next message. None at the end of the stream, if the stream has failed, or if this await was
  // cancelled. Finish() tells the first two apart. After a cancelled await the stream goes on, and
  // the next Read gives the message.
  // The await of a WithPayload also waits for memory for the payload. If there is none in time, the
  // stream ends with RESOURCE_EXHAUSTED.
  VERBENA_CORO_WRAPPER auto Read() { return internal::NextOf<Reply>(*stream_); }
  // Reads the next message into the caller's, and gives whether there was one. Does not allocate
  // once warm. The Buffer of a WithPayload is used again if it is large enough. It has no bytes if
  // the message has no payload.
  VERBENA_CORO_WRAPPER auto Read(Reply& into) { return internal::ReadInto(*stream_, into); }
  // Reads into the caller's message, for a caller that limits the time of a Read, or must know why
  // there is no message. Costs a coroutine. False at the end of the stream: Finish() tells how it
  // ended. An error if the link or the deadline ended the stream, or if this await was cancelled.
  // After a cancelled await the stream goes on. But if this is the stream's first await, the
  // deadline of the Task is that of the whole stream, unless the stream has Inherit::kNothing
  // (call_options.h):
  //
  //   absl::StatusOr<bool> read = co_await WithDeadline(reader.TryRead(entry), 1s);
  VERBENA_CORO_WRAPPER Task<absl::StatusOr<bool>> TryRead(Reply& into) {
    return internal::TryRead(internal::StreamRef(*stream_), internal::MessageOf(into),
                             internal::SinkOf(into));
  }
  // Drops the messages that were not read, and waits until the handler has ended by itself. Returns
  // how it ended, with an Outcome if it failed. Does not cancel the handler: to stop early, destroy
  // the object instead. Call it once. A check aborts if two Finish() run at the same time.
  VERBENA_CORO_WRAPPER Task<absl::Status> Finish() {
    return internal::FinishStream(internal::StreamRef(*stream_));
  }

 private:
  internal::StreamHandle stream_;
};

// Client streaming: the client writes requests, and gets one reply.
template <typename Request, typename Reply>
class [[nodiscard("a stream begins when it is written")]] ClientWriter {
 public:
  ClientWriter(Channel& channel, const MethodDescriptor& descriptor, CallOptions&& options)
      : stream_(channel, descriptor, internal::MessageOnly<Request>::default_instance(),
                internal::MessageOnly<Reply>::default_instance(), std::move(options)) {}

  // OK when the message is on its way: Write waits for the window, that is, for the server to read.
  // The message is borrowed until then. If the await is cancelled or abandoned, the message may
  // have been sent. Only the Outcome of Finish() counts: an error that ends no stream has none.
  // After an error Finish() fails, too, with two exceptions: a WritesDone() has succeeded since
  // (see the top), or the error only says that the server has ended the stream well.
  //   RESOURCE_EXHAUSTED: the message is larger than LinkLimits::max_payload_bytes, or does not fit
  //     a frame and too much memory of the server's streams is in use. It was not sent, and the
  //     stream goes on without it.
  //   FAILED_PRECONDITION: after WritesDone(), or the server has ended the stream well.
  //   Others: the stream has failed; Finish() gives the same error.
  internal::ClientWrite Write(const internal::MessageOnly<Request>& message) {
    return internal::ClientWrite(*stream_, message);
  }
  // Writes a message with a payload, which may be empty. Both are borrowed until the await ends.
  internal::ClientWrite Write(const internal::MessageOnly<Request>& message, BufferView payload)
    requires internal::HasPayload<Request>
  {
    return internal::ClientWrite(*stream_, message, {.view = payload, .present = true});
  }
  // Writes a message as it was read: with its payload, if it came with one.
  internal::ClientWrite Write(const WithPayload<internal::MessageOnly<Request>>& message)
    requires internal::HasPayload<Request>
  {
    return internal::ClientWrite(*stream_, message.message, internal::PayloadOf(message));
  }
  // Ends the writes, which the handler learns from its Read. Finish() ends them, too, unless a
  // message is missing. WritesDone() says that the messages are whole, also after a Write that
  // failed.
  VERBENA_CORO_WRAPPER Task<absl::Status> WritesDone() {
    return internal::EndWrites(internal::StreamRef(*stream_));
  }
  // Ends the writes, waits for the end of the call, and gives the reply. If a Write has failed
  // since WritesDone(), gives the call up instead, with the Write's status.
  VERBENA_CORO_WRAPPER Task<absl::StatusOr<Reply>> Finish() {
    return internal::FinishWithReply<Reply>(internal::StreamRef(*stream_));
  }

 private:
  internal::StreamHandle stream_;
};

// Bidirectional streaming: both sides write as they like. A client that writes without reading may
// wait for a server that does the same: read and write in two tasks, or alternately.
template <typename Request, typename Reply>
class [[nodiscard("a stream begins when it is read or written")]] ClientReaderWriter {
 public:
  ClientReaderWriter(Channel& channel, const MethodDescriptor& descriptor, CallOptions&& options)
      : stream_(channel, descriptor, internal::MessageOnly<Request>::default_instance(),
                internal::MessageOnly<Reply>::default_instance(), std::move(options)) {}

  // Read and TryRead are as in ClientReader, Write and WritesDone as in ClientWriter.
  VERBENA_CORO_WRAPPER auto Read() { return internal::NextOf<Reply>(*stream_); }
  VERBENA_CORO_WRAPPER auto Read(Reply& into) { return internal::ReadInto(*stream_, into); }
  VERBENA_CORO_WRAPPER Task<absl::StatusOr<bool>> TryRead(Reply& into) {
    return internal::TryRead(internal::StreamRef(*stream_), internal::MessageOf(into),
                             internal::SinkOf(into));
  }
  internal::ClientWrite Write(const internal::MessageOnly<Request>& message) {
    return internal::ClientWrite(*stream_, message);
  }
  internal::ClientWrite Write(const internal::MessageOnly<Request>& message, BufferView payload)
    requires internal::HasPayload<Request>
  {
    return internal::ClientWrite(*stream_, message, {.view = payload, .present = true});
  }
  internal::ClientWrite Write(const WithPayload<internal::MessageOnly<Request>>& message)
    requires internal::HasPayload<Request>
  {
    return internal::ClientWrite(*stream_, message.message, internal::PayloadOf(message));
  }
  VERBENA_CORO_WRAPPER Task<absl::Status> WritesDone() {
    return internal::EndWrites(internal::StreamRef(*stream_));
  }
  // Ends the writes, drops the replies that were not read, and waits for the end of the call. Does
  // not cancel the handler. If a Write has failed since WritesDone(), gives the call up instead,
  // with the Write's status.
  VERBENA_CORO_WRAPPER Task<absl::Status> Finish() {
    return internal::FinishStream(internal::StreamRef(*stream_));
  }

 private:
  internal::StreamHandle stream_;
};

}  // namespace verbena

#endif  // VERBENA_RPC_CLIENT_STREAM_H_
