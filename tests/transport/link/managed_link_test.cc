// Links whose queue pairs a connection manager connects carry frames like others, and end with
// their connection. A refused connection leaves nothing behind.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/status/status.h"
#include "tests/transport/link/fake_connector.h"
#include "tests/transport/link/links_fixture.h"
#include "verbena/transport/link/device_context.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {
namespace managed_link_test {

using ::testing::HasSubstr;

class ManagedLinkTest : public LinksFixture {
 protected:
  static constexpr Duration kConnectTimeout = std::chrono::seconds(1000);

  void SetUp() override {
    const LinkLimits limits = {.connect_timeout = kConnectTimeout};
    Start(limits, limits, &connector_);
    connector_.set_device(device());
  }
  void TearDown() override {
    LinksFixture::TearDown();
    EXPECT_EQ(connector_.held(), 0);
  }

  void PollTurns(int turns) {
    while (turns-- > 0) executor().Poll();
  }

  FakeConnector connector_;
  Receiver client_listener_;
  Receiver server_listener_;
};

TEST_F(ManagedLinkTest, FramesTravelInBothDirections) {
  Link* link = Connect(client_listener_, server_listener_);
  ASSERT_NE(link, nullptr);
  EXPECT_EQ(connector_.held(), 2);
  Flood there(100, 32);
  Flood back(100, 32);
  there.Run(*link);
  back.Run(**accepted().value());
  PollUntil(
      [&] { return server_listener_.received() == 100 && client_listener_.received() == 100; });
}

TEST_F(ManagedLinkTest, AServerThatMustNotSendFirstHoldsBackUntilItHears) {
  connector_.rule = FakeConnector::Rule::kServerWaits;
  Link* link = Connect(client_listener_, server_listener_);
  ASSERT_NE(link, nullptr);
  Link* server_link = **accepted();
  Flood back(1000, 900);  // more than its credits and buffers
  back.Run(*server_link);
  PollTurns(100);
  EXPECT_EQ(server_link->stats().sends, 0u);
  EXPECT_EQ(client_listener_.received(), 0u);
  Flood there(1, 1);
  there.Run(*link);
  PollUntil([&] { return client_listener_.received() == 1000; });
}

TEST_F(ManagedLinkTest, AClientThatMustSendFirstSpeaksWithoutBeingAsked) {
  connector_.rule = FakeConnector::Rule::kClientFirst;
  ASSERT_NE(Connect(client_listener_, server_listener_), nullptr);
  Flood back(10, 32);
  back.Run(**accepted().value());
  PollUntil([&] { return client_listener_.received() == 10; });
}

TEST_F(ManagedLinkTest, ARefusedRequestIsTheClientsErrorAndLeavesNothingBehind) {
  connector_.refusal = absl::UnavailableError("rdma_cm to [fd00::]:7: the peer refuses it");
  EXPECT_EQ(TryConnect(client_listener_, server_listener_).status(), connector_.refusal);
  // The server waits for the client's request until its time is over.
  clock().Advance(kConnectTimeout);
  PollUntil([this] { return accepted().has_value(); });
  EXPECT_FALSE(accepted()->ok());
  WaitUntilNoLinks();
  EXPECT_EQ(connector_.held(), 0);

  connector_.refusal = absl::OkStatus();
  EXPECT_NE(Connect(client_listener_, server_listener_), nullptr);
}

TEST_F(ManagedLinkTest, TheEndOfItsConnectionEndsTheLink) {
  ASSERT_NE(Connect(client_listener_, server_listener_), nullptr);
  connector_.EndAll("the peer disconnected");
  WaitUntilNoLinks();
  for (const Receiver* listener : {&client_listener_, &server_listener_}) {
    EXPECT_EQ(listener->reason().code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_THAT(std::string(client_listener_.reason().message()), HasSubstr("the peer disconnected"));
  EXPECT_EQ(connector_.held(), 0);
}

TEST(ChoosingAConnectorTest, OnlyWaysThatExistAreTaken) {
  unsetenv("VERBENA_CONNECT");
  const std::unique_ptr<SoftDevice> device = *SoftDevice::Create({});
  for (const char* way : {"", "auto", "exchange", "rdma_cm"}) {
    auto context = DeviceContext::Create(*device, {.connect = way});
    ASSERT_TRUE(context.ok()) << context.status();
    EXPECT_EQ((*context)->connector(), nullptr) << "the soft device has none";
  }
  const absl::Status status = DeviceContext::Create(*device, {.connect = "pigeon"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"pigeon\""));
  setenv("VERBENA_CONNECT", "owl", 1);
  EXPECT_TRUE(absl::IsInvalidArgument(DeviceContext::Create(*device, {}).status()));
  EXPECT_TRUE(DeviceContext::Create(*device, {.connect = "exchange"}).ok());
  unsetenv("VERBENA_CONNECT");
}

}  // namespace managed_link_test
}  // namespace verbena::internal
