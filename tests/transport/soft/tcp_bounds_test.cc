// One host can take no more of a device by connecting over TCP than leaves something for others:
// of memory for rings, connections, and sockets that have not greeted. A device has the name
// that it claims only if it is at that address. Nobody waits for ever for a peer that is silent or
// that the device cannot watch, and no peer fills the log. The devices are stepped by hand, and
// each loopback address is a source.

#include <arpa/inet.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tests/support/forbidden_call.h"
#include "tests/support/manual_clock.h"
#include "tests/transport/base/captured_log.h"
#include "tests/transport/soft/qp_end.h"
#include "tests/transport/soft/raw_tcp_peer.h"
#include "verbena/transport/base/socket.h"
#include "verbena/transport/soft/completion_queue.h"
#include "verbena/transport/soft/lane.h"
#include "verbena/transport/soft/tcp_wire.h"

namespace verbena::internal::soft {
namespace tcp_bounds_test {

using Verdict = TcpGreeting::Verdict;
using Kind = TcpControl::Kind;

constexpr const char* kGreedy = "127.0.0.2";
constexpr const char* kModest = "127.0.0.3";

ibv_gid MappedGidOf(const char* ipv4) {
  ibv_gid gid{};
  gid.raw[10] = gid.raw[11] = 0xff;
  EXPECT_EQ(inet_pton(AF_INET, ipv4, gid.raw + 12), 1);
  return gid;
}

class TcpBoundsTest : public testing::Test {
 protected:
  void Make(TcpWireOptions tcp = {}) {
    end_.reset();
    tcp.address = "127.0.0.1";
    device_ = SoftDevice::Create({.name = "tcp0",
                                  .engine_thread = false,
                                  .shared_memory = false,
                                  .clock = &clock_,
                                  .tcp = tcp})
                  .value();
    end_ = std::make_unique<QpEnd>(*device_, QpEndOptions{});
  }

  void Step() {
    for (int i = 0; i < 8; ++i) device_->Step();
  }
  // The device's session on `fd` is open: it answers what a peer asks.
  void ExpectAnswers(int fd) {
    const auto resolve =
        Encode(TcpControl{.kind = Kind::kResolve, .qpn = end_->qp()->qp_num, .request = 7});
    EXPECT_EQ(send(fd, resolve.data(), resolve.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(resolve.size()));
    Step();
    std::array<std::byte, TcpControl::kBytes> answer{};
    EXPECT_EQ(recv(fd, answer.data(), answer.size(), MSG_DONTWAIT),
              static_cast<ssize_t>(answer.size()));
  }
  // Lets the device answer.
  template <size_t kBytes>
  std::array<std::byte, kBytes> Receive(RawSocket& socket) {
    for (int i = 0; i < 100 && !socket.IsReadable(); ++i) Step();
    std::array<std::byte, kBytes> bytes{};
    EXPECT_TRUE(socket.IsReadable() && socket.Receive(bytes));
    return bytes;
  }
  TcpGreeting Greet(RawSocket& socket, const TcpGreeting& greeting) {
    EXPECT_TRUE(socket.Send(Encode(greeting)));
    auto parsed = ParseGreeting(Receive<TcpGreeting::kBytes>(socket));
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    TcpGreeting none;
    none.verdict = Verdict::kVersion;
    return parsed.value_or(none);
  }
  TcpControl Hear(RawSocket& socket) {
    auto parsed = ParseControl(Receive<TcpControl::kBytes>(socket));
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    return parsed.value_or(TcpControl{});
  }
  bool IsClosed(RawSocket& socket) {
    for (int i = 0; i < 100 && !socket.IsReadable(); ++i) Step();
    return socket.IsReadable() && socket.IsClosed();
  }

  DeviceAddress NameOf(uint16_t lid) { return {.gid = end_->gid(), .lid = lid}; }

  // A control connection under the name of `lid`.
  struct Session {
    RawSocket control;
    Verdict verdict = Verdict::kVersion;
    uint64_t secret = 0;
    DeviceAddress name{};
    const char* from = nullptr;
  };
  Session Open(const char* from, uint16_t lid) {
    Session session{.control = RawSocket(device_->tcp_port(), from), .name = NameOf(lid)};
    const TcpGreeting answer = Greet(session.control, {.sender = session.name, .session = 77});
    session.verdict = answer.verdict;
    session.secret = answer.session;
    session.from = from;
    return session;
  }
  uint64_t CqOf(Session& session) {
    EXPECT_TRUE(session.control.Send(
        Encode(TcpControl{.kind = Kind::kResolve, .qpn = end_->qp()->qp_num, .request = 7})));
    return Hear(session.control).receiver_cq;
  }
  // Lanes from the CQ `ours` of that peer, with rings of `lines` each.
  std::pair<RawSocket, Verdict> OpenLanes(const Session& session, uint64_t ours, uint64_t theirs,
                                          uint32_t lines = 2048) {
    RawSocket lanes(device_->tcp_port(), session.from);
    const Verdict verdict =
        Greet(lanes, {.kind = TcpGreeting::Kind::kLanes,
                      .sender = session.name,
                      .session = session.secret,
                      .sender_cq = ours,
                      .receiver_cq = theirs,
                      .geometry = {.request_lines = lines, .answer_lines = lines}})
            .verdict;
    return {std::move(lanes), verdict};
  }

  void ConnectTo(uint16_t lid) {
    ASSERT_TRUE(end_->ToInit(end_->qp()).ok());
    ASSERT_TRUE(end_->ToRtr(end_->qp(), end_->gid(), RawTcpPeer::kQpn, lid).ok());
    ASSERT_TRUE(end_->ToRts(end_->qp()).ok());
    Step();
  }

  ManualClock clock_;
  std::unique_ptr<SoftDevice> device_;
  std::unique_ptr<QpEnd> end_;
};

TEST_F(TcpBoundsTest, OneHostTakesAHalfOfTheMemoryForRingsAtMost) {
  CapturedLog log;
  constexpr size_t kBudget = size_t{64} << 20;
  constexpr uint32_t kLines = (4u << 20) / kLineBytes;
  Make({.lane_bytes = kBudget});
  Session greedy = Open(kGreedy, 1);
  ASSERT_EQ(greedy.verdict, Verdict::kAccepted);
  const uint64_t cq = CqOf(greedy);
  std::vector<RawSocket> taken;
  Verdict verdict = Verdict::kAccepted;
  while (verdict == Verdict::kAccepted && taken.size() < 100) {
    auto [lanes, answer] = OpenLanes(greedy, 1000 + taken.size(), cq, kLines);
    verdict = answer;
    if (verdict == Verdict::kAccepted) taken.push_back(std::move(lanes));
  }
  EXPECT_EQ(verdict, Verdict::kShare);
  // 8 MiB for each, and the device's own rings.
  EXPECT_EQ(taken.size(), 3u);
  bool told = false;
  for (const std::string& line : log.Take()) {
    told |= line.find("127.0.0.2 holds") != std::string::npos &&
            line.find("lane_bytes") != std::string::npos;
  }
  EXPECT_TRUE(told);
  // Others get theirs.
  Session modest = Open(kModest, 2);
  EXPECT_EQ(OpenLanes(modest, 1, cq, kLines).second, Verdict::kAccepted);
  // Connections that are closed count no more.
  taken.clear();
  Step();
  clock_.Advance(std::chrono::seconds(1));
  EXPECT_EQ(OpenLanes(greedy, 2000, cq, kLines).second, Verdict::kAccepted);
}

TEST_F(TcpBoundsTest, MemoryForRingsSufficesForOneConnectionOfEachSourceAtLeast) {
  constexpr size_t kRings = (512 + 512) << 10;
  const auto with = [](size_t bytes) {
    return SoftDevice::Create({.engine_thread = false,
                               .shared_memory = false,
                               .tcp = TcpWireOptions{.address = "127.0.0.1", .lane_bytes = bytes}});
  };
  EXPECT_EQ(with(4 * kRings).status().code(), absl::StatusCode::kInvalidArgument);
  // And their headers.
  constexpr size_t kLeast = 4 * (kRings + sizeof(LaneHeader));
  EXPECT_EQ(with(kLeast - 1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(with(kLeast).ok());
  Make({.lane_bytes = kLeast});
  Session one = Open(kGreedy, 1);
  const uint64_t cq = CqOf(one);
  EXPECT_EQ(OpenLanes(one, 1, cq, 2048).second, Verdict::kAccepted);
}

// All connections have something in each turn, the other source's last.
TEST_F(TcpBoundsTest, ManyConnectionsOfOneSourceDelayNoOther) {
  constexpr size_t kMany = 128;
  Make();
  Session greedy = Open(kGreedy, 1);
  Session modest = Open(kModest, 2);
  const uint64_t cq = CqOf(greedy);
  std::vector<RawSocket> sockets;
  for (size_t i = 0; i <= kMany; ++i) {
    auto [lanes, verdict] = OpenLanes(i < kMany ? greedy : modest, 1000 + i, cq);
    ASSERT_EQ(verdict, Verdict::kAccepted);
    sockets.push_back(std::move(lanes));
  }
  // Requests of the other source that were served.
  const auto served = [&] {
    auto& receives = *static_cast<CompletionQueue*>(end_->cq());
    std::lock_guard<SpinLock> lock(receives.lock());
    uint64_t lines = 0;
    receives.in_lanes().ForEach([&](InLane& lane) {
      if (lane.peer().address() == modest.name) lines = lane.requests().position();
    });
    return lines;
  };
  // To nobody: each one is refused.
  const std::vector<std::byte> request =
      ChunkOf({}, MessageOf({.opcode = Opcode::kSend, .flags = kFirst | kLast}, {}));
  for (uint64_t round = 1; round <= 8; ++round) {
    for (RawSocket& socket : sockets) ASSERT_TRUE(socket.Send(request));
    while (sockets.back().Unread() != 0) sched_yield();
    int polls = 0;
    for (ibv_wc wc; served() < round && polls < 100; ++polls) {
      ASSERT_EQ(ibv_poll_cq(end_->cq(), 1, &wc), 0);
    }
    EXPECT_LE(polls, 2);
  }
}

// Sets RLIMIT_NOFILE while it lives.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t limit) {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    rlimit lower = before_;
    lower.rlim_cur = limit;
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &lower), 0);
  }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;
  ~DescriptorLimit() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST_F(TcpBoundsTest, OneHostTakesAHalfOfTheConnectionsAtMost) {
  constexpr rlim_t kDescriptors = 400;
  DescriptorLimit limit(kDescriptors);
  Make();
  std::vector<Session> sessions;
  uint16_t lid = 1;
  do {
    sessions.push_back(Open(kGreedy, lid++));
  } while (sessions.back().verdict == Verdict::kAccepted && lid < kDescriptors);
  EXPECT_EQ(sessions.back().verdict, Verdict::kShare);
  EXPECT_EQ(sessions.size() - 1, kDescriptors / 4 * 3 / 2);
  EXPECT_EQ(Open(kModest, lid).verdict, Verdict::kAccepted);
}

// A client may have a server reach for one address after the other, and never be there.
TEST_F(TcpBoundsTest, PeerThatNobodyWaitsForIsDialedNoLonger) {
  constexpr rlim_t kDescriptors = 400;
  DescriptorLimit limit(kDescriptors);
  Make();
  for (uint16_t lid = 1; lid < kDescriptors; ++lid) {
    const QpHandle qp = end_->AddQp();
    ASSERT_TRUE(end_->ToInit(qp.get()).ok());
    ASSERT_TRUE(end_->ToRtr(qp.get(), end_->gid(), RawTcpPeer::kQpn, lid).ok());
    Step();
  }
  EXPECT_EQ(Open("127.0.0.1", kDescriptors).verdict, Verdict::kAccepted);
}

TEST_F(TcpBoundsTest, HostThatOpensManySocketsPushesOutItsOwn) {
  Make();
  RawSocket modest(device_->tcp_port(), kModest);
  Step();
  std::vector<std::unique_ptr<RawSocket>> silent;
  for (size_t i = 0; i < TcpWire::kMaxSilent + 20; ++i) {
    silent.push_back(std::make_unique<RawSocket>(device_->tcp_port(), kGreedy));
    if (i % 16 == 0) Step();
  }
  Step();
  EXPECT_TRUE(IsClosed(*silent.front()));
  EXPECT_EQ(Greet(modest, {.sender = NameOf(2), .session = 77}).verdict, Verdict::kAccepted);
}

TEST_F(TcpBoundsTest, DeviceThatClaimsTheGidOfAnotherHostIsRefused) {
  CapturedLog log;
  Make();
  // A reserved address, which no host has.
  ibv_gid other = MappedGidOf("240.0.0.9");
  RawSocket stranger(device_->tcp_port(), kGreedy);
  const TcpGreeting greeting{.sender = {.gid = other, .lid = 9}, .session = 77};
  EXPECT_EQ(Greet(stranger, greeting).verdict, Verdict::kAddress);
  EXPECT_TRUE(IsClosed(stranger));
  bool told = false;
  for (const std::string& line : log.Take()) {
    told |= line.find("at 127.0.0.2 that claims the GID of 240.0.0.9") != std::string::npos;
  }
  EXPECT_TRUE(told);
  Make({.any_source = true});
  RawSocket behind_nat(device_->tcp_port(), kGreedy);
  EXPECT_EQ(Greet(behind_nat, greeting).verdict, Verdict::kAccepted);
}

// A device of the test's own, at a port where it really listens.
class Owner {
 public:
  // `address`: "" for every address of this host.
  explicit Owner(const std::string& address = "127.0.0.1")
      : listener_(ListenTcp(address, 0).value()) {}

  uint16_t lid() const { return listener_.address.lid; }
  bool IsDialed() {
    pollfd dialed{.fd = listener_.socket.get(), .events = POLLIN, .revents = 0};
    return poll(&dialed, 1, 0) == 1;
  }
  // The device's connection to it.
  UniqueFd Accept() {
    auto accepted = AcceptSocket(listener_.socket.get(), "the device");
    EXPECT_TRUE(accepted.ok()) << accepted.status();
    return accepted.ok() ? std::move(accepted->fd) : UniqueFd();
  }

 private:
  TcpWireListener listener_;
};

TcpGreeting GreetingOn(int fd) {
  std::array<std::byte, TcpGreeting::kBytes> bytes{};
  EXPECT_EQ(recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT), static_cast<ssize_t>(bytes.size()));
  auto parsed = ParseGreeting(bytes);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.value_or(TcpGreeting{});
}

void AnswerOn(int fd, const TcpGreeting& greeting) {
  const auto bytes = Encode(greeting);
  EXPECT_EQ(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
}

// A client may claim addresses where somebody listens, whoever it is. No time passes.
class TcpUnwantedTest : public TcpBoundsTest {
 protected:
  // Has the device greet under one address after the other, for queue pairs that are gone before
  // `answer` is called.
  void DialForNobody(const std::function<void()>& answer) {
    for (rlim_t i = 1; i <= kDescriptors; ++i) {
      {
        const QpHandle qp = end_->AddQp();
        const ibv_gid claimed = MappedGidOf(("127.0.1." + std::to_string(i)).c_str());
        ASSERT_TRUE(end_->ToInit(qp.get()).ok());
        ASSERT_TRUE(end_->ToRtr(qp.get(), claimed, RawTcpPeer::kQpn, everywhere_.lid()).ok());
        Step();
      }
      Step();
      answer();
      Step();
    }
  }

  // More than it takes to hold all connections.
  static constexpr rlim_t kDescriptors = 160;
  DescriptorLimit limit_{kDescriptors};
  Owner everywhere_{""};
};

TEST_F(TcpUnwantedTest, AddressesThatDoNotAnswerTakeFewConnections) {
  Make();
  DialForNobody([] {});
  EXPECT_TRUE(everywhere_.IsDialed());
  EXPECT_EQ(Open(kModest, 1).verdict, Verdict::kAccepted);
}

TEST_F(TcpUnwantedTest, AddressesThatCloseTakeNothing) {
  Make();
  DialForNobody([&] { GreetingOn(everywhere_.Accept().get()); });
  EXPECT_EQ(Open(kModest, 1).verdict, Verdict::kAccepted);
}

TEST_F(TcpUnwantedTest, AddressesThatSayThatTheyDialTakeNothing) {
  Make();
  DialForNobody([&] {
    const UniqueFd socket = everywhere_.Accept();
    GreetingOn(socket.get());
    AnswerOn(socket.get(), {.verdict = Verdict::kDuplicate, .sender = NameOf(1), .session = 0});
  });
  EXPECT_EQ(Open(kModest, 1).verdict, Verdict::kAccepted);
}

// The peer had the greeting before the queue pair was gone.
TEST_F(TcpBoundsTest, PeerThatAnswersWhenNobodyWaitsAnyMoreHasASession) {
  Make();
  Owner peer;
  {
    const QpHandle qp = end_->AddQp();
    ASSERT_TRUE(end_->ToInit(qp.get()).ok());
    ASSERT_TRUE(end_->ToRtr(qp.get(), end_->gid(), RawTcpPeer::kQpn, peer.lid()).ok());
    Step();
  }
  Step();
  const UniqueFd socket = peer.Accept();
  GreetingOn(socket.get());
  AnswerOn(socket.get(), {.sender = NameOf(peer.lid()), .session = 88});
  Step();
  ExpectAnswers(socket.get());
}

TEST_F(TcpBoundsTest, NameGoesToTheDeviceThatListensUnderIt) {
  Make();
  Owner owner;
  Session squatter = Open(kGreedy, owner.lid());
  ASSERT_EQ(squatter.verdict, Verdict::kAccepted);
  clock_.Advance(TcpWire::kProbePause);
  EXPECT_EQ(Open("127.0.0.1", owner.lid()).verdict, Verdict::kDuplicate);
  Step();
  // The device looks who listens there.
  UniqueFd socket = owner.Accept();
  Step();
  const TcpGreeting greeting = GreetingOn(socket.get());
  EXPECT_EQ(greeting.kind, TcpGreeting::Kind::kControl);
  EXPECT_NE(greeting.session, squatter.secret);
  AnswerOn(socket.get(), {.sender = NameOf(owner.lid()), .session = 88});
  EXPECT_TRUE(IsClosed(squatter.control));
  // The session is the owner's.
  ExpectAnswers(socket.get());
}

TEST_F(TcpBoundsTest, DeviceThatListensThereUnderAnotherNameEndsNoSession) {
  Make();
  Owner other;
  Session peer = Open("127.0.0.1", other.lid());
  clock_.Advance(TcpWire::kProbePause);
  EXPECT_EQ(Open(kGreedy, other.lid()).verdict, Verdict::kDuplicate);
  Step();
  UniqueFd socket = other.Accept();
  Step();
  GreetingOn(socket.get());
  AnswerOn(socket.get(), {.sender = NameOf(1), .session = 88});
  Step();
  EXPECT_NE(CqOf(peer), 0u);
}

TEST_F(TcpBoundsTest, SessionOfAPeerThatStandsByItSurvivesAStranger) {
  Make();
  Owner owner;
  Session true_one = Open("127.0.0.1", owner.lid());
  clock_.Advance(TcpWire::kProbePause);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Open(kGreedy, owner.lid()).verdict, Verdict::kDuplicate);
  }
  Step();
  UniqueFd socket = owner.Accept();
  Step();
  GreetingOn(socket.get());
  AnswerOn(socket.get(),
           {.verdict = Verdict::kDuplicate, .sender = NameOf(owner.lid()), .session = 0});
  Step();
  EXPECT_NE(CqOf(true_one), 0u);
  // Strangers have it dialed no more often than once in a while.
  EXPECT_EQ(Open(kGreedy, owner.lid()).verdict, Verdict::kDuplicate);
  Step();
  std::array<std::byte, 1> byte{};
  EXPECT_EQ(recv(socket.get(), byte.data(), byte.size(), MSG_DONTWAIT), 0);
  EXPECT_FALSE(owner.IsDialed());
}

// The device dials, and it is the answer that asks for much.
TEST_F(TcpBoundsTest, QueuePairFailsIfItsPeerWantsMoreMemoryThanItsShare) {
  Make({.lane_bytes = size_t{8} << 20});
  Owner peer;
  ConnectTo(peer.lid());
  UniqueFd control = peer.Accept();
  GreetingOn(control.get());
  AnswerOn(control.get(), {.sender = NameOf(peer.lid()), .session = 88});
  Step();
  std::array<std::byte, TcpControl::kBytes> bytes{};
  ASSERT_EQ(recv(control.get(), bytes.data(), bytes.size(), MSG_DONTWAIT),
            static_cast<ssize_t>(bytes.size()));
  const auto resolved = Encode(TcpControl{.kind = Kind::kResolved,
                                          .found = true,
                                          .request = ParseControl(bytes).value().request,
                                          .receiver_cq = 5});
  ASSERT_EQ(send(control.get(), resolved.data(), resolved.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(resolved.size()));
  Step();
  UniqueFd lanes = peer.Accept();
  TcpGreeting greeting = GreetingOn(lanes.get());
  EXPECT_EQ(greeting.kind, TcpGreeting::Kind::kLanes);
  greeting.sender = NameOf(peer.lid());
  greeting.geometry.request_lines = (8u << 20) / kLineBytes;
  AnswerOn(lanes.get(), greeting);
  Step();
  ASSERT_EQ(end_->PostSend(8, end_->SendSge(0, 8)), 0);
  ibv_wc wc{};
  ASSERT_EQ(ibv_poll_cq(end_->cq(), 1, &wc), 1);
  EXPECT_EQ(wc.status, IBV_WC_RETRY_EXC_ERR);
  // Its session stands.
  Step();
  std::array<std::byte, 1> byte{};
  EXPECT_EQ(recv(control.get(), byte.data(), byte.size(), MSG_DONTWAIT), -1);
}

TEST_F(TcpBoundsTest, QueuePairFailsIfItsPeerNeverSaysHowItIsReached) {
  Make();
  Session peer = Open("127.0.0.1", 1);
  ConnectTo(1);
  const TcpControl resolve = Hear(peer.control);
  ASSERT_EQ(resolve.kind, Kind::kResolve);
  ASSERT_EQ(end_->PostSend(8, end_->SendSge(0, 8)), 0);
  clock_.Advance(std::chrono::seconds(9));
  Step();
  ibv_wc wc{};
  EXPECT_EQ(ibv_poll_cq(end_->cq(), 1, &wc), 0);
  clock_.Advance(std::chrono::seconds(2));
  Step();
  ASSERT_EQ(ibv_poll_cq(end_->cq(), 1, &wc), 1);
  EXPECT_EQ(wc.status, IBV_WC_RETRY_EXC_ERR);
  // A peer that was only slow keeps its session.
  ASSERT_TRUE(peer.control.Send(Encode(TcpControl{
      .kind = Kind::kResolved, .found = true, .request = resolve.request, .receiver_cq = 5})));
  EXPECT_NE(CqOf(peer), 0u);
  // One answer is enough.
  ASSERT_TRUE(peer.control.Send(Encode(TcpControl{
      .kind = Kind::kResolved, .found = true, .request = resolve.request, .receiver_cq = 5})));
  EXPECT_TRUE(IsClosed(peer.control));
}

// The kernel bounds what one user's epolls watch.
class TcpUnwatchedTest : public TcpBoundsTest {
 protected:
  // Returns the lines that the device logs while it may watch nothing new.
  std::vector<std::string> StepUnwatched() {
    CapturedLog log;
    WithForbiddenCommand(SYS_epoll_ctl, EPOLL_CTL_ADD, ENOSPC, [this] { Step(); });
    return log.Take();
  }
  static bool Names(const std::vector<std::string>& lines, const std::string& part) {
    return std::ranges::any_of(lines, [&](const std::string& line) {
      return line.find(part) != std::string::npos &&
             line.find("max_user_watches") != std::string::npos;
    });
  }
};

TEST_F(TcpUnwatchedTest, WhoConnectsIsClosedAtOnce) {
  Make();
  RawSocket unwatched(device_->tcp_port(), kGreedy);
  const std::vector<std::string> lines = StepUnwatched();
  if (IsSkipped()) return;
  EXPECT_TRUE(Names(lines, "from 127.0.0.2")) << testing::PrintToString(lines);
  EXPECT_TRUE(IsClosed(unwatched));
  // The device goes on.
  EXPECT_EQ(Open(kGreedy, 1).verdict, Verdict::kAccepted);
}

TEST_F(TcpUnwatchedTest, ADialFailsAndLeavesThePeerItsTurn) {
  Make();
  Owner peer;
  ASSERT_TRUE(end_->ToInit(end_->qp()).ok());
  ASSERT_TRUE(end_->ToRtr(end_->qp(), end_->gid(), RawTcpPeer::kQpn, peer.lid()).ok());
  ASSERT_TRUE(end_->ToRts(end_->qp()).ok());
  const std::vector<std::string> lines = StepUnwatched();
  if (IsSkipped()) return;
  EXPECT_TRUE(Names(lines, "to ")) << testing::PrintToString(lines);
  ASSERT_EQ(end_->PostSend(8, end_->SendSge(0, 8)), 0);
  // Less than a dial's time.
  clock_.Advance(std::chrono::seconds(2));
  Step();
  ibv_wc wc{};
  ASSERT_EQ(ibv_poll_cq(end_->cq(), 1, &wc), 1);
  EXPECT_EQ(wc.status, IBV_WC_RETRY_EXC_ERR);
}

TEST_F(TcpBoundsTest, PeerThatBreaksConnectionsAgainAndAgainWritesFewLines) {
  Make();
  Session peer = Open("127.0.0.1", 1);
  const uint64_t cq = CqOf(peer);
  CapturedLog log;
  for (uint64_t i = 0; i < 40; ++i) {
    auto [lanes, verdict] = OpenLanes(peer, 1000 + i, cq);
    ASSERT_EQ(verdict, Verdict::kAccepted);
    lanes.Send(std::vector<std::byte>(64, std::byte{0x5a}));
    EXPECT_TRUE(IsClosed(lanes));
    // And whole sessions.
    Session other = Open("127.0.0.1", static_cast<uint16_t>(100 + i));
    ASSERT_EQ(other.verdict, Verdict::kAccepted);
    other.control.Reset();
    Step();
  }
  EXPECT_LE(log.Take().size(), 16u);
}

}  // namespace tcp_bounds_test
}  // namespace verbena::internal::soft
