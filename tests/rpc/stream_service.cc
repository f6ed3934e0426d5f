#include "tests/rpc/stream_service.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "gtest/gtest.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/sleep.h"

namespace verbena {

testing::StreamItem ItemOf(uint64_t number, size_t bytes) {
  testing::StreamItem item;
  item.set_number(number);
  item.set_data(std::string(bytes, static_cast<char>('a' + number % 26)));
  return item;
}

Task<absl::Status> StreamingService::Count(ServerContext&, const testing::CountRequest& request,
                                           ServerWriter<testing::StreamItem>& writer) {
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

Task<absl::Status> StreamingService::Sum(ServerContext&, ServerReader<testing::StreamItem>& reader,
                                         testing::Summary& reply) {
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

Task<absl::Status> StreamingService::Echo(
    ServerContext&, ServerReaderWriter<testing::StreamItem, testing::StreamItem>& stream) {
  const Running running(*this);
  for (;;) {
    VERBENA_CO_ASSIGN_OR_RETURN(std::optional<testing::StreamItem> item, co_await stream.Read());
    if (!item.has_value()) co_return Ended(fails_with);
    ++read_;
    VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(*item));
  }
}

Task<absl::Status> StreamingService::Ignore(
    ServerContext& context, ServerReaderWriter<testing::StreamItem, testing::StreamItem>&) {
  const Running running(*this);
  absl::Status ended = co_await SleepUntil(kNever);
  EXPECT_TRUE(context.cancelled());
  last_failure = static_cast<int>(ended.code());
  co_return ended;
}

Task<absl::Status> StreamingService::Say(ServerContext&, const testing::StreamItem& request,
                                         testing::StreamItem& reply) {
  reply = request;
  co_return absl::OkStatus();
}

Task<absl::Status> StreamingService::Hold(ServerContext&, const testing::StreamItem&,
                                          testing::StreamItem&) {
  const Running running(*this);
  co_return co_await SleepUntil(kNever);
}

Task<absl::StatusOr<bool>> StreamingService::ReadOnce(ServerReader<testing::StreamItem>& reader,
                                                      testing::StreamItem& item) {
  co_return co_await reader.Read(item);
}

Task<absl::Status> StreamingService::WriteOnce(ServerWriter<testing::StreamItem>& writer,
                                               const testing::StreamItem& item) {
  co_return co_await writer.Write(item);
}

absl::Status StreamingService::Ended(absl::StatusCode code) const {
  absl::Status status(code, "as was asked" + std::string(message_bytes, 'm'));
  const std::string detail(detail_bytes, 'd');
  if (!detail.empty()) status.SetPayload(kDetail, absl::Cord(detail));
  return status;
}

void StreamTest::Start(ServerOptions options, RuntimeOptions server, RuntimeOptions client) {
  server_runtime_ = StartRuntime(std::move(server));
  ServeWith(service_, std::move(options));
  StartClient(server_->address(), std::move(client));
}

void StreamTest::StartClient(const std::string& address, RuntimeOptions options) {
  client_runtime_ = StartRuntime(std::move(options));
  channel_ = std::make_unique<Channel>(*client_runtime_, address);
  stub_ = std::make_unique<testing::Streaming::Stub>(*channel_);
}

Task<absl::Status> StreamTest::ReadAll(ClientReader<Item>& reader, uint64_t count, size_t bytes) {
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

Task<absl::Status> StreamTest::CountOf(uint32_t count, uint32_t bytes) {
  testing::CountRequest request;
  request.set_count(count);
  request.set_bytes(bytes);
  ClientReader<Item> reader = stub_->Count(request);
  co_return co_await ReadAll(reader, count, bytes);
}

Task<absl::StatusOr<testing::Summary>> StreamTest::SumOf(uint64_t count, size_t bytes) {
  ClientWriter<Item, testing::Summary> writer = stub_->Sum();
  for (uint64_t i = 0; i < count; ++i) {
    if (!(co_await writer.Write(ItemOf(i, bytes))).ok()) break;
  }
  co_return co_await writer.Finish();
}

Task<absl::Status> StreamTest::SayOnce() {
  absl::StatusOr<Item> said = co_await stub_->Say(ItemOf(7, 100));
  co_return said.status();
}

}  // namespace verbena
