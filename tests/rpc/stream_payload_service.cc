#include "tests/rpc/stream_payload_service.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/rpc/first_device.h"
#include "tests/rpc/open_link.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/sleep.h"

namespace verbena {

void FillPayload(BufferView view, uint64_t number) {
  for (size_t i = 0; i < view.size(); ++i) view.data()[i] = PayloadByte(number, i);
}

bool HasPayloadOf(BufferView view, uint64_t number) {
  for (size_t i = 0; i < view.size(); ++i) {
    if (view.data()[i] != PayloadByte(number, i)) return false;
  }
  return true;
}

Task<absl::Status> PayloadStreamsService::Echo(
    ServerContext&, ServerReaderWriter<PayloadItem, PayloadItem>& stream) {
  const Running running(*this);
  PayloadItem item;
  for (;;) {
    VERBENA_CO_ASSIGN_OR_RETURN(const bool read, co_await stream.Read(item));
    if (!read) co_return absl::OkStatus();
    VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(item));
  }
}

Task<absl::Status> PayloadStreamsService::Collect(ServerContext&, ServerReader<PayloadItem>& reader,
                                                  testing::Summary& reply) {
  const Running running(*this);
  std::vector<Buffer> kept;
  for (;;) {
    VERBENA_CO_ASSIGN_OR_RETURN(std::optional<PayloadItem> item, co_await reader.Read());
    if (!item.has_value()) co_return absl::OkStatus();
    if (!HasPayloadOf(item->payload.view(), item->message.number())) {
      co_return absl::DataLossError("a payload is not the one that was sent");
    }
    reply.set_count(reply.count() + 1);
    reply.set_bytes(reply.bytes() + item->payload.size());
    kept.push_back(std::move(item->payload));
    ++collected;
  }
}

Task<absl::Status> PayloadStreamsService::Send(ServerContext& context,
                                               const testing::CountRequest& request,
                                               ServerWriter<PayloadItem>& writer) {
  const Running running(*this);
  PayloadItem item{.has_payload = true};
  VERBENA_CO_ASSIGN_OR_RETURN(item.payload, co_await context.AllocateBuffer(request.bytes()));
  for (uint64_t i = 0; i < request.count(); ++i) {
    item->set_number(i);
    FillPayload(item.payload.view(), i);
    VERBENA_CO_RETURN_IF_ERROR(co_await writer.Write(item));
    ++written;
  }
  co_return absl::OkStatus();
}

Task<absl::Status> PayloadStreamsService::Hold(
    ServerContext&, ServerReaderWriter<PayloadItem, PayloadItem>& stream) {
  const Running running(*this);
  VERBENA_CO_RETURN_IF_ERROR((co_await stream.Read()).status());
  co_return co_await SleepUntil(kNever);
}

Task<absl::Status> PayloadStreamsService::Misuse(ServerContext& context,
                                                 ServerReaderWriter<Item, PayloadItem>&) {
  context.SetResponsePayload(Payload::Empty());
  co_return absl::OkStatus();
}

Task<absl::Status> PayloadStreamsService::Plain(ServerContext&,
                                                ServerReaderWriter<Item, Item>& stream) {
  const Running running(*this);
  co_return (co_await stream.Read()).status();
}

Task<absl::Status> PayloadStreamsService::Say(ServerContext&, const Item& request, Item& reply) {
  reply = request;
  co_return absl::OkStatus();
}

void StreamPayloadTest::Start(ServerOptions options, RuntimeOptions server, RuntimeOptions client) {
  server_runtime_ = StartRuntime(std::move(server));
  ServeWith(service_, std::move(options));
  StartClient(server_->address(), std::move(client));
}

void StreamPayloadTest::StartClient(const std::string& address, RuntimeOptions options) {
  client_runtime_ = StartRuntime(std::move(options));
  channel_ = std::make_unique<Channel>(*client_runtime_, address);
  stub_ = std::make_unique<testing::PayloadStreams::Stub>(*channel_);
}

StreamPayloadTest::Item StreamPayloadTest::Numbered(uint64_t number, size_t bytes) {
  Item item;
  item.set_number(number);
  item.set_data(std::string(bytes, 'm'));
  return item;
}

Task<absl::StatusOr<Buffer>> StreamPayloadTest::Filled(size_t bytes, uint64_t number) {
  VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await channel_->AllocateBuffer(bytes));
  FillPayload(buffer.view(), number);
  co_return buffer;
}

Task<absl::Status> StreamPayloadTest::SayOnce() {
  co_return (co_await stub_->Say(Numbered(7, 100))).status();
}

Task<absl::StatusOr<testing::Summary>> StreamPayloadTest::CollectOf(uint64_t count, size_t bytes) {
  ClientWriter<PayloadItem, testing::Summary> writer = stub_->Collect();
  VERBENA_CO_ASSIGN_OR_RETURN(const Buffer payload, co_await channel_->AllocateBuffer(bytes));
  for (uint64_t i = 0; i < count; ++i) {
    FillPayload(payload.view(), i);
    if (!(co_await writer.Write(Numbered(i), payload.view())).ok()) break;
  }
  co_return co_await writer.Finish();
}

testing::CountRequest StreamPayloadTest::CountOf(uint32_t count, uint32_t bytes) {
  testing::CountRequest request;
  request.set_count(count);
  request.set_bytes(bytes);
  return request;
}

void StreamPayloadTest::LoseLink() {
  ASSERT_EQ(internal::CloseLinkOf(*client_runtime_), absl::OkStatus());
}

Task<size_t> StreamPayloadTest::HeldBytes(Runtime& runtime) {
  const internal::PayloadMemory* const memory = internal::PayloadMemoryOf(runtime);
  if (memory == nullptr) co_return size_t{0};
  co_return memory->send().stats().bytes_in_use + memory->receive().stats().bytes_in_use +
      memory->landing().stats().bytes_in_use;
}

void StreamPayloadTest::ExpectNothingHeld() {
  Eventually([this] { return service_.running == 0; }, "all handlers end");
  Eventually([this] { return client_runtime_->BlockOn(HeldBytes(*client_runtime_)) == 0; },
             "the client's memory is home");
  Eventually([this] { return server_runtime_->BlockOn(HeldBytes(*server_runtime_)) == 0; },
             "the server's memory is home");
}

}  // namespace verbena
