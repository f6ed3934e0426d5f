// A server refuses each connection to its port that is not from a client, logs the refusal, and
// serves the next client.

#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/transport/base/captured_log.h"
#include "tests/transport/connect/handshake_sides.h"
#include "tests/transport/connect/raw_peer.h"
#include "tests/transport/connect/waiting_scheduler.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/connect/handshake.h"
#include "verbena/transport/connect/tcp_bootstrap.h"
#include "verbena/transport/coro/combinators.h"
#include "verbena/transport/coro/context.h"

namespace verbena::internal {
namespace garbage_test {

using namespace std::chrono_literals;
using absl::StatusCode;
using ParametersOr = absl::StatusOr<LinkParameters>;

Task<ParametersOr> Serve(MessageListener& listener, Duration patience) {
  VERBENA_CO_ASSIGN_OR_RETURN(std::unique_ptr<MessageStream> stream, co_await listener.Accept());
  VERBENA_CO_ASSIGN_OR_RETURN(LinkParameters offer,
                              co_await WithDeadline(ReceiveOffer(*stream), patience));
  VERBENA_CO_RETURN_IF_ERROR(co_await AcceptOffer(*stream, offer, Side("server", 2)));
  VERBENA_CO_RETURN_IF_ERROR(co_await AwaitReady(*stream));
  co_return offer;
}

Task<ParametersOr> Connect(Bootstrap& bootstrap, std::string address) {
  VERBENA_CO_ASSIGN_OR_RETURN(std::unique_ptr<MessageStream> stream,
                              co_await bootstrap.Connect(std::move(address)));
  VERBENA_CO_ASSIGN_OR_RETURN(LinkParameters answer,
                              co_await OfferLink(*stream, Side("client", 1)));
  VERBENA_CO_RETURN_IF_ERROR(co_await ConfirmReady(*stream));
  // Closing before the server has read everything would cut it off.
  (void)co_await stream->Receive();
  co_return answer;
}

class GarbageTest : public testing::Test {
 protected:
  GarbageTest() {
    bootstrap_ = *TcpBootstrap::Create();
    listener_ = *bootstrap_->Listen("127.0.0.1:0");
  }

  // The server's status for a peer that sends `bytes` and then waits.
  absl::Status ServePeerThatSends(const std::string& bytes, Duration patience = 60s) {
    RawPeer peer(listener_->address());
    peer.Write(bytes);
    const absl::Status status = scheduler_.Run(Serve(*listener_, patience)).status();
    answer_ = peer.Read(kMaxBootstrapMessageBytes);
    return status;
  }

  void ExpectOneLineSaying(const std::string& part) {
    const std::vector<std::string> lines = log_.Take();
    HandshakeLog().Reset();
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_NE(lines[0].find("127.0.0.1:"), std::string::npos) << lines[0];
    EXPECT_NE(lines[0].find(part), std::string::npos) << lines[0];
    EXPECT_EQ(lines[0].find('\n'), std::string::npos) << lines[0];
  }

  void ExpectNextClientServed() {
    auto [client, server] =
        scheduler_.Run(WhenAll(Connect(*bootstrap_, listener_->address()), Serve(*listener_, 60s)));
    EXPECT_TRUE(client.ok()) << client.status();
    EXPECT_TRUE(server.ok()) << server.status();
  }

  CapturedLog log_;
  WaitingScheduler scheduler_;
  std::unique_ptr<TcpBootstrap> bootstrap_;
  std::unique_ptr<MessageListener> listener_;
  std::string answer_;
};

TEST_F(GarbageTest, OtherProtocolsAreRefusedByTheLengthThatTheirFirstBytesMake) {
  const std::vector<std::string> others = {
      "GET / HTTP/1.1\r\nHost: storage-7\r\n\r\n",
      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
      std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11),
      "SSH-2.0-OpenSSH_9.2\r\n",
      std::string(4, '\xff'),
      RawPeer::Length(kMaxBootstrapMessageBytes + 1),
  };
  for (const std::string& bytes : others) {
    const absl::Status status = ServePeerThatSends(bytes);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
    ExpectOneLineSaying("does not speak Verbena's protocol");
  }
  ExpectNextClientServed();
}

TEST_F(GarbageTest, MessageThatIsNoHelloIsRefusedInWords) {
  std::minstd_rand random(5);
  std::string noise(1000, '\0');
  for (char& byte : noise) byte = static_cast<char>(random());
  for (const std::string& message :
       {std::string(), std::string(kMaxBootstrapMessageBytes, '\0'), noise, std::string("hello")}) {
    const absl::Status status = ServePeerThatSends(RawPeer::Framed(message));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
    ExpectOneLineSaying("INVALID_ARGUMENT");
    ASSERT_GT(answer_.size(), 4u);
    EXPECT_EQ(ParseReply(answer_.substr(4), {}).status().code(), StatusCode::kInvalidArgument);
  }
  ExpectNextClientServed();
}

TEST_F(GarbageTest, HelloCutOffAtAnyByteIsLogged) {
  const std::string hello = RawPeer::Framed(EncodeHello(Side("client", 1), {}));
  for (size_t cut = 0; cut < hello.size(); ++cut) {
    RawPeer peer(listener_->address());
    peer.Write(hello.substr(0, cut));
    peer.Close();
    const absl::Status status = scheduler_.Run(Serve(*listener_, 60s)).status();
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
    ExpectOneLineSaying("has closed the connection");
  }
  ExpectNextClientServed();
}

TEST_F(GarbageTest, HelloCutOffByAResetIsLogged) {
  RawPeer peer(listener_->address());
  peer.Write(RawPeer::Length(100));
  peer.Reset();
  EXPECT_EQ(scheduler_.Run(Serve(*listener_, 60s)).status().code(), StatusCode::kUnavailable);
  ExpectOneLineSaying("UNAVAILABLE");
  ExpectNextClientServed();
}

TEST_F(GarbageTest, PeerThatNeverEndsItsHelloCostsItsDeadlineOnly) {
  const std::string hello = RawPeer::Framed(EncodeHello(Side("client", 1), {}));
  for (size_t cut : {size_t{0}, size_t{3}, hello.size() - 1}) {
    const absl::Status status = ServePeerThatSends(hello.substr(0, cut), 1ms);
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status;
    ExpectOneLineSaying("the time of the handshake has passed");
    EXPECT_EQ(answer_, "");
  }
  ExpectNextClientServed();
}

TEST_F(GarbageTest, ReadyCutOffOrMadeUpIsLogged) {
  const std::string hello = RawPeer::Framed(EncodeHello(Side("client", 1), {}));
  EXPECT_EQ(ServePeerThatSends(hello + RawPeer::Framed("made up")).code(),
            StatusCode::kInvalidArgument);
  ExpectOneLineSaying("Ready");
  EXPECT_EQ(ServePeerThatSends(hello + RawPeer::Length(0x10000000)).code(),
            StatusCode::kInvalidArgument);
  ExpectOneLineSaying("longer");
  ExpectNextClientServed();
}

TEST_F(GarbageTest, ServerThatIsNoVerbenaFailsTheClientInWords) {
  auto [client, server] =
      scheduler_.Run(WhenAll(Connect(*bootstrap_, listener_->address()),
                             [](MessageListener& listener) -> Task<absl::Status> {
                               VERBENA_CO_ASSIGN_OR_RETURN(auto stream, co_await listener.Accept());
                               (void)co_await stream->Receive();
                               co_return co_await stream->Send("HTTP/1.1 400 Bad Request");
                             }(*listener_)));
  EXPECT_EQ(client.status().code(), StatusCode::kInvalidArgument) << client.status();
}

}  // namespace garbage_test
}  // namespace verbena::internal
