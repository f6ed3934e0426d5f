// The handshake between two sides that keep to it, and between one that does and one that does not.

#include "verbena/transport/connect/handshake.h"

#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "verbena/transport/connect/local_bootstrap.h"
#include "verbena/transport/coro/manual_scheduler.h"
#include "verbena/transport/coro/status_macros.h"
#include "verbena/transport/coro/when_all.h"

namespace verbena {
namespace {

using ParametersOr = absl::StatusOr<LinkParameters>;

LinkParameters Side(const std::string& name, uint32_t qp_number) {
  LinkParameters side;
  side.name = name;
  side.gid[15] = static_cast<uint8_t>(qp_number);
  side.lid = 7;
  side.qp_number = qp_number;
  side.packet_sequence_number = 0xabcdef;
  side.mtu_bytes = 1024;
  side.max_reads = 3;
  side.credit_grant = 8;
  side.eager_bytes = 8192;
  side.executor_count = 4;
  return side;
}

class HandshakeTest : public testing::Test {
 protected:
  HandshakeTest() {
    LocalNetwork network;
    LocalBootstrap bootstrap(network, "client");
    auto listener = *bootstrap.Listen("server");
    auto [client, server] =
        scheduler_.Run(WhenAll(bootstrap.Connect("server"), listener->Accept()));
    client_ = *std::move(client);
    server_ = *std::move(server);
  }

  ManualScheduler scheduler_;
  std::unique_ptr<MessageStream> client_;
  std::unique_ptr<MessageStream> server_;
};

Task<ParametersOr> RunClient(MessageStream& stream, LinkParameters mine,
                             HandshakeOptions options = {}) {
  VERBENA_CO_ASSIGN_OR_RETURN(LinkParameters theirs,
                              co_await OfferLink(stream, std::move(mine), options));
  VERBENA_CO_RETURN_IF_ERROR(co_await ConfirmReady(stream));
  co_return theirs;
}

Task<ParametersOr> RunServer(MessageStream& stream, LinkParameters mine,
                             HandshakeOptions options = {}) {
  VERBENA_CO_ASSIGN_OR_RETURN(LinkParameters offer, co_await ReceiveOffer(stream, options));
  VERBENA_CO_RETURN_IF_ERROR(co_await AcceptOffer(stream, offer, std::move(mine)));
  VERBENA_CO_RETURN_IF_ERROR(co_await AwaitReady(stream));
  co_return offer;
}

void ExpectSame(const LinkParameters& got, const LinkParameters& sent) {
  EXPECT_EQ(got.name, sent.name);
  EXPECT_EQ(got.kind, sent.kind);
  EXPECT_EQ(got.gid, sent.gid);
  EXPECT_EQ(got.lid, sent.lid);
  EXPECT_EQ(got.qp_number, sent.qp_number);
  EXPECT_EQ(got.packet_sequence_number, sent.packet_sequence_number);
  EXPECT_EQ(got.mtu_bytes, sent.mtu_bytes);
  EXPECT_EQ(got.max_reads, sent.max_reads);
  EXPECT_EQ(got.credit_grant, sent.credit_grant);
  EXPECT_EQ(got.eager_bytes, sent.eager_bytes);
  EXPECT_EQ(got.executor_index, sent.executor_index);
  EXPECT_EQ(got.executor_count, sent.executor_count);
}

TEST_F(HandshakeTest, EachSideLearnsAllThatTheOtherSaid) {
  LinkParameters client = Side("client", 17);
  client.executor_index = 3;
  LinkParameters server = Side("server", 0xffffff);
  server.executor_index = 3;
  auto [at_client, at_server] = scheduler_.Run(
      WhenAll(RunClient(*client_, client), RunServer(*server_, server, {.executor_count = 4})));
  ASSERT_TRUE(at_client.ok()) << at_client.status();
  ASSERT_TRUE(at_server.ok()) << at_server.status();
  ExpectSame(*at_client, server);
  ExpectSame(*at_server, client);
  EXPECT_EQ(at_client->version, kMaxProtocolVersion);
  EXPECT_EQ(at_server->version, kMaxProtocolVersion);
}

TEST_F(HandshakeTest, RefusedClientGetsTheServersCodeAndMessage) {
  const auto refuse = [](MessageStream& stream) -> Task<absl::Status> {
    VERBENA_CO_RETURN_IF_ERROR((co_await ReceiveOffer(stream)).status());
    co_return co_await RefuseOffer(stream,
                                   absl::ResourceExhaustedError("max_links of 128 are in use"));
  };
  auto [answer, refused] =
      scheduler_.Run(WhenAll(OfferLink(*client_, Side("client", 1)), refuse(*server_)));
  EXPECT_TRUE(refused.ok()) << refused;
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(std::string(answer.status().message()).find("max_links of 128 are in use"),
            std::string::npos)
      << answer.status();
}

}  // namespace
}  // namespace verbena
