// Between two processes, metadata reaches the handler and comes back, interceptors run, and a
// stream's messages keep their payloads.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/rpc/server_process.h"
#include "tests/rpc/stream_payload_service.h"
#include "tests/rpc/testing_service.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/combinators.h"

namespace verbena {
namespace {

// Answers with two entries of the request's metadata, and the length of a third.
class MirrorService final : public testing::Testing::Service {
 public:
  Task<absl::Status> Echo(ServerContext& context, const testing::EchoRequest& request,
                          testing::EchoReply& reply) override {
    for (const char* key : {"tenant", "token-bin"}) {
      const std::optional<std::string_view> value = context.metadata().Get(key);
      if (!value) co_return context.NotExecuted(absl::PermissionDeniedError(key));
      VERBENA_CO_RETURN_IF_ERROR(context.AddTrailingMetadata(key, *value));
    }
    reply.set_number(context.metadata().Get("fill").value_or("").size());
    reply.set_data(request.data());
    co_return absl::OkStatus();
  }
};

class TokenInterceptor final : public ClientInterceptor {
 public:
  Task<absl::Status> Intercept(ClientCallView& call, ClientNext next) override {
    call.metadata.Add("token-bin", "\xff\n");
    absl::Status status = co_await next();
    if (call.trailing_metadata().Get("token-bin") == "\xff\n") ++seen;
    co_return status;
  }

  std::atomic<int> seen{0};
};

class ContextProcessTest : public RuntimePair {
 protected:
  void StartClient(ChannelOptions options) {
    client_runtime_ = StartRuntime();
    channel_ = std::make_unique<Channel>(*client_runtime_, process_.address(), std::move(options));
    stub_ = std::make_unique<testing::Testing::Stub>(*channel_);
  }
  void TearDown() override {
    stub_.reset();
    channel_.reset();
  }

  Task<absl::StatusOr<testing::EchoReply>> EchoWith(CallOptions options, size_t bytes) {
    testing::EchoRequest request;
    request.set_data(std::string(bytes, 'e'));
    co_return co_await stub_->Echo(request, std::move(options));
  }

  ServerProcess<MirrorService> process_{"127.0.0.1:0"};
  std::unique_ptr<testing::Testing::Stub> stub_;
};

// In the frame, and apart from it, beside requests of both kinds.
TEST_F(ContextProcessTest, MetadataReachesTheHandlerAndComesBackThroughAnInterceptor) {
  const auto token = std::make_shared<TokenInterceptor>();
  StartClient({.interceptors = {token}});
  int calls = 0;
  for (const size_t fill : {0u, 900u, 1100u, 7000u}) {
    for (const size_t bytes : {10u, 100'000u}) {
      CallInfo info;
      const absl::StatusOr<testing::EchoReply> reply = Run(EchoWith(
          {.info = &info, .metadata = {{"tenant", "blue"}, {"fill", std::string(fill, 'f')}}},
          bytes));
      ASSERT_TRUE(reply.ok()) << reply.status();
      EXPECT_EQ(reply->number(), fill);
      EXPECT_EQ(reply->data().size(), bytes);
      EXPECT_EQ(info.trailing_metadata.Get("tenant"), "blue");
      EXPECT_EQ(token->seen, ++calls);
    }
  }
}

TEST_F(ContextProcessTest, ARefusalKeepsItsOutcomeOnTheWay) {
  StartClient({});
  const absl::Status status = Run(EchoWith({.metadata = {{"tenant", "blue"}}}, 10)).status();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_EQ(status.message(), "token-bin");
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
}

class PayloadProcessTest : public StreamPayloadTest {
 protected:
  PayloadProcessTest() { StartClient(process_.address()); }

  ServerProcess<PayloadStreamsService> process_{"127.0.0.1:0"};
};

// Each size twice: the second payload is of other bytes.
TEST_F(PayloadProcessTest, PayloadsOfAStreamComeBackWhole) {
  const std::vector<size_t> sizes = {0, 1, 4000, 4096, 4097, 40'000,
                                     0, 1, 4000, 4096, 4097, 40'000};
  auto run = [&]() -> Task<absl::Status> {
    ClientReaderWriter<PayloadItem, PayloadItem> stream = stub_->Echo();
    auto write = [&]() -> Task<absl::Status> {
      for (size_t i = 0; i < sizes.size(); ++i) {
        PayloadItem item{.message = Numbered(i, 100)};
        VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(item));
        item.has_payload = true;
        if (sizes[i] > 0) {
          VERBENA_CO_ASSIGN_OR_RETURN(item.payload, co_await Filled(sizes[i], i));
        }
        VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(item));
      }
      co_return co_await stream.WritesDone();
    };
    auto read = [&]() -> Task<absl::Status> {
      PayloadItem item;
      for (size_t i = 0; i < 2 * sizes.size(); ++i) {
        if (!co_await stream.Read(item)) co_return absl::DataLossError("too few messages");
        EXPECT_EQ(item->number(), i / 2);
        EXPECT_EQ(item.has_payload, i % 2 == 1);
        EXPECT_EQ(item.payload.size(), i % 2 == 1 ? sizes[i / 2] : 0);
        EXPECT_TRUE(HasPayloadOf(item.payload.view(), i / 2));
      }
      co_return co_await stream.Read(item) ? absl::DataLossError("too many") : absl::OkStatus();
    };
    auto [written, readen] = co_await WhenAll(write(), read());
    VERBENA_CO_RETURN_IF_ERROR(written);
    VERBENA_CO_RETURN_IF_ERROR(readen);
    co_return co_await stream.Finish();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
}

}  // namespace
}  // namespace verbena
