// Streams: calls whose client, server or both send any number of messages.
//
//   ClientReader, ClientWriter, ClientReaderWriter   the client's end, of a stub's method
//   ServerReader, ServerWriter, ServerReaderWriter   the handler's end
//   ClientReaderInterface …                          the client's end as an interface, for mocks
//
//   ClientReader<Entry> entries = stub.Scan(request, {.deadline = 5s});
//   Entry entry;
//   while (co_await entries.Read(entry)) Use(entry);
//   // Why Read returned false: the end, or a failure.
//   absl::Status status = co_await entries.Finish();

#ifndef VERBENA_RPC_STREAM_H_
#define VERBENA_RPC_STREAM_H_

#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/detail/message.h"
#include "verbena/rpc/detail/stream_awaits.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena {

// ClientReader, ClientWriter, ClientReaderWriter: a client's end of a stream, as the stub's method
// of a server streaming, client streaming or bidirectional streaming method returns it.
//
// The stream is a call. It begins with the first await, which connects if need be, and ends with
// the status that the server's handler returns; Finish() waits for it. The stub's method serializes
// the request before it returns; the channel must outlive the object and all awaits of it. The
// deadline of CallOptions holds for the whole stream, and so does that of the Task that begins it,
// if that is earlier (CallOptions::inherit). Destroying the object before the end abandons the
// call: the handler is cancelled, and so are awaits in other Tasks. Movable while nobody awaits it.
// All awaits and the destruction are on one executor. A Read and a Write may be awaited at once.
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
//   ClientWriter<Chunk, UploadReply> upload = stub.Upload();
//   for (const Chunk& chunk : chunks) {
//     if (!(co_await upload.Write(chunk)).ok()) break;  // Finish() says why
//   }
//   absl::StatusOr<UploadReply> reply = co_await upload.Finish();
//
// If the messages of a stream have payloads (call.h), its type says WithPayload<Reply>, or
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
//
//   precondition                                 how it is checked     test
//   one Read and one Write at a time             a check aborts        call_misuse_test
//   one Finish() at a time                       a check aborts        call_misuse_test
//   no Read behind the end of the messages       FAILED_PRECONDITION   stream_end_test
//   no Write behind WritesDone()                 FAILED_PRECONDITION   stream_window_test
//   awaited and destroyed on one executor        not checked
//   not moved while somebody awaits it           not checked

// Server streaming: the client sends one request, and reads replies.
template <typename Reply>
class [[nodiscard("a stream begins when it is read")]] ClientReader {
 public:
  // For generated stubs. `channel` and `descriptor` are borrowed until the object is destroyed.
  ClientReader(internal::ClientChannel& channel, const MethodDescriptor& descriptor,
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
  // there is no message. Costs a coroutine. False at the end of the stream, once: Finish() tells
  // how it ended. An error, if the link or the deadline has ended the stream, if this await was
  // cancelled, or after False (FAILED_PRECONDITION). After a cancelled await the stream goes on.
  // But if this is the stream's first await, the deadline of the Task is that of the whole stream,
  // unless the stream has Inherit::kNothing (CallOptions::inherit):
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
  ClientWriter(internal::ClientChannel& channel, const MethodDescriptor& descriptor,
               CallOptions&& options)
      : stream_(channel, descriptor, internal::MessageOnly<Request>::default_instance(),
                internal::MessageOnly<Reply>::default_instance(), std::move(options)) {}

  // OK when the message is on its way: Write waits for the window, that is, for the server to read.
  // The message is borrowed until then. If the await is cancelled or abandoned, the message may
  // have been sent. Only the Outcome of Finish() counts: an error that ends no stream has none.
  // After an error Finish() fails, too, with two exceptions: a WritesDone() has succeeded since
  // (see the comment on ClientReader), or the error only says that the server has ended the stream
  // well.
  //   RESOURCE_EXHAUSTED: the message is larger than LinkLimits::max_message_bytes, or its payload
  //     than max_payload_bytes, or it does not fit a frame and too much memory of the server's
  //     streams is in use. It was not sent, and the stream goes on without it.
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
  ClientReaderWriter(internal::ClientChannel& channel, const MethodDescriptor& descriptor,
                     CallOptions&& options)
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

// ServerReader, ServerWriter, ServerReaderWriter: a handler's end of a stream.
//
// The handler of a streaming method gets one, which is valid until the handler's Task ends. The
// status of that Task ends the stream. Awaits end with CANCELLED or DEADLINE_EXCEEDED by themselves
// when the call does. A Read and a Write may be awaited at once. One thread.
//
// A server's Read gives an absl::StatusOr, which is OK at the end of the stream, too:
//
//   // BAD: stores the last chunk twice. A Read at the end is OK; only the one behind it fails.
//   while ((co_await chunks.Read(chunk)).ok()) Store(chunk);
//
//   // GOOD: ends with the client's last message, and hands on a failure.
//   for (;;) {
//     VERBENA_CO_ASSIGN_OR_RETURN(bool read, co_await chunks.Read(chunk));
//     if (!read) break;
//     Store(chunk);
//   }
//
// If the messages of a stream have payloads, its type says WithPayload, as at the client:
// Read() gives payloads, and Write() takes them. The memory of payloads that were read
// counts in the bound of their client (ServerOptions::max_bytes_per_client) until their
// Buffers are destroyed.
//
//   precondition                                    how it is checked     test
//   one Read and one Write at a time                a check aborts        call_misuse_test
//   no Read behind the end of the messages          FAILED_PRECONDITION   stream_end_test
//   used by the handler's Task and on its thread    not checked
template <typename Request>
class ServerReader {
 public:
  explicit ServerReader(internal::StreamReceiver& receiver) : receiver_(receiver) {}
  ServerReader(const ServerReader&) = delete;
  ServerReader& operator=(const ServerReader&) = delete;

  // The next message; none once the client has said that it sends no more, and FAILED_PRECONDITION
  // for a Read behind that. An error if the call has ended before that: then not all messages were
  // read. INVALID_ARGUMENT if the message does not parse, RESOURCE_EXHAUSTED if memory is short,
  // UNIMPLEMENTED if it has a payload and the server's .proto has none for it; the stream gives no
  // more messages then.
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
  //   RESOURCE_EXHAUSTED: the message is larger than LinkLimits::max_message_bytes, or its payload
  //     than max_payload_bytes, or it does not fit a frame and the client's share of memory is used
  //     up. The stream goes on without it.
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

namespace internal {

// The Writes of a client that streams.
template <typename Request>
class WritesInterface {
 public:
  virtual ~WritesInterface() = default;

  virtual Task<absl::Status> Write(const Request& message) = 0;
  virtual Task<absl::Status> WritesDone() = 0;
};

template <typename Message>
class WritesInterface<WithPayload<Message>> {
 public:
  virtual ~WritesInterface() = default;

  // Writes a message without a payload, or with one, which may be empty. The payload's Buffer is
  // borrowed, too.
  virtual Task<absl::Status> Write(const Message& message) = 0;
  virtual Task<absl::Status> Write(const Message& message, BufferView payload) = 0;
  // Writes a message as it was read: with its payload, if it came with one.
  VERBENA_CORO_WRAPPER Task<absl::Status> Write(const WithPayload<Message>& message) {
    return message.has_payload ? Write(message.message, message.payload.view())
                               : Write(message.message);
  }
  virtual Task<absl::Status> WritesDone() = 0;
};

}  // namespace internal

// ClientReaderInterface, ClientWriterInterface, ClientReaderWriterInterface: a client's end of a
// stream as virtual functions, for code whose tests put a mock in the place of the stream.
//
// The streaming methods of a generated StubInterface return one. A StubAdapter returns one that
// wraps the real stream. A mock returns a MockClientReader and so on, or one
// that plays messages (verbena/testing.h). Each function returns a Task, which costs a coroutine's
// frame, and there is no TryRead. All else is as with ClientReader, ClientWriter and
// ClientReaderWriter. Arguments are borrowed until the Task ends, and the object must outlive its
// Tasks. Destroying it before the end abandons the call. All awaits and the destruction are on one
// executor.
//
//   Task<absl::StatusOr<int>> CountEntries(const Store::StubInterface& store) {
//     std::unique_ptr<ClientReaderInterface<Entry>> entries = store.Scan(ScanRequest());
//     int count = 0;
//     Entry entry;
//     while (co_await entries->Read(entry)) ++count;
//     VERBENA_CO_RETURN_IF_ERROR(co_await entries->Finish());
//     co_return count;
//   }
//
// If the messages of a stream have payloads, its type says WithPayload, as with the real streams:
// Read() fills one, and Write() also takes a payload, or what a Read gave.
template <typename Reply>
class ClientReaderInterface {
 public:
  virtual ~ClientReaderInterface() = default;

  // Whether `into` holds the next message now.
  virtual Task<bool> Read(Reply& into) = 0;
  // The next message, or none.
  Task<std::optional<Reply>> Read() {
    Reply message;
    if (!co_await Read(message)) co_return std::nullopt;
    co_return std::move(message);
  }
  virtual Task<absl::Status> Finish() = 0;
};

template <typename Request, typename Reply>
class ClientWriterInterface : public internal::WritesInterface<Request> {
 public:
  virtual Task<absl::StatusOr<Reply>> Finish() = 0;
};

template <typename Request, typename Reply>
class ClientReaderWriterInterface : public ClientReaderInterface<Reply>,
                                    public internal::WritesInterface<Request> {};

namespace internal {

// Implements the Writes of `Interface` by those of the real stream.
template <typename Interface, typename Stream, typename Request>
class WritesAdapter : public Interface {
 public:
  explicit WritesAdapter(Stream stream) : stream_(std::move(stream)) {}

  VERBENA_CORO_WRAPPER Task<absl::Status> Write(const Request& message) override {
    return stream_.Write(message).AsTask();
  }
  VERBENA_CORO_WRAPPER Task<absl::Status> WritesDone() override { return stream_.WritesDone(); }

 protected:
  Stream stream_;
};

template <typename Interface, typename Stream, typename Message>
class WritesAdapter<Interface, Stream, WithPayload<Message>> : public Interface {
 public:
  explicit WritesAdapter(Stream stream) : stream_(std::move(stream)) {}

  VERBENA_CORO_WRAPPER Task<absl::Status> Write(const Message& message) override {
    return stream_.Write(message).AsTask();
  }
  VERBENA_CORO_WRAPPER Task<absl::Status> Write(const Message& message,
                                                BufferView payload) override {
    return stream_.Write(message, payload).AsTask();
  }
  VERBENA_CORO_WRAPPER Task<absl::Status> WritesDone() override { return stream_.WritesDone(); }

 protected:
  Stream stream_;
};

// Read() of the real stream as a Task. That of a WithPayload is one already.
template <typename Stream, typename Reply>
VERBENA_CORO_WRAPPER Task<bool> ReadTask(Stream& stream, Reply& into) {
  return stream.Read(into).AsTask();
}
template <typename Stream, typename Message>
VERBENA_CORO_WRAPPER Task<bool> ReadTask(Stream& stream, WithPayload<Message>& into) {
  return stream.Read(into);
}

// The real streams behind the interfaces.
template <typename Reply>
class ReaderAdapter final : public ClientReaderInterface<Reply> {
 public:
  explicit ReaderAdapter(ClientReader<Reply> stream) : stream_(std::move(stream)) {}

  VERBENA_CORO_WRAPPER Task<bool> Read(Reply& into) override { return ReadTask(stream_, into); }
  VERBENA_CORO_WRAPPER Task<absl::Status> Finish() override { return stream_.Finish(); }

 private:
  ClientReader<Reply> stream_;
};

template <typename Request, typename Reply>
class WriterAdapter final : public WritesAdapter<ClientWriterInterface<Request, Reply>,
                                                 ClientWriter<Request, Reply>, Request> {
  using Base =
      WritesAdapter<ClientWriterInterface<Request, Reply>, ClientWriter<Request, Reply>, Request>;

 public:
  explicit WriterAdapter(ClientWriter<Request, Reply> stream) : Base(std::move(stream)) {}

  VERBENA_CORO_WRAPPER Task<absl::StatusOr<Reply>> Finish() override {
    return this->stream_.Finish();
  }
};

template <typename Request, typename Reply>
class ReaderWriterAdapter final
    : public WritesAdapter<ClientReaderWriterInterface<Request, Reply>,
                           ClientReaderWriter<Request, Reply>, Request> {
  using Base = WritesAdapter<ClientReaderWriterInterface<Request, Reply>,
                             ClientReaderWriter<Request, Reply>, Request>;

 public:
  explicit ReaderWriterAdapter(ClientReaderWriter<Request, Reply> stream)
      : Base(std::move(stream)) {}

  VERBENA_CORO_WRAPPER Task<bool> Read(Reply& into) override {
    return ReadTask(this->stream_, into);
  }
  VERBENA_CORO_WRAPPER Task<absl::Status> Finish() override { return this->stream_.Finish(); }
};

// For generated StubAdapters.
template <typename Reply>
std::unique_ptr<ClientReaderInterface<Reply>> AdaptStream(ClientReader<Reply> stream) {
  return std::make_unique<ReaderAdapter<Reply>>(std::move(stream));
}
template <typename Request, typename Reply>
std::unique_ptr<ClientWriterInterface<Request, Reply>> AdaptStream(
    ClientWriter<Request, Reply> stream) {
  return std::make_unique<WriterAdapter<Request, Reply>>(std::move(stream));
}
template <typename Request, typename Reply>
std::unique_ptr<ClientReaderWriterInterface<Request, Reply>> AdaptStream(
    ClientReaderWriter<Request, Reply> stream) {
  return std::make_unique<ReaderWriterAdapter<Request, Reply>>(std::move(stream));
}

}  // namespace internal

}  // namespace verbena

#endif  // VERBENA_RPC_STREAM_H_
