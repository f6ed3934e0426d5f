// ClientReaderInterface, ClientWriterInterface, ClientReaderWriterInterface: a client's end of a
// stream as virtual functions, for code whose tests put a mock in the place of the stream.
//
// The streaming methods of a generated StubInterface return one. A StubAdapter returns one that
// wraps the real stream of client_stream.h. A mock returns a MockClientReader and so on, or one
// that plays messages (verbena/testing.h). Each function returns a Task, which costs a coroutine's
// frame, and there is no TryRead. All else is as with ClientReader, ClientWriter and
// ClientReaderWriter. Arguments are borrowed until the Task ends, and the object must outlive its
// Tasks. Destroying it before the end abandons the call. All awaits and the destruction are on one
// executor.
//
//   Task<absl::StatusOr<int>> CountEntries(Store::StubInterface& store) {
//     std::unique_ptr<ClientReaderInterface<Entry>> entries = store.Scan(ScanRequest());
//     int count = 0;
//     Entry entry;
//     while (co_await entries->Read(entry)) ++count;
//     VERBENA_CO_RETURN_IF_ERROR(co_await entries->Finish());
//     co_return count;
//   }
//
// If the messages of a stream have payloads, its type says WithPayload, as with the real streams
// (client_stream.h): Read() fills one, and Write() also takes a payload, or what a Read gave.

#ifndef VERBENA_RPC_STREAM_INTERFACE_H_
#define VERBENA_RPC_STREAM_INTERFACE_H_

#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/client_stream.h"
#include "verbena/rpc/with_payload.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena {

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

#endif  // VERBENA_RPC_STREAM_INTERFACE_H_
