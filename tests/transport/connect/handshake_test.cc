// Each side of a handshake learns all that the other one said, or both learn why there is no link.
// A side that stops, lies or talks about something else leaves the other with an error.

#include "verbena/transport/connect/handshake.h"
#include "verbena/transport/base/log.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/support/manual_scheduler.h"
#include "tests/transport/base/captured_log.h"
#include "tests/transport/connect/handshake_sides.h"
#include "tests/transport/coro/started.h"
#include "verbena/transport/base/retry_after.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/connect/local_bootstrap.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/combinators.h"
#include "verbena/transport/coro/context.h"

namespace verbena::internal {
namespace handshake_test {

using namespace std::chrono_literals;
using absl::StatusCode;
using ParametersOr = absl::StatusOr<LinkParameters>;
using StreamPtr = std::unique_ptr<MessageStream>;

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

bool Says(const absl::Status& status, const std::string& part) {
  return std::string(status.message()).find(part) != std::string::npos;
}

class HandshakeTest : public testing::Test {
 protected:
  HandshakeTest() { Connect(); }

  // Fresh streams; the old ones are closed.
  void Connect() {
    LocalNetwork network;
    LocalBootstrap bootstrap(network, "client");
    auto listener = *bootstrap.Listen("server");
    auto [client, server] =
        scheduler_.Run(WhenAll(bootstrap.Connect("server"), listener->Accept()));
    client_ = *std::move(client);
    server_ = *std::move(server);
  }

  // The lines logged that name `peer`.
  size_t LinesAbout(const std::string& peer) {
    const std::vector<std::string> lines = log_.Take();
    HandshakeLog().Reset();
    return static_cast<size_t>(std::count_if(lines.begin(), lines.end(), [&](const auto& line) {
      return line.find(peer) != std::string::npos;
    }));
  }

  CapturedLog log_;
  ManualScheduler scheduler_;
  StreamPtr client_;
  StreamPtr server_;
};

TEST_F(HandshakeTest, EachSideLearnsAllThatTheOtherSaid) {
  LinkParameters client = Side("client", 17);
  client.executor_index = 3;
  LinkParameters server = Side("server", 0xffffff);
  server.executor_index = 3;
  auto [at_client, at_server] = scheduler_.Run(
      WhenAll(RunClient(*client_, client, {.features = 0b011}),
              RunServer(*server_, server, {.features = 0b110, .executor_count = 4})));
  ASSERT_TRUE(at_client.ok()) << at_client.status();
  ASSERT_TRUE(at_server.ok()) << at_server.status();
  ExpectSame(*at_client, server);
  ExpectSame(*at_server, client);
  for (const LinkParameters& learned : {*at_client, *at_server}) {
    EXPECT_EQ(learned.version, kMaxProtocolVersion);
    EXPECT_EQ(learned.features, 0b010u);
  }
  EXPECT_EQ(LinesAbout(""), 0u);
}

TEST_F(HandshakeTest, OlderAndNewerSidesMeetAtTheOldersVersion) {
  const HandshakeOptions older{.min_version = 1, .max_version = 2};
  const HandshakeOptions newer{.min_version = 2, .max_version = 9};
  for (auto [at, with] : {std::pair(older, newer), {newer, older}}) {
    Connect();
    auto [client, server] = scheduler_.Run(WhenAll(RunClient(*client_, Side("client", 1), at),
                                                   RunServer(*server_, Side("server", 2), with)));
    EXPECT_EQ(client.value().version, 2u);
    EXPECT_EQ(server.value().version, 2u);
  }
}

TEST_F(HandshakeTest, SidesWithoutACommonVersionBothKnowWhy) {
  auto [client, server] = scheduler_.Run(
      WhenAll(RunClient(*client_, Side("client", 1), {.min_version = 7, .max_version = 9}),
              RunServer(*server_, Side("server", 2))));
  for (const absl::Status& status : {client.status(), server.status()}) {
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_TRUE(Says(status, "the client speaks 7 to 9, the server 3;")) << status;
  }
  EXPECT_EQ(LinesAbout("client"), 1u);
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
  EXPECT_EQ(answer.status().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(Says(answer.status(), "max_links of 128 are in use")) << answer.status();
  EXPECT_TRUE(Says(answer.status(), "server")) << answer.status();
  EXPECT_EQ(LinesAbout("max_links"), 1u);
}

// As a server does that makes room for others.
TEST_F(HandshakeTest, ARefusalIsHeardThoughTheServerClosedBeforeTheHello) {
  absl::Status why = absl::ResourceExhaustedError("making room");
  SetRetryAfter(why, 20ms);
  EXPECT_EQ(scheduler_.Run(RefuseOffer(*server_, why)), absl::OkStatus());
  server_.reset();
  const ParametersOr answer = scheduler_.Run(OfferLink(*client_, Side("client", 1)));
  EXPECT_EQ(answer.status().code(), StatusCode::kResourceExhausted) << answer.status();
  EXPECT_TRUE(Says(answer.status(), "making room")) << answer.status();
  EXPECT_EQ(ReadRetryAfter(answer.status()), Duration(20ms));
}

TEST_F(HandshakeTest, ExecutorThatTheServerDoesNotHaveIsRefused) {
  LinkParameters wants = Side("client", 1);
  wants.executor_index = 2;
  auto [client, server] = scheduler_.Run(WhenAll(
      RunClient(*client_, wants), RunServer(*server_, Side("server", 2), {.executor_count = 2})));
  EXPECT_EQ(client.status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Says(client.status(), "executor_index 2")) << client.status();
  EXPECT_EQ(server.status().code(), StatusCode::kInvalidArgument);
}

TEST_F(HandshakeTest, DifferentKindsOfDeviceAreRefusedOnBothSides) {
  LinkParameters soft = Side("client", 1);
  soft.kind = LinkKind::kSoft;
  auto [client, server] =
      scheduler_.Run(WhenAll(RunClient(*client_, soft), RunServer(*server_, Side("server", 2))));
  EXPECT_EQ(client.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(server.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Says(client.status(), "soft")) << client.status();

  // A client checks by itself what an older server would not.
  Connect();
  const auto careless = [](MessageStream& stream) -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(LinkParameters offer, co_await ReceiveOffer(stream));
    co_return co_await stream.Send(EncodeAcceptance(offer, Side("server", 2)));
  };
  auto [wary, accepted] = scheduler_.Run(WhenAll(OfferLink(*client_, soft), careless(*server_)));
  EXPECT_TRUE(accepted.ok());
  EXPECT_EQ(wary.status().code(), StatusCode::kFailedPrecondition);
}

// Messages that a peer sends instead of the expected ones, one after the other; then it closes.
using Script = std::vector<std::string>;

Task<absl::Status> Play(MessageStream& stream, Script script) {
  for (std::string& line : script) {
    VERBENA_CO_RETURN_IF_ERROR(co_await stream.Send(std::move(line)));
  }
  stream.Close();
  co_return absl::OkStatus();
}

TEST_F(HandshakeTest, ClientThatClosesAtAnyStepIsUnavailableAndLogged) {
  const Script whole = {EncodeHello(Side("client", 1), {}), EncodeReady()};
  for (size_t said = 0; said < whole.size(); ++said) {
    Connect();
    const Script script(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(said));
    auto [server, played] =
        scheduler_.Run(WhenAll(RunServer(*server_, Side("server", 2)), Play(*client_, script)));
    EXPECT_EQ(server.status().code(), StatusCode::kUnavailable) << said;
    EXPECT_LE(LinesAbout("client"), 1u);
  }
}

TEST_F(HandshakeTest, ClientThatSaysSomethingElseAtAnyStepIsRefusedAndLogged) {
  const std::string hello = EncodeHello(Side("client", 1), {});
  const std::string stranger(100, 'x');
  const std::vector<Script> scripts = {{""},        {stranger},        {EncodeReady()},
                                       {hello, ""}, {hello, stranger}, {hello, hello + "!"}};
  for (const Script& script : scripts) {
    Connect();
    Started<ParametersOr> server(scheduler_, RunServer(*server_, Side("server", 2)));
    for (const std::string& line : script) (void)scheduler_.Run(client_->Send(line));
    scheduler_.RunUntilIdle();
    ASSERT_TRUE(server.done());
    EXPECT_EQ(server.result().status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(LinesAbout("client"), 1u);
  }
}

TEST_F(HandshakeTest, ServerThatClosesOrSaysSomethingElseFailsTheClient) {
  struct Case {
    Script script;
    StatusCode code;
  };
  LinkParameters offer;
  offer.version = kMaxProtocolVersion;
  LinkParameters bad = Side("server", 0);
  const std::vector<Case> cases = {
      {{}, StatusCode::kUnavailable},
      {{""}, StatusCode::kInvalidArgument},
      {{"garbage"}, StatusCode::kInvalidArgument},
      {{EncodeReady()}, StatusCode::kInvalidArgument},
      {{EncodeAcceptance(offer, bad)}, StatusCode::kInvalidArgument},
      {{EncodeRefusal(absl::PermissionDeniedError("no"))}, StatusCode::kPermissionDenied},
  };
  for (const Case& each : cases) {
    Connect();
    auto [client, played] = scheduler_.Run(
        WhenAll(RunClient(*client_, Side("client", 1)), Play(*server_, each.script)));
    EXPECT_EQ(client.status().code(), each.code) << client.status();
  }
}

// Drives both sides one resumption at a time, and stops one of them after `steps`.
struct Stopped {
  bool client;    // which side
  bool destroys;  // or else cancels
};

TEST_F(HandshakeTest, SideThatStopsAtAnyStepLeavesTheOtherWithAnEnd) {
  for (const Stopped& stopped :
       {Stopped{true, true}, {true, false}, {false, true}, {false, false}}) {
    bool complete = false;
    for (int steps = 0; !complete; ++steps) {
      ASSERT_LT(steps, 100);
      Connect();
      CancelScope cancel;
      std::optional<Started<ParametersOr>> client(std::in_place, scheduler_,
                                                  RunClient(*client_, Side("client", 1)),
                                                  stopped.client ? &cancel : nullptr);
      std::optional<Started<ParametersOr>> server(std::in_place, scheduler_,
                                                  RunServer(*server_, Side("server", 2)),
                                                  stopped.client ? nullptr : &cancel);
      for (int step = 0; step < steps; ++step) scheduler_.RunOne();
      complete = client->done() && server->done();

      auto& stopping = stopped.client ? client : server;
      auto& other = stopped.client ? server : client;
      if (stopped.destroys) {
        stopping->Abandon();
      } else {
        cancel.Request();
        scheduler_.RunUntilIdle();
        ASSERT_TRUE(stopping->done());
        // Done before the request, or cancelled by it.
        const absl::Status status = stopping->result().status();
        EXPECT_TRUE(status.ok() || absl::IsCancelled(status)) << status;
      }
      (stopped.client ? client_ : server_) = nullptr;
      scheduler_.RunUntilIdle();
      ASSERT_TRUE(other->done()) << "step " << steps;
      const absl::Status end = other->result().status();
      EXPECT_TRUE(end.ok() || absl::IsUnavailable(end)) << end;
    }
  }
}

TEST_F(HandshakeTest, PeerThatSaysNothingIsGivenUpAtTheDeadlineAndLogged) {
  const ParametersOr offer = scheduler_.Run(WithDeadline(ReceiveOffer(*server_), 5s));
  EXPECT_EQ(offer.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(LinesAbout("client"), 1u);
  const ParametersOr answer =
      scheduler_.Run(WithDeadline(OfferLink(*client_, Side("client", 1)), 5s));
  EXPECT_EQ(answer.status().code(), StatusCode::kDeadlineExceeded);
}

TEST_F(HandshakeTest, ShutdownOfTheServerIsNoNews) {
  CancelScope cancel;
  Started<ParametersOr> server(scheduler_, RunServer(*server_, Side("server", 2)), &cancel);
  cancel.Request();
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(server.done());
  EXPECT_EQ(server.result().status().code(), StatusCode::kCancelled);
  EXPECT_EQ(LinesAbout(""), 0u);
}

TEST_F(HandshakeTest, EndOfTheConnectionIsSeenAfterTheHandshakeToo) {
  auto [client, server] = scheduler_.Run(
      WhenAll(RunClient(*client_, Side("client", 1)), RunServer(*server_, Side("server", 2))));
  ASSERT_TRUE(client.ok() && server.ok());
  Started<absl::StatusOr<std::string>> liveness(scheduler_, server_->Receive());
  scheduler_.RunUntilIdle();
  EXPECT_FALSE(liveness.done());
  client_ = nullptr;
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(liveness.done());
  EXPECT_EQ(liveness.result().status().code(), StatusCode::kUnavailable);
}

}  // namespace handshake_test
}  // namespace verbena::internal
