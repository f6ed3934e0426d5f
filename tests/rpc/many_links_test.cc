// An executor of a server with the default options takes a thousand links, and refuses one too many
// by name.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/rpc/testing_service.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/connect/local_bootstrap.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal {
namespace many_links_test {

using ::testing::HasSubstr;

// All in one process: links take no sockets, and their wire is the device's own memory.
class ManyLinksTest : public RuntimePair {
 protected:
  void TearDown() override {
    server_.reset();
    server_runtime_.reset();
  }

  // One client with `count` links to the server, by as many channels.
  struct Client {
    std::unique_ptr<LocalBootstrap> bootstrap;
    std::unique_ptr<Runtime> runtime;
    std::vector<std::unique_ptr<Channel>> channels;
    absl::Status last;  // of connecting
  };

  void StartServer() {
    device_ = *SoftDevice::Create({});
    server_runtime_ = StartRuntime({.use_bootstrap = &local_}, {.use = device_.get()});
    ServeWith(service_, {.address = "server"});
  }

  std::unique_ptr<Client> Connect(uint32_t count) {
    auto client = std::make_unique<Client>();
    client->bootstrap = std::make_unique<LocalBootstrap>(network_, "client");
    client->runtime =
        StartRuntime({.use_bootstrap = client->bootstrap.get()}, {.use = device_.get()});
    client->last = client->runtime->BlockOn(ConnectAll(*client, server_->address(), count));
    return client;
  }

  // Some at a time: a source address has a bound of handshakes under way.
  static Task<absl::Status> ConnectAll(Client& client, const std::string& server, uint32_t count) {
    constexpr uint32_t kAtOnce = 32;
    absl::Status failure;
    for (uint32_t i = 0; i < count; i += kAtOnce) {
      TaskScope scope(co_await CurrentContext());
      for (uint32_t key = i + 1; key <= std::min(i + kAtOnce, count); ++key) {
        // Channels with the same key share a link.
        client.channels.push_back(
            std::make_unique<Channel>(*client.runtime, server, ChannelOptions{.server_key = key}));
        scope.Spawn([&failure, &channel = *client.channels.back()]() -> Task<void> {
          failure.Update(co_await channel.Connect());
        });
      }
      co_await scope.Join();
    }
    co_return failure;
  }

  static absl::Status Echo(Client& client, Channel& channel) {
    return client.runtime->BlockOn(EchoOver(channel));
  }
  static Task<absl::Status> EchoOver(Channel& channel) {
    testing::Testing::Stub stub(channel);
    testing::EchoRequest request;
    request.set_number(1);
    VERBENA_CO_ASSIGN_OR_RETURN(testing::EchoReply reply, co_await stub.Echo(request));
    co_return reply.number() == 1 ? absl::OkStatus() : absl::DataLossError("another's reply");
  }

  TestingService service_;
  LocalNetwork network_;
  LocalBootstrap local_{network_, "server"};
  std::unique_ptr<SoftDevice> device_;
};

TEST_F(ManyLinksTest, AnExecutorTakesAThousandLinksByDefaultAndRefusesOneTooManyByName) {
  constexpr uint32_t kLinks = 1024;
  ASSERT_EQ(LinkLimits().max_links, kLinks);
  const uint32_t per_client = ServerOptions().handshakes.links_per_client;
  ASSERT_EQ(kLinks % per_client, 0u);
  StartServer();
  std::vector<std::unique_ptr<Client>> clients;
  for (uint32_t links = 0; links < kLinks; links += per_client) {
    clients.push_back(Connect(per_client));
    ASSERT_EQ(clients.back()->last, absl::OkStatus());
  }
  EXPECT_EQ(server_runtime_->endpoint_stats(0).links, kLinks);

  std::unique_ptr<Client> one_more = Connect(1);
  EXPECT_EQ(one_more->last.code(), absl::StatusCode::kResourceExhausted) << one_more->last;
  EXPECT_THAT(std::string(one_more->last.message()),
              HasSubstr("max_links reached: all 1024 links of this executor are in use"));

  Client& last = *clients.back();
  EXPECT_EQ(Echo(*clients.front(), *clients.front()->channels.front()), absl::OkStatus());
  EXPECT_EQ(Echo(last, *last.channels.back()), absl::OkStatus());
  EXPECT_EQ(server_->stats().calls, 2u);
  // No call has made a link of its own.
  EXPECT_EQ(server_runtime_->endpoint_stats(0).links_opened, kLinks);
}

}  // namespace many_links_test
}  // namespace verbena::internal
