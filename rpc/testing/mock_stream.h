// MockClientReader, MockClientWriter, MockClientReaderWriter, and the actions PlayMessages() and
// PlayReply(): streams of generated mocks.
//
// PlayMessages() is an action of a mock's method that streams replies: the reader gives the
// messages, and ends with the status. PlayReply() is an action of a method whose client alone
// streams: the writer takes all messages, and ends with the reply or with a failure. Each call of
// the mock gets a stream of its own. A streaming method without an action gives a stream that ends
// with UNIMPLEMENTED.
//
//   EXPECT_CALL(mock, Scan).WillOnce(PlayMessages<Entry>({a, b, c}, absl::DataLossError("disk")));
//
// Tests that expect single Reads and Writes give the code a GoogleMock object. Its functions are
// answered as those of other mocks (mocked_call.h). By default a Read finds no message, a Write and
// WritesDone succeed, and Finish ends with UNIMPLEMENTED:
//
//   auto upload = std::make_unique<MockClientWriter<Chunk, UploadReply>>();
//   EXPECT_CALL(*upload, Write(HasText("a"))).WillOnce(Return(absl::OkStatus()));
//   EXPECT_CALL(*upload, Finish).WillOnce(Return(reply));
//   EXPECT_CALL(mock, Upload).WillOnce(Return(ByMove(std::move(upload))));
//
// Streams whose messages have payloads: played messages give the payloads' bytes, for which a
// channel has memory, as that of an InProcessServer. An expectation says which Write it means:
//
//   EXPECT_CALL(mock, Export)
//       .WillOnce(PlayMessages<WithPayload<Part>>(server.channel(), {{part, "bytes"}, {last}}));
//   EXPECT_CALL(*writer, Write(_, _)).Times(2);
//
// All objects are used on one executor, or by its thread alone, and must outlive their Tasks.

#ifndef VERBENA_RPC_TESTING_MOCK_STREAM_H_
#define VERBENA_RPC_TESTING_MOCK_STREAM_H_

#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/memory.h"
#include "verbena/rpc/stream.h"
#include "verbena/rpc/testing/mocked_call.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/task.h"

namespace verbena {

namespace internal {

// For MockClientWriter and MockClientReaderWriter: the Writes of `Interface`.
template <typename Interface, typename Request>
class MockWrites : public Interface {
 public:
  MockWrites() {
    ON_CALL(*this, Write).WillByDefault(::testing::Return(absl::OkStatus()));
    ON_CALL(*this, WritesDone).WillByDefault(::testing::Return(absl::OkStatus()));
  }

  MOCK_METHOD((testing::MockedCall<absl::Status>), Write, (const Request& message), (const));
  MOCK_METHOD((testing::MockedCall<absl::Status>), WritesDone, (), (const));

  Task<absl::Status> Write(const Request& message) override {
    co_return co_await std::as_const(*this).Write(message).AsTask();
  }
  Task<absl::Status> WritesDone() override {
    co_return co_await std::as_const(*this).WritesDone().AsTask();
  }
};

// Expectations say which Write they mean: Write(_) or Write(_, _).
template <typename Interface, typename Message>
class MockWrites<Interface, WithPayload<Message>> : public Interface {
 public:
  MockWrites() {
    using ::testing::_;
    ON_CALL(*this, Write(_)).WillByDefault(::testing::Return(absl::OkStatus()));
    ON_CALL(*this, Write(_, _)).WillByDefault(::testing::Return(absl::OkStatus()));
    ON_CALL(*this, WritesDone).WillByDefault(::testing::Return(absl::OkStatus()));
  }

  MOCK_METHOD((testing::MockedCall<absl::Status>), Write, (const Message& message), (const));
  MOCK_METHOD((testing::MockedCall<absl::Status>), Write,
              (const Message& message, BufferView payload), (const));
  MOCK_METHOD((testing::MockedCall<absl::Status>), WritesDone, (), (const));

  Task<absl::Status> Write(const Message& message) override {
    co_return co_await std::as_const(*this).Write(message).AsTask();
  }
  Task<absl::Status> Write(const Message& message, BufferView payload) override {
    co_return co_await std::as_const(*this).Write(message, payload).AsTask();
  }
  Task<absl::Status> WritesDone() override {
    co_return co_await std::as_const(*this).WritesDone().AsTask();
  }
};

}  // namespace internal

namespace testing {

// As in generated mocks, GoogleMock's functions are const and answer with a MockedCall.
template <typename Reply>
class MockClientReader : public ClientReaderInterface<Reply> {
 public:
  using ClientReaderInterface<Reply>::Read;

  MOCK_METHOD((MockedCall<bool>), Read, (Reply & into), (const));
  MOCK_METHOD((MockedCall<absl::Status>), Finish, (), (const));

  Task<bool> Read(Reply& into) override {
    co_return co_await std::as_const(*this).Read(into).AsTask();
  }
  Task<absl::Status> Finish() override {
    co_return co_await std::as_const(*this).Finish().AsTask();
  }
};

template <typename Request, typename Reply>
class MockClientWriter
    : public internal::MockWrites<ClientWriterInterface<Request, Reply>, Request> {
 public:
  MOCK_METHOD((MockedCall<absl::StatusOr<Reply>>), Finish, (), (const));

  Task<absl::StatusOr<Reply>> Finish() override {
    co_return co_await std::as_const(*this).Finish().AsTask();
  }
};

template <typename Request, typename Reply>
class MockClientReaderWriter
    : public internal::MockWrites<ClientReaderWriterInterface<Request, Reply>, Request> {
 public:
  using ClientReaderInterface<Reply>::Read;

  MOCK_METHOD((MockedCall<bool>), Read, (Reply & into), (const));
  MOCK_METHOD((MockedCall<absl::Status>), Finish, (), (const));

  Task<bool> Read(Reply& into) override {
    co_return co_await std::as_const(*this).Read(into).AsTask();
  }
  Task<absl::Status> Finish() override {
    co_return co_await std::as_const(*this).Finish().AsTask();
  }
};

// A message for PlayMessages(), with the bytes of its payload; none: it has no payload.
template <typename Message>
struct PlayedMessage {
  Message message = {};
  std::optional<std::string> payload = {};
};

}  // namespace testing

namespace internal {

// Messages and a status that a stream plays: once all messages are read, the stream is over, and a
// Write fails with the status.
template <typename Reply>
class PlayedMessages {
 public:
  PlayedMessages(std::vector<Reply> messages, absl::Status status)
      : messages_(std::move(messages)), status_(std::move(status)) {}

  Task<bool> Next(Reply& into) {
    if (is_over()) co_return false;
    into = messages_[next_++];
    co_return true;
  }
  bool is_over() const { return next_ == messages_.size(); }
  const absl::Status& status() const { return status_; }

 private:
  std::vector<Reply> messages_;
  absl::Status status_;
  size_t next_ = 0;
};

template <typename Message>
class PlayedMessages<WithPayload<Message>> {
 public:
  // `memory` may be null if no payload has bytes.
  PlayedMessages(std::vector<testing::PlayedMessage<Message>> messages, absl::Status status,
                 Channel* memory = nullptr)
      : messages_(std::move(messages)), status_(std::move(status)), memory_(memory) {}

  // Without memory for the payload the stream is over, as a real one is.
  Task<bool> Next(WithPayload<Message>& into) {
    if (is_over()) co_return false;
    const testing::PlayedMessage<Message>& next = messages_[next_];
    const std::string payload = next.payload.value_or("");
    if (payload.size() > into.payload.capacity()) {
      VERBENA_CHECK(memory_ != nullptr) << "PlayMessages() with payloads takes a Channel";
      absl::StatusOr<Buffer> memory = co_await memory_->AllocateBuffer(payload.size());
      if (!memory.ok()) {
        // A cancelled Read ends alone.
        const TaskContext context = co_await CurrentContext();
        if (context.cancel != nullptr && context.cancel->requested()) co_return false;
        status_ = memory.status();
        next_ = messages_.size();
        co_return false;
      }
      into.payload = *std::move(memory);
    }
    if (into.payload) into.payload.set_size(payload.size());
    if (!payload.empty()) std::memcpy(into.payload.data(), payload.data(), payload.size());
    into.message = next.message;
    into.has_payload = next.payload.has_value();
    ++next_;
    co_return true;
  }
  bool is_over() const { return next_ == messages_.size(); }
  const absl::Status& status() const { return status_; }

 private:
  std::vector<testing::PlayedMessage<Message>> messages_;
  absl::Status status_;
  Channel* memory_;
  size_t next_ = 0;
};

// The Writes of `Interface`, all of which end with status_of_writes().
template <typename Interface, typename Request>
class PlayedWrites : public Interface {
 public:
  Task<absl::Status> Write(const Request&) override { co_return status_of_writes(); }
  Task<absl::Status> WritesDone() override { co_return absl::OkStatus(); }

 private:
  virtual absl::Status status_of_writes() const = 0;
};

template <typename Interface, typename Message>
class PlayedWrites<Interface, WithPayload<Message>> : public Interface {
 public:
  Task<absl::Status> Write(const Message&) override { co_return status_of_writes(); }
  Task<absl::Status> Write(const Message&, BufferView) override { co_return status_of_writes(); }
  Task<absl::Status> WritesDone() override { co_return absl::OkStatus(); }

 private:
  virtual absl::Status status_of_writes() const = 0;
};

template <typename Reply>
class PlayedReader final : public ClientReaderInterface<Reply> {
 public:
  explicit PlayedReader(PlayedMessages<Reply> played) : played_(std::move(played)) {}

  VERBENA_CORO_WRAPPER Task<bool> Read(Reply& into) override { return played_.Next(into); }
  Task<absl::Status> Finish() override { co_return played_.status(); }

 private:
  PlayedMessages<Reply> played_;
};

template <typename Request, typename Reply>
class PlayedReaderWriter final
    : public PlayedWrites<ClientReaderWriterInterface<Request, Reply>, Request> {
 public:
  explicit PlayedReaderWriter(PlayedMessages<Reply> played) : played_(std::move(played)) {}

  VERBENA_CORO_WRAPPER Task<bool> Read(Reply& into) override { return played_.Next(into); }
  Task<absl::Status> Finish() override { co_return played_.status(); }

 private:
  absl::Status status_of_writes() const override {
    return played_.is_over() ? played_.status() : absl::OkStatus();
  }

  PlayedMessages<Reply> played_;
};

template <typename Request, typename Reply>
class PlayedWriter final : public PlayedWrites<ClientWriterInterface<Request, Reply>, Request> {
 public:
  explicit PlayedWriter(absl::StatusOr<Reply> reply) : reply_(std::move(reply)) {}

  Task<absl::StatusOr<Reply>> Finish() override { co_return reply_; }

 private:
  absl::Status status_of_writes() const override { return reply_.status(); }

  absl::StatusOr<Reply> reply_;
};

// An action whose result becomes the stream that the mock's method returns.
template <typename Reply>
class PlayMessagesAction {
 public:
  explicit PlayMessagesAction(PlayedMessages<Reply> played) : played_(std::move(played)) {}

  template <typename... Arguments>
  PlayMessagesAction operator()(const Arguments&...) const {
    return *this;
  }
  operator std::unique_ptr<ClientReaderInterface<Reply>>() const {  // NOLINT(google-explicit-*)
    return std::make_unique<PlayedReader<Reply>>(played_);
  }
  template <typename Request>
  operator std::unique_ptr<ClientReaderWriterInterface<Request, Reply>>() const {  // NOLINT
    return std::make_unique<PlayedReaderWriter<Request, Reply>>(played_);
  }

 private:
  PlayedMessages<Reply> played_;
};

template <typename Reply>
class PlayReplyAction {
 public:
  explicit PlayReplyAction(absl::StatusOr<Reply> reply) : reply_(std::move(reply)) {}

  template <typename... Arguments>
  PlayReplyAction operator()(const Arguments&...) const {
    return *this;
  }
  template <typename Request>
  operator std::unique_ptr<ClientWriterInterface<Request, Reply>>() const {  // NOLINT
    return std::make_unique<PlayedWriter<Request, Reply>>(reply_);
  }

 private:
  absl::StatusOr<Reply> reply_;
};

}  // namespace internal

namespace testing {

// An action of a method that streams replies. If the client streams, too, its Writes succeed until
// all messages are read.
template <typename Reply>
  requires(!internal::HasPayload<Reply>)
auto PlayMessages(std::vector<Reply> messages, absl::Status status = absl::OkStatus()) {
  return internal::PlayMessagesAction<Reply>(
      internal::PlayedMessages<Reply>(std::move(messages), std::move(status)));
}

// PlayMessages<WithPayload<Reply>>(): an action of a method whose replies have payloads. Reads take
// memory for payloads from `memory`, which outlives the payloads, unless the reader's memory is
// large enough.
template <internal::HasPayload Reply>
auto PlayMessages(Channel& memory,
                  std::vector<PlayedMessage<internal::MessageOnly<Reply>>> messages,
                  absl::Status status = absl::OkStatus()) {
  return internal::PlayMessagesAction<Reply>(
      internal::PlayedMessages<Reply>(std::move(messages), std::move(status), &memory));
}
// PlayMessages<WithPayload<Reply>>() for messages whose payloads have no bytes.
template <internal::HasPayload Reply>
auto PlayMessages(std::vector<PlayedMessage<internal::MessageOnly<Reply>>> messages,
                  absl::Status status = absl::OkStatus()) {
  return internal::PlayMessagesAction<Reply>(
      internal::PlayedMessages<Reply>(std::move(messages), std::move(status)));
}

// An action of a method whose client alone streams. `reply` may be a Status, which each Write
// returns, too.
template <typename Reply>
auto PlayReply(absl::StatusOr<Reply> reply) {
  return internal::PlayReplyAction<Reply>(std::move(reply));
}

}  // namespace testing
}  // namespace verbena

#endif  // VERBENA_RPC_TESTING_MOCK_STREAM_H_
