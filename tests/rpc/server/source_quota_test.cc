// A source address has one share of a server's calls, memory and landings, whatever number of
// runtime ids its clients claim.

#include "tests/rpc/first_device.h"
#include "verbena/rpc/server/clients.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/rpc/payload_service.h"
#include "tests/rpc/rogue_peer.h"
#include "tests/rpc/testing_service.h"
#include "verbena/transport/connect/local_bootstrap.h"

namespace verbena::internal {
namespace source_quota_test {

constexpr size_t kBudget = 1 << 20;

// Hosts of one network, whose names are their addresses.
class SourceTest : public PayloadFixture {
 protected:
  struct Host {
    std::unique_ptr<LocalBootstrap> bootstrap;
    std::unique_ptr<Runtime> runtime;
  };

  ~SourceTest() override {
    StopBoth();
    host_.runtime.reset();
  }

  Host StartHost(const std::string& address, const LinkLimits& limits = {}) {
    Host host{std::make_unique<LocalBootstrap>(network_, address), nullptr};
    host.runtime = StartRuntime({.limits = limits, .use_bootstrap = host.bootstrap.get()});
    return host;
  }

  void Serve(Service& service, ServerOptions options, const LinkLimits& limits = {}) {
    host_ = StartHost("10.0.0.9", limits);
    ServeOnHost(service, std::move(options));
  }
  void ServeOnHost(Service& service, ServerOptions options) {
    options.address = "store";
    absl::StatusOr<std::unique_ptr<Server>> server =
        Server::Start(*host_.runtime, {&service}, options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  // Memory for requests, `bytes` of it; a pool keeps what it has registered.
  static Task<absl::Status> Register(Runtime& runtime, size_t bytes) {
    co_return (co_await PayloadMemoryOf(runtime)->receive().Allocate(bytes)).status();
  }

  std::unique_ptr<RoguePeer> Rogue(Host& host) {
    auto rogue = std::make_unique<RoguePeer>(*host.runtime);
    rogue->ConnectTo(server_->address());
    return rogue;
  }

  static Task<absl::Status> Put(Channel& channel, size_t bytes) {
    testing::Payloads::Stub stub(channel);
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await channel.AllocateBuffer(bytes));
    FillPattern(buffer.view());
    testing::PutReply reply;
    co_return co_await stub.Put(testing::PutRequest(), reply,
                                {.request_payload = std::move(buffer)});
  }
  // Keeps its payload until it is cancelled, which the end of the client's runtime does.
  static Task<void> Hold(Channel& channel, size_t bytes) {
    testing::Payloads::Stub stub(channel);
    absl::StatusOr<Buffer> buffer = co_await channel.AllocateBuffer(bytes);
    if (!buffer.ok()) co_return;
    WithPayload<testing::PutReply> reply;
    (void)co_await stub.Hold(testing::HoldRequest(), reply,
                             {.request_payload = *std::move(buffer)});
  }

  LocalNetwork network_;
  Host host_;
  TestingService testing_service_;
};

TEST_F(SourceTest, ManyIdsOfOneAddressLeaveCallsToOtherAddresses) {
  Serve(testing_service_, {.max_concurrent_calls = 4, .max_calls_per_client = 2});
  Host greedy = StartHost("10.0.0.1");
  Host modest = StartHost("10.0.0.2");
  const RogueFrame wait = Request("verbena.testing.Testing/Wait", 0, 0);
  const RogueFrame echo = Request("verbena.testing.Testing/Echo", 1, 0);
  std::unique_ptr<RoguePeer> first = Rogue(greedy);
  std::unique_ptr<RoguePeer> second = Rogue(greedy);
  std::unique_ptr<RoguePeer> third = Rogue(greedy);
  for (RoguePeer* id : {first.get(), second.get(), third.get()}) {
    id->Send(EncodeSend(kCorrect, {wait}));
  }
  client_runtime_ = StartRuntime();
  Eventually([this] { return testing_service_.waiting == 3; }, "three calls of one address run");
  third->Send(EncodeSend(kCorrect, {echo}));
  const RogueFrame refused = third->Receive()[0];
  EXPECT_EQ(refused.header.call_slot, 1u);
  EXPECT_EQ(refused.header.status_code, static_cast<int>(absl::StatusCode::kResourceExhausted));
  EXPECT_NE(refused.body.find("max_calls_per_source"), std::string::npos) << refused.body;
  std::unique_ptr<RoguePeer> other = Rogue(modest);
  other->Send(EncodeSend(kCorrect, {echo}));
  EXPECT_EQ(other->Receive()[0].header.status_code, 0);
  // A call that ends makes room, whichever id it is of.
  first.reset();
  Eventually([this] { return testing_service_.waiting == 2; }, "a lost link's call ends");
  RogueFrame again = echo;
  again.header.call_generation = 1;
  third->Send(EncodeSend(kCorrect, {again}));
  EXPECT_EQ(third->Receive()[0].header.status_code, 0);
}

// A larger share would not help.
TEST_F(SourceTest, ARefusalOfAFullExecutorNamesTheBoundOfAll) {
  Serve(testing_service_, {.max_concurrent_calls = 0});
  Host host = StartHost("10.0.0.1");
  std::unique_ptr<RoguePeer> peer = Rogue(host);
  peer->Send(EncodeSend(kCorrect, {Request("verbena.testing.Testing/Echo", 0, 0)}));
  const RogueFrame refused = peer->Receive()[0];
  EXPECT_NE(refused.body.find("max_concurrent_calls"), std::string::npos) << refused.body;
}

TEST_F(SourceTest, BoundsOfCallsFollowMaxConcurrentCalls) {
  Serve(testing_service_, {.max_concurrent_calls = 8});
  Host greedy = StartHost("10.0.0.1");
  client_runtime_ = StartRuntime();
  std::unique_ptr<RoguePeer> first = Rogue(greedy);
  std::unique_ptr<RoguePeer> second = Rogue(greedy);
  const auto wait = [](RoguePeer& peer, uint32_t calls) {
    std::vector<RogueFrame> requests;
    for (uint32_t slot = 0; slot < calls; ++slot) {
      requests.push_back(Request("verbena.testing.Testing/Wait", slot, 0));
    }
    peer.Send(EncodeSend(kCorrect, requests));
  };
  wait(*first, 5);
  const RogueFrame of_client = first->Receive()[0];
  EXPECT_NE(of_client.body.find("4 calls of this client, its most: retry later, or raise "
                                "ServerOptions::max_calls_per_client"),
            std::string::npos)
      << of_client.body;
  wait(*second, 3);
  const RogueFrame of_source = second->Receive()[0];
  EXPECT_NE(of_source.body.find("6 calls of this source, its most: retry later, or raise "
                                "ServerOptions::max_calls_per_source"),
            std::string::npos)
      << of_source.body;
}

TEST_F(SourceTest, ManyIdsOfOneAddressLeavePayloadMemoryToOtherAddresses) {
  LinkLimits limits;
  limits.memory.receive_bytes = kBudget;
  limits.leases.granted_bytes_per_client = 0;
  host_ = StartHost("10.0.0.9", limits);
  // Otherwise calls would have to be faster than the device registers memory.
  ASSERT_EQ(host_.runtime->BlockOn(Register(*host_.runtime, kBudget)), absl::OkStatus());
  // No wait for memory in use can be met.
  ServeOnHost(service_, {.memory_wait = std::chrono::seconds(1)});
  Host first = StartHost("10.0.0.1");
  Host second = StartHost("10.0.0.1");
  Host other = StartHost("10.0.0.2");
  Channel of_first(*first.runtime, server_->address());
  Channel of_second(*second.runtime, server_->address());
  Channel of_other(*other.runtime, server_->address());
  first.runtime->Spawn(Hold(of_first, kBudget / 2));
  second.runtime->Spawn(Hold(of_second, kBudget / 4));
  client_runtime_ = StartRuntime();
  Eventually([this] { return service_.holding == 2; }, "handlers have all that a source may have");
  const absl::Status status = second.runtime->BlockOn(Put(of_second, kBudget / 4));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
  EXPECT_NE(status.message().find("max_bytes_per_source"), absl::string_view::npos) << status;
  EXPECT_EQ(other.runtime->BlockOn(Put(of_other, kBudget / 4)), absl::OkStatus());
  // Their calls end before their channels do.
  first.runtime.reset();
  second.runtime.reset();
}

TEST_F(SourceTest, ALandingOfOneIdIsAskedBackForThePayloadOfAnother) {
  LinkLimits limits;
  limits.memory.receive_bytes = kBudget;
  limits.leases.largest_grant_bytes = kBudget;
  Serve(service_, {.max_bytes_per_client = kBudget / 2}, limits);
  Host first = StartHost("10.0.0.1");
  Host second = StartHost("10.0.0.1");
  Channel of_first(*first.runtime, server_->address());
  Channel of_second(*second.runtime, server_->address());
  ASSERT_EQ(first.runtime->BlockOn(Put(of_first, kBudget / 4)), absl::OkStatus());
  EXPECT_EQ(server_->stats().granted_bytes, kBudget / 4);
  // All that the address may have.
  EXPECT_EQ(second.runtime->BlockOn(Put(of_second, kBudget - kBudget / 4)), absl::OkStatus());
}

TEST(ServerSourceTest, LandingsOfAllItsClientsShareOneBoundAndItsBytes) {
  auto source = std::make_shared<ServerSource>(
      ClientBounds{.calls = 1, .bytes = 1000, .granted = 500, .responses = 1000});
  ServerClient first(source, {.calls = 1, .bytes = 1000, .granted = 400, .responses = 1000});
  ServerClient second(source, {.calls = 1, .bytes = 1000, .granted = 400, .responses = 1000});
  EXPECT_FALSE(first.TryGrant(500)) << "more than one client may have";
  QuotaHold of_first = first.TryGrant(300);
  EXPECT_TRUE(of_first);
  EXPECT_FALSE(second.TryGrant(300));
  const QuotaHold of_second = second.TryGrant(200);
  EXPECT_TRUE(of_second);
  EXPECT_EQ(source->requests().room(), 500u);
  of_first.Give();
  const QuotaHold again = second.TryGrant(200);
  EXPECT_TRUE(again);
  // Payloads that are read leave less for landings.
  QuotaHold read(second.requests(), 600);
  ASSERT_TRUE(read.TryTake());
  EXPECT_FALSE(first.TryGrant(100));
}

TEST(ServerSourceTest, LandingsAreAskedBackOnceUntilAnotherIsGranted) {
  auto source = std::make_shared<ServerSource>(
      ClientBounds{.calls = 1, .bytes = 1000, .granted = 500, .responses = 1000});
  ServerClient client(source, {.calls = 1, .bytes = 1000, .granted = 400, .responses = 1000});
  EXPECT_FALSE(source->BeginReclaim()) << "it has none";
  QuotaHold first = client.TryGrant(100);
  const QuotaHold second = client.TryGrant(100);
  ASSERT_TRUE(first && second);
  EXPECT_TRUE(source->BeginReclaim());
  EXPECT_FALSE(source->BeginReclaim());
  first.Give();
  EXPECT_FALSE(source->BeginReclaim()) << "the other was asked for, too";
  first = client.TryGrant(100);
  ASSERT_TRUE(first);
  EXPECT_TRUE(source->BeginReclaim());
}

}  // namespace source_quota_test
}  // namespace verbena::internal
