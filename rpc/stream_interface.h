// ClientReaderInterface, ClientWriterInterface, ClientReaderWriterInterface: a client's end of a
// stream as virtual functions, for code whose tests put a mock in the place of the stream.
//
// The streaming methods of a generated StubInterface return one. (Methods whose streams have
// payloads are not in the interface.) A StubAdapter's wraps the real stream of client_stream.h, and
// a mock's is a MockClientReader and so on, or played messages (verbena/testing.h). Each function
// returns a Task, which costs a coroutine's frame; all else is as with ClientReader, ClientWriter
// and ClientReaderWriter. Arguments are borrowed until the Task ends, and the object must outlive
// its Tasks. Destroying it before the end abandons the call. All awaits and the destruction are on
// one executor.
//
//   Task<absl::StatusOr<int>> CountEntries(Store::StubInterface& store) {
//     std::unique_ptr<ClientReaderInterface<Entry>> entries = store.Scan(ScanRequest());
//     int count = 0;
//     Entry entry;
//     while (co_await entries->Read(entry)) ++count;
//     VERBENA_CO_RETURN_IF_ERROR(co_await entries->Finish());
//     co_return count;
//   }

#ifndef VERBENA_RPC_STREAM_INTERFACE_H_
#define VERBENA_RPC_STREAM_INTERFACE_H_

#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/client_stream.h"
#include "verbena/transport/coro/task.h"

namespace verbena {

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
class ClientWriterInterface {
 public:
  virtual ~ClientWriterInterface() = default;

  virtual Task<absl::Status> Write(const Request& message) = 0;
  virtual Task<absl::Status> WritesDone() = 0;
  virtual Task<absl::StatusOr<Reply>> Finish() = 0;
};

template <typename Request, typename Reply>
class ClientReaderWriterInterface : public ClientReaderInterface<Reply> {
 public:
  virtual Task<absl::Status> Write(const Request& message) = 0;
  virtual Task<absl::Status> WritesDone() = 0;
};

namespace internal {

// The real streams behind the interfaces.
template <typename Reply>
class ReaderAdapter final : public ClientReaderInterface<Reply> {
 public:
  explicit ReaderAdapter(ClientReader<Reply> stream) : stream_(std::move(stream)) {}

  VERBENA_CORO_WRAPPER Task<bool> Read(Reply& into) override { return stream_.Read(into).AsTask(); }
  VERBENA_CORO_WRAPPER Task<absl::Status> Finish() override { return stream_.Finish(); }

 private:
  ClientReader<Reply> stream_;
};

template <typename Request, typename Reply>
class WriterAdapter final : public ClientWriterInterface<Request, Reply> {
 public:
  explicit WriterAdapter(ClientWriter<Request, Reply> stream) : stream_(std::move(stream)) {}

  VERBENA_CORO_WRAPPER Task<absl::Status> Write(const Request& message) override {
    return stream_.Write(message).AsTask();
  }
  VERBENA_CORO_WRAPPER Task<absl::Status> WritesDone() override { return stream_.WritesDone(); }
  VERBENA_CORO_WRAPPER Task<absl::StatusOr<Reply>> Finish() override { return stream_.Finish(); }

 private:
  ClientWriter<Request, Reply> stream_;
};

template <typename Request, typename Reply>
class ReaderWriterAdapter final : public ClientReaderWriterInterface<Request, Reply> {
 public:
  explicit ReaderWriterAdapter(ClientReaderWriter<Request, Reply> stream)
      : stream_(std::move(stream)) {}

  VERBENA_CORO_WRAPPER Task<bool> Read(Reply& into) override { return stream_.Read(into).AsTask(); }
  VERBENA_CORO_WRAPPER Task<absl::Status> Write(const Request& message) override {
    return stream_.Write(message).AsTask();
  }
  VERBENA_CORO_WRAPPER Task<absl::Status> WritesDone() override { return stream_.WritesDone(); }
  VERBENA_CORO_WRAPPER Task<absl::Status> Finish() override { return stream_.Finish(); }

 private:
  ClientReaderWriter<Request, Reply> stream_;
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
