// Proves that what strangers send to the connection manager's ports ends their own connection
// alone: garbage, half messages, silence, messages out of turn, and too many at once.

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/forbidden_call.h"
#include "tests/transport/preload/rdma_cm_ends.h"
#include "verbena/transport/base/process.h"
#include "verbena/transport/preload/cm_loop.h"
#include "verbena/transport/preload/cm_message.h"

namespace verbena::internal::preload {
namespace {

CmMessage SoundMessage(CmKind kind) {
  CmMessage message;
  message.kind = kind;
  if (kind == CmKind::kRequest || kind == CmKind::kReply) {
    message.mtu = 5;
    message.gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
  }
  return message;
}

// A plain TCP socket of somebody who is no connection manager.
class Stranger {
 public:
  // `host` is the last number of its own address, 127.0.0.x.
  explicit Stranger(uint16_t port, uint8_t host = 1)
      : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in own = Loopback(0);
    own.sin_addr.s_addr = htonl(INADDR_LOOPBACK - 1 + host);
    EXPECT_EQ(bind(socket_.get(), AsAddress(own), sizeof(own)), 0);
    sockaddr_in peer = Loopback(port);
    EXPECT_EQ(connect(socket_.get(), AsAddress(peer), sizeof(peer)), 0);
    LimitWaits();
  }
  explicit Stranger(UniqueFd socket) : socket_(std::move(socket)) { LimitWaits(); }

  void Send(const std::string& bytes) {
    EXPECT_EQ(send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  void Send(const CmMessage& message) {
    const auto bytes = EncodeCmMessage(message);
    Send(std::string(bytes.begin(), bytes.end()));
  }
  // Waits for a whole message; its bytes must be sound.
  CmMessage Receive() {
    std::array<uint8_t, kCmMessageBytes> bytes = {};
    EXPECT_EQ(recv(socket_.get(), bytes.data(), bytes.size(), MSG_WAITALL),
              static_cast<ssize_t>(bytes.size()));
    auto message = DecodeCmMessage(bytes);
    EXPECT_TRUE(message.ok()) << message.status();
    return message.ok() ? *message : CmMessage{};
  }
  // Waits until the other side closes; what it sent is dropped.
  void ExpectClosed() {
    std::array<char, 512> bytes;
    ssize_t got = 1;
    while (got > 0) got = recv(socket_.get(), bytes.data(), bytes.size(), 0);
    EXPECT_TRUE(got == 0 || errno == ECONNRESET) << errno;
  }
  bool IsOpen() {
    char byte;
    return recv(socket_.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0 && errno == EAGAIN;
  }

 private:
  // Only a failure takes so long.
  void LimitWaits() {
    const timeval limit{.tv_sec = 20, .tv_usec = 0};
    setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  }

  UniqueFd socket_;
};

class RdmaCmStrangersTest : public RdmaCmEnds {
 protected:
  // After all that strangers did, others connect as ever.
  ~RdmaCmStrangersTest() override {
    if (client != nullptr && server == nullptr) Connect();
  }
};

TEST_F(RdmaCmStrangersTest, GarbageClosesItsConnection) {
  Stranger stranger(port());
  stranger.Send(std::string(kCmMessageBytes, 'g'));
  stranger.ExpectClosed();
  EXPECT_FALSE(passive.Ready());
}

TEST_F(RdmaCmStrangersTest, HalfAMessageIsNoRequest) {
  const auto bytes = EncodeCmMessage(SoundMessage(CmKind::kRequest));
  {
    Stranger stranger(port());
    stranger.Send(std::string(bytes.begin(), bytes.begin() + 100));
  }
  // Another connection's request is not made of it.
  Stranger second(port());
  second.Send(std::string(bytes.begin() + 100, bytes.end()) + std::string(100, '\0'));
  second.ExpectClosed();
  EXPECT_FALSE(passive.Ready());
}

TEST_F(RdmaCmStrangersTest, ARequestMayComeByteAfterByte) {
  Stranger stranger(port());
  const auto bytes = EncodeCmMessage(SoundMessage(CmKind::kRequest));
  for (const uint8_t byte : bytes) stranger.Send(std::string(1, static_cast<char>(byte)));
  server = passive.Expect("RDMA_CM_EVENT_CONNECT_REQUEST");
  EXPECT_NE(server, nullptr);
}

TEST_F(RdmaCmStrangersTest, ConversationsBeginWithARequest) {
  for (const CmKind kind : {CmKind::kReply, CmKind::kReady, CmKind::kReject, CmKind::kDisconnect}) {
    Stranger stranger(port());
    stranger.Send(SoundMessage(kind));
    stranger.ExpectClosed();
  }
  EXPECT_FALSE(passive.Ready());
}

TEST_F(RdmaCmStrangersTest, ARequestAfterARequestEndsTheAttempt) {
  Stranger stranger(port());
  stranger.Send(SoundMessage(CmKind::kRequest));
  server = passive.Expect("RDMA_CM_EVENT_CONNECT_REQUEST");
  stranger.Send(SoundMessage(CmKind::kRequest));
  EXPECT_EQ(passive.Expect("RDMA_CM_EVENT_REJECTED"), server);
  stranger.ExpectClosed();
}

TEST_F(RdmaCmStrangersTest, ARequestThatNamesAnotherHostsGidIsRefused) {
  CmMessage request = SoundMessage(CmKind::kRequest);
  request.gid[12] = 240;  // a reserved address, which no host has
  {
    Stranger stranger(port());
    stranger.Send(request);
    stranger.ExpectClosed();
  }
  // An IPv6 address, too.
  request.gid = {0x20, 1, 0x0d, 0xb8, 9};
  Stranger stranger(port());
  stranger.Send(request);
  stranger.ExpectClosed();
  EXPECT_FALSE(passive.Ready());
}

TEST_F(RdmaCmStrangersTest, SilentConnectionsAreBounded) {
  std::vector<Stranger> strangers;
  for (size_t i = 0; i <= CmAcceptor::kMostSilent; ++i) strangers.emplace_back(port());
  strangers[0].ExpectClosed();
  // One makes way for each that comes. Were they only silent for too long, all would go at once.
  Connect();
  strangers[1].ExpectClosed();
  EXPECT_TRUE(strangers[2].IsOpen());
}

TEST_F(RdmaCmStrangersTest, StrangersWhoStaySilentLockNobodyOut) {
  std::vector<Stranger> strangers;
  for (size_t i = 0; i < CmAcceptor::kMostSilent; ++i) strangers.emplace_back(port());
  Connect();
  strangers[0].ExpectClosed();
}

TEST_F(RdmaCmStrangersTest, AStrangerWithManyConnectionsPushesOutItsOwn) {
  Stranger slow(port());
  std::vector<Stranger> strangers;
  for (size_t i = 0; i <= CmAcceptor::kMostSilent; ++i) strangers.emplace_back(port(), 2);
  strangers[1].ExpectClosed();
  slow.Send(SoundMessage(CmKind::kRequest));
  server = passive.Expect("RDMA_CM_EVENT_CONNECT_REQUEST");
  EXPECT_NE(server, nullptr);
}

TEST_F(RdmaCmStrangersTest, ConnectionsThatHaveGoneCountNoMore) {
  Stranger slow(port());
  for (size_t i = 0; i <= CmAcceptor::kMostSilent; ++i) {
    Stranger gone(port());
    gone.Send(SoundMessage(CmKind::kReady));
    gone.ExpectClosed();
  }
  slow.Send(SoundMessage(CmKind::kRequest));
  server = passive.Expect("RDMA_CM_EVENT_CONNECT_REQUEST");
  EXPECT_NE(server, nullptr);
}

TEST_F(RdmaCmStrangersTest, RequestsThatNobodyTakesAreBounded) {
  // rdma_listen raises small backlogs to this.
  constexpr size_t kBacklog = 128;
  std::vector<Stranger> strangers;
  for (size_t i = 0; i < kBacklog; ++i) {
    strangers.emplace_back(port());
    strangers.back().Send(SoundMessage(CmKind::kRequest));
  }
  Stranger one_more(port());
  one_more.Send(SoundMessage(CmKind::kRequest));
  one_more.ExpectClosed();
  for (size_t i = 0; i < kBacklog; ++i) {
    rdma_cm_id* const id = passive.Expect("RDMA_CM_EVENT_CONNECT_REQUEST");
    ASSERT_NE(id, nullptr);
    rdma_destroy_id(id);
  }
}

// Counts nothing: no request comes.
class NoRequests final : public CmRequestListener {
  bool OnRequest(std::unique_ptr<CmStream>& /*stream*/, const CmMessage& /*message*/) override {
    ADD_FAILURE() << "a request";
    return false;
  }
};

TEST(RdmaCmSilenceTest, SilenceIsLimitedInTime) {
  UniqueFd listening(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in address = Loopback(0);
  socklen_t bytes = sizeof(address);
  ASSERT_EQ(bind(listening.get(), AsAddress(address), bytes), 0);
  ASSERT_EQ(listen(listening.get(), 8), 0);
  ASSERT_EQ(getsockname(listening.get(), AsAddress(address), &bytes), 0);
  NoRequests requests;
  std::unique_ptr<CmAcceptor> acceptor;
  {
    const std::scoped_lock lock(CmLoop::Instance().mutex());
    ASSERT_EQ(CmLoop::Instance().Start(), 0);
    acceptor =
        std::make_unique<CmAcceptor>(std::move(listening), requests, std::chrono::milliseconds(50));
  }
  Stranger silent(ntohs(address.sin_port));
  Stranger slow(ntohs(address.sin_port));
  slow.Send("VbCM");
  silent.ExpectClosed();
  slow.ExpectClosed();
  const std::scoped_lock lock(CmLoop::Instance().mutex());
  acceptor.reset();
}

// Hears of the end of a stream. Calls nothing back.
class LostStream final : public CmStreamOwner {
 public:
  int Await() { return lost_.get_future().get(); }

 private:
  void OnStreamConnected() override { ADD_FAILURE(); }
  void OnStreamMessage(const CmMessage& /*message*/) override { ADD_FAILURE(); }
  void OnStreamLost(int error) override { lost_.set_value(error); }

  std::promise<int> lost_;
};

// As with the connections that strangers have just opened at the kernel's limit of watches.
TEST_F(RdmaCmStrangersTest, AConnectionThatTheKernelDoesNotWatchIsLost) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
  const UniqueFd other(ends[1]);
  LostStream owner;
  std::unique_ptr<CmStream> stream;
  WithForbidden(SYS_epoll_ctl, ENOSPC, [&] {
    const std::scoped_lock lock(CmLoop::Instance().mutex());
    stream = std::make_unique<CmStream>(UniqueFd(ends[0]), owner);
    // Neither a time limit nor something to send makes the loop forget it.
    stream->SetTimeLimit(std::chrono::hours(1));
    EXPECT_TRUE(stream->Send(SoundMessage(CmKind::kReady)));
    stream->ClearTimeLimit();
  });
  if (stream == nullptr) return;
  EXPECT_EQ(owner.Await(), ENOSPC);
  const std::scoped_lock lock(CmLoop::Instance().mutex());
  stream.reset();
}

// A stranger that listens where an id connects.
class RdmaCmStrangeServerTest : public RdmaCmEnds {
 protected:
  RdmaCmStrangeServerTest() {
    listening_ = UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = Loopback(0);
    socklen_t bytes = sizeof(address);
    EXPECT_EQ(bind(listening_.get(), AsAddress(address), bytes), 0);
    EXPECT_EQ(listen(listening_.get(), 8), 0);
    EXPECT_EQ(getsockname(listening_.get(), AsAddress(address), &bytes), 0);
    rdma_destroy_id(client);
    client = Resolved(ntohs(address.sin_port));
    MakeQp(client);
    EXPECT_EQ(rdma_connect(client, nullptr), 0);
  }

  // The connection of `client`, once its request is read.
  Stranger Accept() {
    Stranger stranger(UniqueFd(accept(listening_.get(), nullptr, nullptr)));
    EXPECT_EQ(stranger.Receive().kind, CmKind::kRequest);
    return stranger;
  }

 private:
  UniqueFd listening_;
};

TEST_F(RdmaCmStrangeServerTest, GarbageIsAnError) {
  Stranger stranger = Accept();
  stranger.Send(std::string(kCmMessageBytes, '\xff'));
  const GotEvent event = active.Next();
  EXPECT_EQ(event.name(), "RDMA_CM_EVENT_CONNECT_ERROR");
  EXPECT_EQ(event->status, -EPROTO);
}

TEST_F(RdmaCmStrangeServerTest, AServerThatHangsUpRejects) {
  {
    Stranger stranger = Accept();
  }
  const GotEvent event = active.Next();
  EXPECT_EQ(event.name(), "RDMA_CM_EVENT_REJECTED");
  EXPECT_EQ(event->status, -ECONNRESET);
}

TEST_F(RdmaCmStrangeServerTest, ASecondReplyEndsTheConnection) {
  Stranger stranger = Accept();
  stranger.Send(SoundMessage(CmKind::kReply));
  EXPECT_EQ(active.Expect("RDMA_CM_EVENT_ESTABLISHED"), client);
  EXPECT_EQ(stranger.Receive().kind, CmKind::kReady);
  stranger.Send(SoundMessage(CmKind::kReply));
  EXPECT_EQ(active.Expect("RDMA_CM_EVENT_DISCONNECTED"), client);
  stranger.ExpectClosed();
}

TEST_F(RdmaCmStrangeServerTest, ALostConnectionIsADisconnect) {
  {
    Stranger stranger = Accept();
    stranger.Send(SoundMessage(CmKind::kReply));
    EXPECT_EQ(active.Expect("RDMA_CM_EVENT_ESTABLISHED"), client);
  }
  EXPECT_EQ(active.Expect("RDMA_CM_EVENT_DISCONNECTED"), client);
}

}  // namespace
}  // namespace verbena::internal::preload
