// Every bootstrap delivers messages whole, once and in order, bounds what waits, and loses none to
// a cancelled or destroyed await. The same tests run on each bootstrap.

#include "verbena/transport/connect/bootstrap.h"

#include <stdlib.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/support/held_port.h"
#include "tests/transport/connect/waiting_scheduler.h"
#include "tests/transport/coro/started.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/connect/file_bootstrap.h"
#include "verbena/transport/connect/local_bootstrap.h"
#include "verbena/transport/connect/tcp_bootstrap.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/combinators.h"
#include "verbena/transport/coro/context.h"

namespace verbena::internal {
namespace bootstrap_test {

using namespace std::chrono_literals;
using StreamPtr = std::unique_ptr<MessageStream>;
using ListenerPtr = std::unique_ptr<MessageListener>;

// A bootstrap under test, and where a listener can be.
struct Kind {
  std::string name;
  std::string any_address;
  std::string empty_address;  // where nobody listens
  std::function<std::unique_ptr<Bootstrap>()> make;
};

std::unique_ptr<Bootstrap> MakeTcp() { return *TcpBootstrap::Create(); }

std::unique_ptr<Bootstrap> MakeLocal() {
  LocalNetwork network;  // what is made from it keeps what it needs
  return std::make_unique<LocalBootstrap>(network, "client");
}

std::unique_ptr<Bootstrap> MakeFile() {
  std::string directory = testing::TempDir() + "/bootstrap.XXXXXX";
  EXPECT_NE(mkdtemp(directory.data()), nullptr);
  return *FileBootstrap::Create(directory);
}

class BootstrapTest : public testing::TestWithParam<Kind> {
 protected:
  BootstrapTest() : bootstrap_(GetParam().make()) {}

  // A listener, and both ends of a connection to it.
  void Connect() {
    listener_ = *bootstrap_->Listen(GetParam().any_address);
    auto [client, server] = ConnectOnce(*listener_);
    client_ = std::move(client);
    server_ = std::move(server);
  }

  std::pair<StreamPtr, StreamPtr> ConnectOnce(MessageListener& listener) {
    auto [client, server] = scheduler_.Run(
        WhenAll(bootstrap_->Connect(std::string(listener.address())), listener.Accept()));
    EXPECT_TRUE(client.ok()) << client.status();
    EXPECT_TRUE(server.ok()) << server.status();
    return {*std::move(client), *std::move(server)};
  }

  WaitingScheduler scheduler_;
  std::unique_ptr<Bootstrap> bootstrap_;
  ListenerPtr listener_;
  StreamPtr client_;
  StreamPtr server_;
};

INSTANTIATE_TEST_SUITE_P(, BootstrapTest,
                         testing::Values(Kind{"Tcp", "127.0.0.1:0", "127.0.0.1:1", MakeTcp},
                                         Kind{"File", "storage:0", "nobody", MakeFile},
                                         Kind{"Local", "storage:0", "nobody", MakeLocal}),
                         [](const auto& info) { return info.param.name; });

using Received = absl::StatusOr<std::string>;
using StreamOr = absl::StatusOr<StreamPtr>;

TEST_P(BootstrapTest, MessagesArriveWholeAndInBothDirections) {
  Connect();
  const std::vector<std::string> messages = {"", "a", std::string("\0\n\xff", 3),
                                             std::string(kMaxBootstrapMessageBytes, 'x'), "end"};
  for (const std::string& message : messages) {
    for (auto [from, to] :
         {std::pair(client_.get(), server_.get()), {server_.get(), client_.get()}}) {
      auto [sent, received] = scheduler_.Run(WhenAll(from->Send(message), to->Receive()));
      EXPECT_TRUE(sent.ok()) << sent;
      EXPECT_EQ(received.value(), message);
    }
  }
}

TEST_P(BootstrapTest, MessagesSentBeforeAnybodyReceivesKeepTheirOrder) {
  Connect();
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(scheduler_.Run(client_->Send(std::to_string(i))).ok());
  }
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(scheduler_.Run(server_->Receive()).value(), std::to_string(i));
  }
}

TEST_P(BootstrapTest, MessageOverTheLimitIsRefusedAndHarmsNothing) {
  Connect();
  const absl::Status sent =
      scheduler_.Run(client_->Send(std::string(kMaxBootstrapMessageBytes + 1, 'x')));
  EXPECT_EQ(sent.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(sent.message()).find("65537"), std::string::npos) << sent;
  ASSERT_TRUE(scheduler_.Run(client_->Send("small")).ok());
  EXPECT_EQ(scheduler_.Run(server_->Receive()).value(), "small");
}

TEST_P(BootstrapTest, ConnectingToNobodyIsUnavailableAndNamesTheTarget) {
  const StreamOr stream = scheduler_.Run(bootstrap_->Connect(GetParam().empty_address));
  EXPECT_EQ(stream.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(std::string(stream.status().message()).find(GetParam().empty_address),
            std::string::npos)
      << stream.status();
}

TEST_P(BootstrapTest, AddressInUseIsRefusedByItsNameUntilItIsFree) {
  const HeldPort port;
  ListenerPtr first = *bootstrap_->Listen(GetParam().name == "Tcp" ? std::string(port.address())
                                                                   : GetParam().any_address);
  const std::string address = first->address();
  const absl::Status second = bootstrap_->Listen(address).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(std::string(second.message()).find(address + " is in use"), 0u) << second;
  first = nullptr;
  EXPECT_TRUE(bootstrap_->Listen(address).ok());
}

TEST_P(BootstrapTest, EndsKnowEachOtherByName) {
  Connect();
  EXPECT_EQ(client_->peer(), listener_->address());
  EXPECT_FALSE(server_->peer().empty());
}

TEST_P(BootstrapTest, MessagesSentBeforeCloseArriveBeforeTheEnd) {
  Connect();
  ASSERT_TRUE(scheduler_.Run(client_->Send("last words")).ok());
  client_->Close();
  EXPECT_EQ(scheduler_.Run(server_->Receive()).value(), "last words");
  // Once and for all.
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(scheduler_.Run(server_->Receive()).status().code(), absl::StatusCode::kUnavailable);
  }
}

TEST_P(BootstrapTest, PeerThatGoesEndsTheReceiveInFlight) {
  Connect();
  Started<Received> waiting(scheduler_, server_->Receive());
  client_ = nullptr;
  scheduler_.RunUntil([&] { return waiting.done(); });
  EXPECT_EQ(waiting.result().status().code(), absl::StatusCode::kUnavailable);
}

TEST_P(BootstrapTest, SendingToAPeerThatIsGoneFailsInTheEnd) {
  Connect();
  client_ = nullptr;
  absl::Status sent;
  // The kernel takes what it can until it hears from the other side.
  for (int i = 0; i < 1000 && sent.ok(); ++i) sent = scheduler_.Run(server_->Send("anybody?"));
  EXPECT_EQ(sent.code(), absl::StatusCode::kUnavailable) << sent;
}

TEST_P(BootstrapTest, CloseEndsOwnAwaitsWithCancelled) {
  Connect();
  Started<Received> waiting(scheduler_, client_->Receive());
  client_->Close();
  scheduler_.RunUntil([&] { return waiting.done(); });
  EXPECT_EQ(waiting.result().status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(scheduler_.Run(client_->Receive()).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(scheduler_.Run(client_->Send("x")).code(), absl::StatusCode::kCancelled);
  client_->Close();
}

TEST_P(BootstrapTest, ClosingTheListenerEndsAcceptAndLeavesStreamsAlone) {
  Connect();
  Started<StreamOr> waiting(scheduler_, listener_->Accept());
  listener_->Close();
  scheduler_.RunUntil([&] { return waiting.done(); });
  EXPECT_EQ(waiting.result().status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(scheduler_.Run(listener_->Accept()).status().code(), absl::StatusCode::kCancelled);
  listener_ = nullptr;
  ASSERT_TRUE(scheduler_.Run(client_->Send("still here")).ok());
  EXPECT_EQ(scheduler_.Run(server_->Receive()).value(), "still here");
}

TEST_P(BootstrapTest, ConnectionThatNobodyAcceptedEndsWithItsListener) {
  listener_ = *bootstrap_->Listen(GetParam().any_address);
  StreamPtr client = *scheduler_.Run(bootstrap_->Connect(std::string(listener_->address())));
  Started<Received> waiting(scheduler_, client->Receive());
  listener_ = nullptr;
  scheduler_.RunUntil([&] { return waiting.done(); });
  EXPECT_EQ(waiting.result().status().code(), absl::StatusCode::kUnavailable);
}

TEST_P(BootstrapTest, CancelledReceiveLosesNoMessage) {
  Connect();
  CancelScope cancel;
  Started<Received> waiting(scheduler_, server_->Receive(), &cancel);
  cancel.Request();
  scheduler_.RunUntil([&] { return waiting.done(); });
  EXPECT_EQ(waiting.result().status().code(), absl::StatusCode::kCancelled);
  ASSERT_TRUE(scheduler_.Run(client_->Send("kept")).ok());
  EXPECT_EQ(scheduler_.Run(server_->Receive()).value(), "kept");
}

TEST_P(BootstrapTest, ReceiveDestroyedWhileItWaitsLosesNoMessage) {
  Connect();
  Started<Received> waiting(scheduler_, server_->Receive());
  waiting.Abandon();
  ASSERT_TRUE(scheduler_.Run(client_->Send("kept")).ok());
  EXPECT_EQ(scheduler_.Run(server_->Receive()).value(), "kept");
}

TEST_P(BootstrapTest, ReceiveDestroyedWhenItsWakeUpIsOnTheWayLosesNoMessage) {
  Connect();
  Started<Received> waiting(scheduler_, server_->Receive());
  Started<absl::Status> sending(scheduler_, client_->Send("kept"));
  // Over TCP there is a wake-up for the sender too; locally it is done already.
  scheduler_.WaitForPosts(sending.done() ? 1 : 2);
  waiting.Abandon();
  scheduler_.RunPending();
  EXPECT_EQ(scheduler_.Run(server_->Receive()).value(), "kept");
}

TEST_P(BootstrapTest, ReceivePastItsDeadlineCanBeRepeated) {
  Connect();
  EXPECT_EQ(scheduler_.Run(WithDeadline(server_->Receive(), 1ms)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  ASSERT_TRUE(scheduler_.Run(client_->Send("late")).ok());
  EXPECT_EQ(scheduler_.Run(server_->Receive()).value(), "late");
}

TEST_P(BootstrapTest, SecondReceiveAtOnceIsRefusedAndTheFirstGoesOn) {
  Connect();
  Started<Received> first(scheduler_, server_->Receive());
  EXPECT_EQ(scheduler_.Run(server_->Receive()).status().code(),
            absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(scheduler_.Run(client_->Send("for the first")).ok());
  scheduler_.RunUntil([&] { return first.done(); });
  EXPECT_EQ(first.result().value(), "for the first");
}

TEST_P(BootstrapTest, AcceptThatWasCancelledOrDestroyedLosesNoConnection) {
  listener_ = *bootstrap_->Listen(GetParam().any_address);
  CancelScope cancel;
  Started<StreamOr> cancelled(scheduler_, listener_->Accept(), &cancel);
  cancel.Request();
  scheduler_.RunUntil([&] { return cancelled.done(); });
  EXPECT_EQ(cancelled.result().status().code(), absl::StatusCode::kCancelled);
  Started<StreamOr> destroyed(scheduler_, listener_->Accept());
  destroyed.Abandon();
  auto [client, server] = ConnectOnce(*listener_);
  ASSERT_TRUE(scheduler_.Run(client->Send("hello")).ok());
  EXPECT_EQ(scheduler_.Run(server->Receive()).value(), "hello");
}

TEST_P(BootstrapTest, CancelledScopeEndsEveryAwaitAtOnce) {
  Connect();
  CancelScope cancel;
  cancel.Request();
  const auto is_cancelled = [](const absl::Status& status) { return absl::IsCancelled(status); };
  EXPECT_TRUE(is_cancelled(scheduler_.Run(client_->Send("x"), &cancel)));
  EXPECT_TRUE(is_cancelled(scheduler_.Run(client_->Receive(), &cancel).status()));
  EXPECT_TRUE(is_cancelled(scheduler_.Run(listener_->Accept(), &cancel).status()));
}

TEST_P(BootstrapTest, ConnectDestroyedAtOnceLeavesNoConnectionBehind) {
  listener_ = *bootstrap_->Listen(GetParam().any_address);
  Started<StreamOr> connecting(scheduler_, bootstrap_->Connect(std::string(listener_->address())));
  connecting.Abandon();
  // Whoever comes through is told that the peer has gone; a later client is served.
  auto [client, server] = scheduler_.Run(
      WhenAll(bootstrap_->Connect(std::string(listener_->address())), listener_->Accept()));
  ASSERT_TRUE(scheduler_.Run((*client)->Send("later")).ok());
  Received received = scheduler_.Run((*server)->Receive());
  if (!received.ok()) {
    EXPECT_EQ(received.status().code(), absl::StatusCode::kUnavailable);
    server = scheduler_.Run(listener_->Accept());
    received = scheduler_.Run((*server)->Receive());
  }
  EXPECT_EQ(received.value(), "later");
}

TEST_P(BootstrapTest, StreamMayGoBeforeATaskThatNobodyAwaited) {
  Connect();
  Task<Received> receive = client_->Receive();
  Task<absl::Status> send = client_->Send("x");
  Task<StreamOr> accept = listener_->Accept();
  client_ = nullptr;
  listener_ = nullptr;
  EXPECT_EQ(scheduler_.Run(std::move(receive)).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(scheduler_.Run(std::move(send)).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(scheduler_.Run(std::move(accept)).status().code(), absl::StatusCode::kCancelled);
}

TEST_P(BootstrapTest, DestroyedSendLeavesTheStreamInOrder) {
  Connect();
  Started<absl::Status> sending(scheduler_, client_->Send("one"));
  sending.Abandon();
  ASSERT_TRUE(scheduler_.Run(client_->Send("two")).ok());
  // A Send that began is sent whole, also when nobody waits for it.
  EXPECT_EQ(scheduler_.Run(server_->Receive()).value(), "one");
  EXPECT_EQ(scheduler_.Run(server_->Receive()).value(), "two");
}

TEST_P(BootstrapTest, PeerThatDoesNotReadBoundsWhatIsKeptForIt) {
  Connect();
  const std::string message(kMaxBootstrapMessageBytes, 'x');
  // Each is given up by its caller; the kernel's buffers and then ours fill up.
  size_t refused = 0;
  for (int i = 0; i < 1000 && refused == 0; ++i) {
    const absl::Status sent = scheduler_.Run(WithDeadline(client_->Send(message), 1ms));
    if (sent.code() == absl::StatusCode::kResourceExhausted) ++refused;
    if (GetParam().name == "Local" && !sent.ok()) {
      EXPECT_EQ(i, static_cast<int>(LocalNetwork::kStreamMessages));
      ++refused;
    }
  }
  EXPECT_EQ(refused, 1u);
  // Once the peer reads, the stream goes on where it was.
  for (int i = 0; i < 3; ++i) EXPECT_EQ(scheduler_.Run(server_->Receive()).value(), message);
}

Task<absl::Status> EchoOn(MessageStream& stream, int messages) {
  for (int i = 0; i < messages; ++i) {
    VERBENA_CO_ASSIGN_OR_RETURN(std::string message, co_await stream.Receive());
    VERBENA_CO_RETURN_IF_ERROR(co_await stream.Send(std::move(message)));
  }
  // The client closes first, so that nothing is cut off.
  const absl::Status end = (co_await stream.Receive()).status();
  co_return absl::IsUnavailable(end) ? absl::OkStatus() : absl::InternalError("no end");
}

Task<absl::Status> Echo(MessageListener& listener, int messages) {
  VERBENA_CO_ASSIGN_OR_RETURN(StreamPtr stream, co_await listener.Accept());
  co_return co_await EchoOn(*stream, messages);
}

Task<absl::Status> Ask(Bootstrap& bootstrap, std::string address, int id, int messages) {
  VERBENA_CO_ASSIGN_OR_RETURN(StreamPtr stream, co_await bootstrap.Connect(std::move(address)));
  for (int i = 0; i < messages; ++i) {
    const std::string question(static_cast<size_t>(i) * 7 + 1, static_cast<char>('a' + id % 26));
    VERBENA_CO_RETURN_IF_ERROR(co_await stream->Send(question));
    VERBENA_CO_ASSIGN_OR_RETURN(const std::string answer, co_await stream->Receive());
    if (answer != question) co_return absl::DataLossError("another stream's message");
  }
  co_return absl::OkStatus();
}

TEST_P(BootstrapTest, ManyStreamsAtOnceDoNotMixUp) {
  constexpr int kStreams = 64;
  constexpr int kMessages = 20;
  listener_ = *bootstrap_->Listen(GetParam().any_address);
  std::vector<Task<absl::Status>> clients;
  clients.reserve(kStreams);
  for (int i = 0; i < kStreams; ++i) {
    clients.push_back(Ask(*bootstrap_, listener_->address(), i, kMessages));
  }
  const auto serve = [](MessageListener& listener) -> Task<absl::Status> {
    std::vector<StreamPtr> streams;
    for (int i = 0; i < kStreams; ++i) {
      VERBENA_CO_ASSIGN_OR_RETURN(StreamPtr stream, co_await listener.Accept());
      streams.push_back(std::move(stream));
    }
    std::vector<Task<absl::Status>> echoes;
    echoes.reserve(streams.size());
    for (StreamPtr& stream : streams) echoes.push_back(EchoOn(*stream, kMessages));
    for (const absl::Status& echoed : co_await WhenAll(std::move(echoes))) {
      if (!echoed.ok()) co_return echoed;
    }
    co_return absl::OkStatus();
  };
  auto [served, asked] = scheduler_.Run(WhenAll(serve(*listener_), WhenAll(std::move(clients))));
  EXPECT_TRUE(served.ok()) << served;
  for (const absl::Status& status : asked) EXPECT_TRUE(status.ok()) << status;
}

TEST_P(BootstrapTest, TwoThreadsTalkToEachOther) {
  constexpr int kMessages = 300;
  listener_ = *bootstrap_->Listen(GetParam().any_address);
  absl::Status echoed;
  std::thread server([&] {
    WaitingScheduler scheduler;
    echoed = scheduler.Run(Echo(*listener_, kMessages));
  });
  const absl::Status asked = scheduler_.Run(Ask(*bootstrap_, listener_->address(), 0, kMessages));
  server.join();
  EXPECT_TRUE(asked.ok()) << asked;
  EXPECT_TRUE(echoed.ok()) << echoed;
}

}  // namespace bootstrap_test
}  // namespace verbena::internal
