// ServerReader, ServerWriter, ServerReaderWriter: a handler's end of a stream.
//
// The handler of a streaming method gets one, which is valid until the handler's Task ends. The
// status of that Task ends the stream. Awaits end with CANCELLED or DEADLINE_EXCEEDED by themselves
// when the call does. A Read and a Write may be awaited at once; a check aborts if two Reads or two
// Writes are. One thread.
//
// A server's Read gives an absl::StatusOr, which is OK at the end of the stream, too:
//
//   // BAD: never ends, since Read is OK at each later Read as well.
//   while ((co_await chunks.Read(chunk)).ok()) Store(chunk);
//
//   // GOOD: ends with the client's last message, and hands on a failure.
//   for (;;) {
//     VERBENA_CO_ASSIGN_OR_RETURN(bool read, co_await chunks.Read(chunk));
//     if (!read) break;
//     Store(chunk);
//   }
//
// If the messages of a stream have payloads, its type says WithPayload, as at the client
// (client_stream.h): Read() gives payloads, and Write() takes them. The memory of payloads that
// were read counts in the bound of their client (ServerOptions::max_bytes_per_client) until their
// Buffers are destroyed.

#ifndef VERBENA_RPC_SERVER_STREAM_H_
#define VERBENA_RPC_SERVER_STREAM_H_

#include <concepts>
#include <coroutine>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/server_context.h"
#include "verbena/rpc/stream_awaits.h"
#include "verbena/rpc/with_payload.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena {

namespace internal {

// The halves of a call's stream. Precondition: the call has one.
class StreamOf {
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

// Read() and Read(into) of both kinds of stream. A WithPayload takes a coroutine, which may wait
// for memory.
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

template <typename Request>
class ServerReader {
 public:
  explicit ServerReader(internal::StreamReceiver& receiver) : receiver_(receiver) {}
  ServerReader(const ServerReader&) = delete;
  ServerReader& operator=(const ServerReader&) = delete;

  // The next message; none once the client has said that it sends no more. An error if the call has
  // ended before that: then not all messages were read. INVALID_ARGUMENT if the message does not
  // parse, RESOURCE_EXHAUSTED if memory is short; the stream gives no more messages then.
  VERBENA_CORO_WRAPPER auto Read() { return internal::NextOf<Request>(receiver_); }
  // Reads the next message into the handler's, without an allocation once warm. Gives an
  // absl::StatusOr<bool>: whether there was a message. The Buffer of a WithPayload is used again if
  // it is large enough. It has no bytes if the message has no payload.
  VERBENA_CORO_WRAPPER auto Read(Request& into) { return internal::ReadInto(receiver_, into); }

 private:
  internal::StreamReceiver& receiver_;
};

template <typename Reply>
class ServerWriter {
 public:
  explicit ServerWriter(internal::StreamSender& sender) : sender_(sender) {}
  ServerWriter(const ServerWriter&) = delete;
  ServerWriter& operator=(const ServerWriter&) = delete;

  // OK when the message is on its way: Write waits for the window, that is, for the client to read.
  // The message is borrowed until then. If the await is cancelled or abandoned, the message may
  // have been sent. co_await each Write: a handler that returns while one runs cuts it off.
  //   CANCELLED: the client's link is lost, or the call was cancelled.
  //   UNAVAILABLE: the link is lost, in a Task that no cancellation reaches.
  //   DEADLINE_EXCEEDED: the call's deadline has passed.
  //   RESOURCE_EXHAUSTED: the message is larger than LinkLimits::max_payload_bytes, or does not fit
  //     a frame and the client's share of memory is used up. The stream goes on without it.
  internal::StreamWrite Write(const internal::MessageOnly<Reply>& message) {
    return internal::StreamWrite(sender_, message);
  }
  // Writes a message with a payload, which may be empty. Both are borrowed until the await ends.
  internal::StreamWrite Write(const internal::MessageOnly<Reply>& message, BufferView payload)
    requires internal::HasPayload<Reply>
  {
    return internal::StreamWrite(sender_, message, {.view = payload, .present = true});
  }
  // Writes a message as it was read: with its payload, if it came with one.
  internal::StreamWrite Write(const WithPayload<internal::MessageOnly<Reply>>& message)
    requires internal::HasPayload<Reply>
  {
    return internal::StreamWrite(sender_, message.message, internal::PayloadOf(message));
  }

 private:
  internal::StreamSender& sender_;
};

template <typename Request, typename Reply>
class ServerReaderWriter {
 public:
  ServerReaderWriter(internal::StreamReceiver& receiver, internal::StreamSender& sender)
      : receiver_(receiver), sender_(sender) {}
  ServerReaderWriter(const ServerReaderWriter&) = delete;
  ServerReaderWriter& operator=(const ServerReaderWriter&) = delete;

  // Read is as in ServerReader, Write as in ServerWriter.
  VERBENA_CORO_WRAPPER auto Read() { return internal::NextOf<Request>(receiver_); }
  VERBENA_CORO_WRAPPER auto Read(Request& into) { return internal::ReadInto(receiver_, into); }
  internal::StreamWrite Write(const internal::MessageOnly<Reply>& message) {
    return internal::StreamWrite(sender_, message);
  }
  internal::StreamWrite Write(const internal::MessageOnly<Reply>& message, BufferView payload)
    requires internal::HasPayload<Reply>
  {
    return internal::StreamWrite(sender_, message, {.view = payload, .present = true});
  }
  internal::StreamWrite Write(const WithPayload<internal::MessageOnly<Reply>>& message)
    requires internal::HasPayload<Reply>
  {
    return internal::StreamWrite(sender_, message.message, internal::PayloadOf(message));
  }

 private:
  internal::StreamReceiver& receiver_;
  internal::StreamSender& sender_;
};

}  // namespace verbena

#endif  // VERBENA_RPC_SERVER_STREAM_H_
