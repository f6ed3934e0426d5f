// StreamingService: the test service of streams. StreamTest: a fixture with a server and a client
// of it, in one process.

#ifndef VERBENA_TESTS_RPC_STREAM_SERVICE_H_
#define VERBENA_TESTS_RPC_STREAM_SERVICE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "gtest/gtest.h"
#include "tests/rpc/runtime_pair.h"
#include "tests/rpc/stream_testing.verbena.pb.h"
#include "tests/support/watched.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/task.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/sleep.h"

namespace verbena {

inline testing::StreamItem ItemOf(uint64_t number, size_t bytes = 0) {
  testing::StreamItem item;
  item.set_number(number);
  item.set_data(std::string(bytes, static_cast<char>('a' + number % 26)));
  return item;
}

class StreamingService final : public testing::Streaming::Service {
 public:
  static constexpr char kDetail[] = "type.example/detail";

  Task<absl::Status> Count(ServerContext&, const testing::CountRequest& request,
                           ServerWriter<testing::StreamItem>& writer) override {
    const Running running(*this);
    filler_bytes = request.filler().size();
    for (uint32_t i = 0; i < request.count(); ++i) {
      const testing::StreamItem item = ItemOf(i, request.bytes());
      absl::Status written =
          shields ? co_await WriteOnce(writer, item).In(nullptr) : co_await writer.Write(item);
      if (!written.ok()) last_failure = static_cast<int>(written.code());
      if (!written.ok() && forgives) co_return absl::OkStatus();
      VERBENA_CO_RETURN_IF_ERROR(written);
      ++written_;
    }
    co_return Ended(static_cast<absl::StatusCode>(request.code()));
  }

  Task<absl::Status> Sum(ServerContext&, ServerReader<testing::StreamItem>& reader,
                         testing::Summary& reply) override {
    const Running running(*this);
    VERBENA_CO_RETURN_IF_ERROR(co_await reads_later.Until(false));
    testing::StreamItem item;
    for (;;) {
      absl::StatusOr<bool> read =
          shields ? co_await ReadOnce(reader, item).In(nullptr) : co_await reader.Read(item);
      if (!read.ok()) last_failure = static_cast<int>(read.status().code());
      VERBENA_CO_RETURN_IF_ERROR(read.status());
      if (!*read || item.number() == uint64_t{1} << 40) break;
      ++read_;
      VERBENA_CO_RETURN_IF_ERROR(co_await pauses.Until(false));
      reply.set_count(reply.count() + 1);
      reply.set_bytes(reply.bytes() + item.data().size());
    }
    reply.set_filler(std::string(reply_filler, 'f'));
    co_return Ended(fails_with);
  }

  Task<absl::Status> Echo(
      ServerContext&,
      ServerReaderWriter<testing::StreamItem, testing::StreamItem>& stream) override {
    const Running running(*this);
    for (;;) {
      VERBENA_CO_ASSIGN_OR_RETURN(std::optional<testing::StreamItem> item, co_await stream.Read());
      if (!item.has_value()) co_return Ended(fails_with);
      ++read_;
      VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(*item));
    }
  }

  Task<absl::Status> Ignore(
      ServerContext& context,
      ServerReaderWriter<testing::StreamItem, testing::StreamItem>&) override {
    const Running running(*this);
    absl::Status ended = co_await SleepUntil(kNever);
    EXPECT_TRUE(context.cancelled());
    last_failure = static_cast<int>(ended.code());
    co_return ended;
  }

  Task<absl::Status> Say(ServerContext&, const testing::StreamItem& request,
                         testing::StreamItem& reply) override {
    reply = request;
    co_return absl::OkStatus();
  }

  Task<absl::Status> Hold(ServerContext&, const testing::StreamItem&,
                          testing::StreamItem&) override {
    const Running running(*this);
    co_return co_await SleepUntil(kNever);
  }

  std::atomic<int> running{0};
  std::atomic<int> last_failure{0};
  std::atomic<uint64_t> written_{0};
  std::atomic<uint64_t> read_{0};
  std::atomic<size_t> filler_bytes{0};
  std::atomic<size_t> reply_filler{0};
  std::atomic<bool> shields{false};   // no cancellation reaches Reads of Sum and Writes of Count
  std::atomic<bool> forgives{false};  // Count ends well though a Write has failed
  std::atomic<absl::StatusCode> fails_with{absl::StatusCode::kOk};  // the end of Sum and Echo
  std::atomic<size_t> message_bytes{0};  // of failures, beside "as was asked"
  std::atomic<size_t> detail_bytes{0};   // the same
  Watched<bool> reads_later;             // Sum does not read as long as this is set
  Watched<bool> pauses;                  // Sum does not go on after a Read as long as this is set

 private:
  static Task<absl::StatusOr<bool>> ReadOnce(ServerReader<testing::StreamItem>& reader,
                                             testing::StreamItem& item) {
    co_return co_await reader.Read(item);
  }

  static Task<absl::Status> WriteOnce(ServerWriter<testing::StreamItem>& writer,
                                      const testing::StreamItem& item) {
    co_return co_await writer.Write(item);
  }

  absl::Status Ended(absl::StatusCode code) const {
    absl::Status status(code, "as was asked" + std::string(message_bytes, 'm'));
    const std::string detail(detail_bytes, 'd');
    if (!detail.empty()) status.SetPayload(kDetail, absl::Cord(detail));
    return status;
  }

  class Running {
   public:
    explicit Running(StreamingService& service) : service_(service) { ++service_.running; }
    ~Running() { --service_.running; }

   private:
    StreamingService& service_;
  };
};

class StreamTest : public RuntimePair {
 protected:
  using Item = testing::StreamItem;

  void Start(ServerOptions options = {}, RuntimeOptions server = {}, RuntimeOptions client = {}) {
    server_runtime_ = StartRuntime(std::move(server));
    ServeWith(service_, std::move(options));
    StartClient(server_->address(), std::move(client));
  }

  void StartClient(const std::string& address, RuntimeOptions options = {}) {
    client_runtime_ = StartRuntime(std::move(options));
    channel_ = std::make_unique<Channel>(*client_runtime_, address);
    stub_ = std::make_unique<testing::Streaming::Stub>(*channel_);
  }

  // Reads a stream of Count to its end, and checks each item.
  static Task<absl::Status> ReadAll(ClientReader<Item>& reader, uint64_t count, size_t bytes) {
    uint64_t next = 0;
    Item item;
    while (co_await reader.Read(item)) {
      if (item.SerializeAsString() != ItemOf(next, bytes).SerializeAsString()) {
        co_return absl::DataLossError("an item is not the one that was sent");
      }
      ++next;
    }
    VERBENA_CO_RETURN_IF_ERROR(co_await reader.Finish());
    if (next != count) co_return absl::DataLossError("items are missing");
    co_return absl::OkStatus();
  }

  Task<absl::Status> CountOf(uint32_t count, uint32_t bytes) {
    testing::CountRequest request;
    request.set_count(count);
    request.set_bytes(bytes);
    ClientReader<Item> reader = stub_->Count(request);
    co_return co_await ReadAll(reader, count, bytes);
  }

  Task<absl::StatusOr<testing::Summary>> SumOf(uint64_t count, size_t bytes) {
    ClientWriter<Item, testing::Summary> writer = stub_->Sum();
    for (uint64_t i = 0; i < count; ++i) {
      if (!(co_await writer.Write(ItemOf(i, bytes))).ok()) break;
    }
    co_return co_await writer.Finish();
  }

  Task<absl::Status> SayOnce() {
    absl::StatusOr<Item> said = co_await stub_->Say(ItemOf(7, 100));
    co_return said.status();
  }

  StreamingService service_;
  std::unique_ptr<testing::Streaming::Stub> stub_;
};

}  // namespace verbena

#endif  // VERBENA_TESTS_RPC_STREAM_SERVICE_H_
