// TCP streams survive what a network does to them: messages in pieces, resets, half-closed and
// silent peers, and processes without descriptors. Nothing leaks, and each address that fails is
// named.

#include "verbena/transport/connect/tcp_bootstrap.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/support/full_listener.h"
#include "tests/support/held_port.h"
#include "tests/transport/base/captured_log.h"
#include "tests/transport/connect/raw_peer.h"
#include "tests/transport/connect/waiting_scheduler.h"
#include "tests/transport/coro/started.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/name_lookup.h"
#include "verbena/transport/base/retry_after.h"
#include "verbena/transport/base/socket.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/connect/handshake.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/combinators.h"
#include "verbena/transport/coro/context.h"

namespace verbena::internal {
namespace tcp_bootstrap_test {

using StreamPtr = std::unique_ptr<MessageStream>;
using StreamOr = absl::StatusOr<StreamPtr>;
using Received = absl::StatusOr<std::string>;

constexpr char kLoopback[] = "127.0.0.1:0";

std::vector<int> OpenDescriptors() {
  std::vector<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    found.push_back(std::stoi(entry.path().filename().string()));
  }
  // Drops the descriptor that listed the others: it is closed by now.
  std::erase_if(found, [](int fd) { return fcntl(fd, F_GETFD) < 0; });
  return found;
}

bool Says(const absl::Status& status, const std::string& part) {
  return std::string(status.message()).find(part) != std::string::npos;
}

class TcpBootstrapTest : public testing::Test {
 protected:
  TcpBootstrapTest() {
    bootstrap_ = *TcpBootstrap::Create();
    listener_ = *bootstrap_->Listen(kLoopback);
  }

  // A peer that speaks no protocol, and our end of the connection to it.
  StreamPtr AcceptRaw(std::optional<RawPeer>& peer) {
    peer.emplace(listener_->address());
    return *scheduler_.Run(listener_->Accept());
  }

  WaitingScheduler scheduler_;
  std::unique_ptr<TcpBootstrap> bootstrap_;
  std::unique_ptr<MessageListener> listener_;
  std::optional<RawPeer> peer_;
};

TEST_F(TcpBootstrapTest, OneAddressAtBothEndsMeansOneHost) {
  auto both = [this]() -> Task<std::tuple<StreamOr, StreamOr>> {
    co_return co_await WhenAll(bootstrap_->Connect(listener_->address()), listener_->Accept());
  };
  auto [here, there] = scheduler_.Run(both());
  EXPECT_TRUE((*here)->same_host());
  EXPECT_TRUE((*there)->same_host());
}

TEST_F(TcpBootstrapTest, EachEndKnowsItsOwnAddress) {
  listener_ = *bootstrap_->Listen("127.0.0.2:0");
  auto both = [this]() -> Task<std::tuple<StreamOr, StreamOr>> {
    co_return co_await WhenAll(bootstrap_->Connect(listener_->address()), listener_->Accept());
  };
  auto [here, there] = scheduler_.Run(both());
  EXPECT_EQ((*there)->own_address(), "127.0.0.2");
  EXPECT_EQ((*here)->own_address(), ParseHostPort((*there)->peer())->host);
}

TEST_F(TcpBootstrapTest, MessageIsALittleEndianLengthAndItsBytes) {
  StreamPtr stream = AcceptRaw(peer_);
  ASSERT_TRUE(scheduler_.Run(stream->Send("abc")).ok());
  EXPECT_EQ(peer_->Read(7), std::string("\3\0\0\0abc", 7));
  ASSERT_TRUE(scheduler_.Run(stream->Send(std::string(0x0201, 'x'))).ok());
  EXPECT_EQ(peer_->Read(4 + 0x0201), std::string("\1\2\0\0", 4) + std::string(0x0201, 'x'));
  peer_->Write(std::string("\2\0\0\0hi\0\0\0\0", 10));
  EXPECT_EQ(scheduler_.Run(stream->Receive()).value(), "hi");
  EXPECT_EQ(scheduler_.Run(stream->Receive()).value(), "");
}

TEST_F(TcpBootstrapTest, MessageThatComesByteByByteIsPutTogether) {
  StreamPtr stream = AcceptRaw(peer_);
  Started<Received> waiting(scheduler_, stream->Receive());
  for (char byte : RawPeer::Framed("slowly")) {
    EXPECT_FALSE(waiting.done());
    peer_->Write(std::string(1, byte));
    scheduler_.RunPending();
  }
  scheduler_.RunUntil([&] { return waiting.done(); });
  EXPECT_EQ(waiting.result().value(), "slowly");
}

TEST_F(TcpBootstrapTest, ReceiveGivenUpInTheMiddleOfAMessageLeavesItToTheNext) {
  StreamPtr stream = AcceptRaw(peer_);
  const std::string bytes = RawPeer::Framed("abcdef");
  for (char byte : bytes) {
    CancelScope cancel;
    Started<Received> waiting(scheduler_, stream->Receive(), &cancel);
    peer_->Write(std::string(1, byte));
    cancel.Request();
    scheduler_.RunPending();
    ASSERT_TRUE(waiting.done());
  }
  EXPECT_EQ(scheduler_.Run(stream->Receive()).value(), "abcdef");
}

TEST_F(TcpBootstrapTest, EndInTheMiddleOfAMessageIsToldWithWhatHadCome) {
  const std::string bytes = RawPeer::Framed("abcdef");
  for (size_t cut = 0; cut < bytes.size(); ++cut) {
    StreamPtr stream = AcceptRaw(peer_);
    peer_->Write(bytes.substr(0, cut));
    peer_->Close();
    const absl::Status end = scheduler_.Run(stream->Receive()).status();
    EXPECT_EQ(end.code(), absl::StatusCode::kUnavailable);
    if (cut == 0) {
      EXPECT_FALSE(Says(end, "after")) << end;
    } else if (cut < 4) {
      EXPECT_TRUE(Says(end, "after " + std::to_string(cut) + " bytes of a message's length"))
          << end;
    } else {
      EXPECT_TRUE(Says(end, "after " + std::to_string(cut - 4) + " bytes of a message of 6"))
          << end;
    }
  }
}

TEST_F(TcpBootstrapTest, DeclaredLengthOverTheLimitEndsReceivingAndNotSending) {
  for (uint32_t length : {uint32_t{kMaxBootstrapMessageBytes + 1}, 0x7fffffffu, 0xffffffffu}) {
    StreamPtr stream = AcceptRaw(peer_);
    peer_->Write(RawPeer::Length(length));
    const absl::Status end = scheduler_.Run(stream->Receive()).status();
    EXPECT_EQ(end.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(Says(end, std::to_string(length))) << end;
    EXPECT_TRUE(Says(end, stream->peer())) << end;
    // For ever: what follows cannot be told apart into messages.
    peer_->Write(RawPeer::Framed("x"));
    EXPECT_EQ(scheduler_.Run(stream->Receive()).status().code(),
              absl::StatusCode::kInvalidArgument);
    ASSERT_TRUE(scheduler_.Run(stream->Send("no")).ok());
    EXPECT_EQ(peer_->Read(6), RawPeer::Framed("no"));
  }
}

TEST_F(TcpBootstrapTest, ResetByThePeerIsUnavailable) {
  StreamPtr stream = AcceptRaw(peer_);
  Started<Received> waiting(scheduler_, stream->Receive());
  peer_->Reset();
  scheduler_.RunUntil([&] { return waiting.done(); });
  const absl::Status end = waiting.result().status();
  EXPECT_EQ(end.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Says(end, "ECONNRESET")) << end;
}

TEST_F(TcpBootstrapTest, PeerThatOnlyFinishedWritingStillHears) {
  StreamPtr stream = AcceptRaw(peer_);
  peer_->FinishWriting();
  EXPECT_EQ(scheduler_.Run(stream->Receive()).status().code(), absl::StatusCode::kUnavailable);
  ASSERT_TRUE(scheduler_.Run(stream->Send("bye")).ok());
  EXPECT_EQ(peer_->Read(7), RawPeer::Framed("bye"));
}

TEST_F(TcpBootstrapTest, CloseDeliversWhatWasSent) {
  StreamPtr stream = AcceptRaw(peer_);
  const std::string message(kMaxBootstrapMessageBytes, 'x');
  ASSERT_TRUE(scheduler_.Run(stream->Send(message)).ok());
  stream = nullptr;
  EXPECT_EQ(peer_->Read(message.size() + 5), RawPeer::Framed(message));
}

// A connection whose kernel buffers hold far less than the sends that a stream may have in flight.
class NarrowConnectionTest : public TcpBootstrapTest {
 protected:
  NarrowConnectionTest() {
    // Accepted sockets inherit it.
    const int few = 4096;
    for (int fd : OpenDescriptors()) {
      if (IsListener(fd)) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &few, sizeof(few));
    }
    peer_.emplace(listener_->address(), few);
    stream_ = *scheduler_.Run(listener_->Accept());
  }

  static bool IsListener(int fd) {
    int listens = 0;
    socklen_t bytes = sizeof(listens);
    return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) == 0 && listens != 0;
  }

  using Sending = Started<absl::Status>;
  std::unique_ptr<Sending> StartSend(char content) {
    return std::make_unique<Sending>(
        scheduler_, stream_->Send(std::string(kMaxBootstrapMessageBytes, content)));
  }

  StreamPtr stream_;
};

TEST_F(NarrowConnectionTest, SendInFlightEndsWithCancelledOnClose) {
  std::vector<std::unique_ptr<Sending>> sends(8);
  for (auto& sending : sends) sending = StartSend('x');
  scheduler_.RunPending();
  EXPECT_FALSE(sends.back()->done());
  stream_->Close();
  scheduler_.RunUntil([&] { return sends.back()->done(); });
  EXPECT_EQ(sends.back()->result().code(), absl::StatusCode::kCancelled);
}

TEST_F(NarrowConnectionTest, SendInFlightEndsWhenThePeerDies) {
  std::vector<std::unique_ptr<Sending>> sends(8);
  for (auto& sending : sends) sending = StartSend('x');
  peer_->Reset();
  scheduler_.RunUntil([&] { return sends.back()->done(); });
  EXPECT_EQ(sends.back()->result().code(), absl::StatusCode::kUnavailable);
}

TEST_F(NarrowConnectionTest, SendsThatWereGivenUpAreBoundedAndArriveWholeInTheirOrder) {
  std::string given_up;
  // The kernel takes one or two; then what the stream keeps reaches its bound.
  for (char content = 'a'; content <= 'z'; ++content) {
    std::unique_ptr<Sending> sending = StartSend(content);
    if (sending->done()) {
      EXPECT_EQ(sending->result().code(), absl::StatusCode::kResourceExhausted);
      break;
    }
    given_up += content;
  }
  EXPECT_GE(given_up.size(), 16u);
  EXPECT_LT(given_up.size(), 20u);
  for (char content : given_up) {
    EXPECT_EQ(peer_->Read(kMaxBootstrapMessageBytes + 4),
              RawPeer::Framed(std::string(kMaxBootstrapMessageBytes, content)));
  }
  EXPECT_TRUE(scheduler_.Run(stream_->Send("room again")).ok());
}

TEST_F(TcpBootstrapTest, BusyPortIsToldInOneLineThatSaysWhatToDo) {
  const absl::Status busy = bootstrap_->Listen(listener_->address()).status();
  EXPECT_EQ(busy, absl::FailedPreconditionError(
                      listener_->address() +
                      " is in use (EADDRINUSE): choose another port or stop the other server"));
}

TEST_F(TcpBootstrapTest, AddressesThatCannotBeListenedOnAreNamed) {
  for (const std::string address : {"nonsense", "127.0.0.1:99999", "192.0.2.1:0"}) {
    const absl::Status status = bootstrap_->Listen(address).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_TRUE(Says(status, address)) << status;
  }
}

TEST_F(TcpBootstrapTest, AddressesThatCannotBeConnectedToAreNamed) {
  for (const std::string address : {"nonsense", "127.0.0.1:99999", "127.0.0.1:0"}) {
    const absl::Status status = scheduler_.Run(bootstrap_->Connect(address)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_TRUE(Says(status, address)) << status;
  }
  // Longer than a label may be, so that the resolver fails without asking anybody.
  const std::string no_host(64, 'h');
  const absl::Status status = scheduler_.Run(bootstrap_->Connect(no_host + ":1")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(Says(status, no_host)) << status;
  EXPECT_EQ(bootstrap_->Listen(no_host + ":1").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(TcpBootstrapTest, ANameWhoseLookupHangsStopsNoOther) {
  const auto answers = std::make_shared<std::atomic<bool>>(false);
  NameLookups lookups([answers](const std::string& name) {
    if (name == "slow") answers->wait(false);
    return NameAnswer{.addresses = {SocketAddress(*ParseIp("127.0.0.1"), 0)}};
  });
  absl::StatusOr<std::unique_ptr<TcpBootstrap>> bootstrap = TcpBootstrap::Create(lookups);
  ASSERT_TRUE(bootstrap.ok()) << bootstrap.status();
  const std::string port = listener_->address().substr(listener_->address().rfind(':'));
  {
    Started slow(scheduler_, (*bootstrap)->Connect("slow" + port));
    const Started slow_again(scheduler_, (*bootstrap)->Connect("slow" + port));
    auto [client, server] =
        scheduler_.Run(WhenAll((*bootstrap)->Connect("quick" + port), listener_->Accept()));
    EXPECT_TRUE(client.ok()) << client.status();
    EXPECT_FALSE(slow.done());
    // The bootstrap's end waits for no lookup.
    bootstrap->reset();
    scheduler_.RunUntil([&] { return slow.done(); });
    EXPECT_EQ(slow.result().status().code(), absl::StatusCode::kCancelled);
  }
  *answers = true;
  answers->notify_all();
}

// A name whose addresses are silent, but for the last one, where somebody listens.
class MostlySilentNameTest : public TcpBootstrapTest {
 protected:
  explicit MostlySilentNameTest(size_t silent = 1) {
    const HostPort at = *ParseHostPort(listener_->address());
    silent_.emplace("127.0.0.2", at.port);
    answer_.addresses.assign(silent, SocketAddress(*ParseIp("127.0.0.2"), 0));
    answer_.addresses.emplace_back(*ParseIp("127.0.0.1"), 0);
    target_ = FormatHostPort("storage", at.port);
  }

  VERBENA_CORO_WRAPPER Task<StreamOr> Connect(Duration limit) {
    return WithDeadline(connecting_->Connect(target_), limit);
  }

 private:
  std::optional<FullListener> silent_;
  std::string target_;
  NameAnswer answer_;
  NameLookups lookups_{[this](const std::string&) { return answer_; }};
  const std::unique_ptr<TcpBootstrap> connecting_ = *TcpBootstrap::Create(lookups_);
};

TEST_F(MostlySilentNameTest, ASilentAddressOfANameHidesNoOther) {
  // The kernel tries the silent one for 25 s, and a client waits for 10 s.
  const StreamOr stream = scheduler_.Run(Connect(std::chrono::seconds(10)));
  ASSERT_TRUE(stream.ok()) << stream.status();
  EXPECT_EQ((*stream)->peer(), listener_->address());
}

// Far more of them than are tried within a minute, each for 250 ms.
class ManySilentAddressesTest : public MostlySilentNameTest {
 protected:
  ManySilentAddressesTest() : MostlySilentNameTest(300) {}
};

TEST_F(ManySilentAddressesTest, AllAddressesOfANameShareAShortDeadline) {
  // Its time does not come to the deadline.
  WaitingScheduler standing(WaitingScheduler::Time::kStanding);
  const StreamOr stream = standing.Run(Connect(std::chrono::milliseconds(1)));
  ASSERT_TRUE(stream.ok()) << stream.status();
  EXPECT_EQ((*stream)->peer(), listener_->address());
}

TEST_F(TcpBootstrapTest, RefusedConnectionNamesTargetAndErrno) {
  const HeldPort nobody;
  const absl::Status status = scheduler_.Run(bootstrap_->Connect(nobody.address())).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Says(status, nobody.address())) << status;
  EXPECT_TRUE(Says(status, "ECONNREFUSED")) << status;
}

TEST_F(TcpBootstrapTest, HostNamesAndIpV6Work) {
  for (const std::string address : {"localhost:0", "[::1]:0", "0.0.0.0:0", "[::]:0"}) {
    auto listener = bootstrap_->Listen(address);
    if (!listener.ok() && address.starts_with('[')) {
      GTEST_SKIP() << "this host has no IPv6: " << listener.status();
    }
    ASSERT_TRUE(listener.ok()) << listener.status();
    auto [client, server] = scheduler_.Run(
        WhenAll(bootstrap_->Connect(std::string((*listener)->address())), (*listener)->Accept()));
    EXPECT_TRUE(client.ok()) << client.status();
    EXPECT_TRUE(server.ok()) << server.status();
  }
  // A name with two addresses of which only one is listened on.
  const std::string port = listener_->address().substr(listener_->address().rfind(':'));
  EXPECT_TRUE(scheduler_.Run(bootstrap_->Connect("localhost" + port)).ok());
}

TEST_F(TcpBootstrapTest, EveryDescriptorIsClosedOnExec) {
  const std::vector<int> others = OpenDescriptors();
  auto bootstrap = *TcpBootstrap::Create();
  auto listener = *bootstrap->Listen(kLoopback);
  auto [client, server] = scheduler_.Run(
      WhenAll(bootstrap->Connect(std::string(listener->address())), listener->Accept()));
  int ours = 0;
  for (int fd : OpenDescriptors()) {
    if (std::find(others.begin(), others.end(), fd) != others.end()) continue;
    ++ours;
    EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0) << "descriptor " << fd;
  }
  EXPECT_GE(ours, 4);  // the listener, both ends, and what the thread sleeps on
}

TEST_F(TcpBootstrapTest, ConnectionsSendAtOnceAndNoticeASilentPeer) {
  auto [client, server] = scheduler_.Run(
      WhenAll(bootstrap_->Connect(std::string(listener_->address())), listener_->Accept()));
  const auto option = [](int fd, int level, int name) {
    int value = 0;
    socklen_t bytes = sizeof(value);
    return getsockopt(fd, level, name, &value, &bytes) == 0 ? value : -1;
  };
  int connections = 0;
  for (int fd : OpenDescriptors()) {
    sockaddr_storage peer{};
    socklen_t bytes = sizeof(peer);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &bytes) != 0) continue;
    if (peer.ss_family != AF_INET) continue;
    ++connections;
    EXPECT_NE(option(fd, IPPROTO_TCP, TCP_NODELAY), 0);
    EXPECT_NE(option(fd, SOL_SOCKET, SO_KEEPALIVE), 0);
    EXPECT_EQ(option(fd, IPPROTO_TCP, TCP_KEEPIDLE), 10);
    EXPECT_EQ(option(fd, IPPROTO_TCP, TCP_KEEPINTVL), 5);
    EXPECT_EQ(option(fd, IPPROTO_TCP, TCP_KEEPCNT), 3);
    EXPECT_EQ(option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT), 25000);
  }
  EXPECT_EQ(connections, 2);
}

TEST_F(TcpBootstrapTest, DescriptorsAllComeHome) {
  const size_t before = OpenDescriptors().size();
  for (int round = 0; round < 20; ++round) {
    auto [client, server] = scheduler_.Run(
        WhenAll(bootstrap_->Connect(std::string(listener_->address())), listener_->Accept()));
    Started<StreamOr> given_up(scheduler_, bootstrap_->Connect(std::string(listener_->address())));
    Started<Received> waiting(scheduler_, (*client)->Receive());
    given_up.Abandon();
    waiting.Abandon();
  }
  listener_ = nullptr;
  // The listener had two: its socket, and the reserve for when there are no more. A connection that
  // nobody took may come home later: the thread that finds it closes it behind the listener.
  const TimePoint limit = Clock::Real().Now() + std::chrono::seconds(20);
  while (OpenDescriptors().size() != before - 2 && Clock::Real().Now() < limit) {
    std::this_thread::yield();
  }
  EXPECT_EQ(OpenDescriptors().size(), before - 2);
}

TEST_F(TcpBootstrapTest, AClosedListenerKeepsNoDescriptor) {
  const size_t before = OpenDescriptors().size();
  std::unique_ptr<MessageListener> listener = *bootstrap_->Listen(kLoopback);
  ASSERT_EQ(OpenDescriptors().size(), before + 2);
  // Keeps what the listener shares with its thread.
  const Task<StreamOr> accept = listener->Accept();
  listener = nullptr;
  EXPECT_EQ(OpenDescriptors().size(), before);
}

TEST_F(TcpBootstrapTest, ListenerWithoutDescriptorsServesOnceThereAreSome) {
  CapturedLog log;
  RawPeer first(listener_->address());
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  rlimit none = before;
  none.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  Started<StreamOr> accepting(scheduler_, listener_->Accept());
  std::vector<std::string> lines;
  while (lines.empty()) {
    lines = log.Take();
    std::this_thread::yield();
  }
  EXPECT_FALSE(accepting.done());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  scheduler_.RunUntil([&] { return accepting.done(); });
  EXPECT_TRUE(accepting.result().ok());
  EXPECT_NE(lines[0].find("EMFILE"), std::string::npos) << lines[0];
  EXPECT_TRUE(log.Take().empty());
}

TEST_F(TcpBootstrapTest, ListenerWithoutDescriptorsTellsWhoConnectsWhenToComeAgain) {
  CapturedLog log;
  RawPeer first(listener_->address());
  RawPeer second(listener_->address());
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  // All numbers are taken, apart from the one that the listener keeps in reserve.
  rlimit few = before;
  const std::vector<int> open_now = OpenDescriptors();
  few.rlim_cur = static_cast<rlim_t>(*std::max_element(open_now.begin(), open_now.end())) + 1;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<int> fillers;
  for (int fd = 0; (fd = dup(STDERR_FILENO)) >= 0;) fillers.push_back(fd);
  Started<StreamOr> accepting(scheduler_, listener_->Accept());
  Duration last{};
  for (RawPeer* peer : {&first, &second}) {
    const std::string read = peer->Read(kMaxBootstrapMessageBytes);
    EXPECT_GT(read.size(), 4u);
    const absl::Status told =
        ParseReply(read.substr(std::min<size_t>(read.size(), 4)), {}).status();
    EXPECT_TRUE(absl::IsResourceExhausted(told)) << told;
    EXPECT_TRUE(Says(told, "RLIMIT_NOFILE")) << told;
    const Duration wait = ReadRetryAfter(told).value_or(Duration{});
    EXPECT_GT(wait, last);
    last = wait;
  }
  for (const int fd : fillers) close(fd);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_FALSE(accepting.done());
}

TEST_F(TcpBootstrapTest, DestroyedBootstrapEndsAllThatItMade) {
  auto [client_or, server_or] = scheduler_.Run(
      WhenAll(bootstrap_->Connect(std::string(listener_->address())), listener_->Accept()));
  StreamPtr client = *std::move(client_or);
  StreamPtr server = *std::move(server_or);
  Started<Received> receiving(scheduler_, client->Receive());
  Started<StreamOr> accepting(scheduler_, listener_->Accept());
  Task<StreamOr> connect_later = bootstrap_->Connect(std::string(listener_->address()));
  bootstrap_ = nullptr;
  scheduler_.RunUntil([&] { return receiving.done() && accepting.done(); });
  EXPECT_EQ(receiving.result().status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(accepting.result().status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(scheduler_.Run(std::move(connect_later)).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(scheduler_.Run(server->Receive()).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(scheduler_.Run(server->Send("x")).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(scheduler_.Run(listener_->Accept()).status().code(), absl::StatusCode::kCancelled);
}

TEST_F(TcpBootstrapTest, BootstrapDestroyedInTheMiddleOfConnectsAndAwaitsLeaksNothing) {
  for (int round = 0; round < 50; ++round) {
    auto bootstrap = *TcpBootstrap::Create();
    auto listener = *bootstrap->Listen(kLoopback);
    std::vector<std::unique_ptr<Started<StreamOr>>> connecting(4);
    for (auto& each : connecting) {
      each = std::make_unique<Started<StreamOr>>(
          scheduler_, bootstrap->Connect(std::string(listener->address())));
    }
    Started<StreamOr> accepting(scheduler_, listener->Accept());
    if (round % 2 == 0) scheduler_.RunPending();
    connecting.pop_back();
    bootstrap = nullptr;
    scheduler_.RunUntil([&] {
      for (const auto& each : connecting) {
        if (!each->done()) return false;
      }
      return accepting.done();
    });
  }
}

}  // namespace tcp_bootstrap_test
}  // namespace verbena::internal
