// The shared-memory wire, turn by turn: a peer that does not accept holds up nobody, and is tried a
// few times more. A peer that says much is heard a little at a time, and to the end. Of a peer's
// two connections one may be read later than the other.

#include "verbena/transport/soft/shared_wire.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/support/forbidden_call.h"
#include "tests/support/manual_clock.h"
#include "tests/transport/soft/pid_namespaces.h"
#include "tests/transport/soft/raw_shared_peer.h"
#include "tests/transport/soft/two_processes.h"
#include "verbena/transport/base/process.h"
#include "verbena/transport/soft/address.h"
#include "verbena/transport/soft/control_socket.h"
#include "verbena/transport/soft/engine.h"
#include "verbena/transport/soft/options.h"
#include "verbena/transport/soft/peer.h"
#include "verbena/transport/soft/questions.h"
#include "verbena/transport/soft/shared_memory.h"
#include "verbena/transport/soft/state.h"
#include "verbena/transport/soft/wire.h"

namespace verbena::internal::soft {
namespace shared_wire_test {

// A device without queue pairs, which counts what the wire tells it.
class CountingHost final : public WireHost {
 public:
  std::optional<uint64_t> SendCqOf(uint32_t) override { return std::nullopt; }
  NewLane FinishConnect(const ConnectRequest& request, const std::shared_ptr<Peer>& target,
                        uint64_t) override {
    if (target == nullptr) failed.push_back(request.qpn);
    return {};
  }
  void FailLane(const Peer&, uint64_t) override {}
  void ConnectByTcp(const ConnectRequest&, const absl::Status& why) override {
    by_tcp.push_back(why);
  }
  std::optional<uint64_t> ReceiveCqOf(uint32_t) override { return std::nullopt; }
  bool AcceptLane(std::shared_ptr<Peer>, uint32_t, uint64_t, uint64_t,
                  std::shared_ptr<LaneMemory>) override {
    return false;
  }
  void RemoveLane(const Peer&, uint64_t) override { ++lanes_removed; }
  bool HasCq(uint64_t) override { return false; }
  absl::StatusOr<std::shared_ptr<LanePair>> OpenLanePair(uint64_t, uint64_t, std::shared_ptr<Peer>,
                                                         UniqueFd, const LaneGeometry&,
                                                         const std::shared_ptr<const void>&,
                                                         int) override {
    return absl::UnimplementedError("there is no TCP here");
  }
  void ServePairs(uint64_t) override {}
  void SweepLanes() override {}
  bool IsLocal(const DeviceAddress& address) override { return address == local; }
  std::shared_ptr<Peer> AddPeer(std::shared_ptr<Peer> added) override {
    lost_before_peer = peers_lost;
    if (own_peer != nullptr) return own_peer;
    if (peer_ended) peer = added;
    peer_ended = false;
    return peer;
  }
  void LosePeer(const Peer&) override {
    ++peers_lost;
    peer_ended = true;
  }
  void ReleaseArena(Peer& owner, uint32_t id) override {
    const SharedRegion unused = owner.WithdrawArena(id);
  }
  std::vector<std::shared_ptr<const SharedArena>> SharedArenas() override { return {}; }

  int lanes_removed = 0;
  int peers_lost = 0;
  int lost_before_peer = 0;          // peers_lost when the latest was added
  std::shared_ptr<Peer> peer;        // the latest, of all its connections
  bool peer_ended = true;            // there is none, or it was lost
  DeviceAddress local{};             // of another device of this process; none by default
  std::shared_ptr<Peer> own_peer;    // the address has become that of a device of this process
  std::vector<uint32_t> failed;      // QPs whose target is not reached
  std::vector<absl::Status> by_tcp;  // why: of each request that shared memory does not serve
};

// The test is the engine: it calls Serve().
class SharedWireTest : public testing::Test {
 protected:
  SharedWireTest() { EXPECT_TRUE(wire_.Start().ok()); }

  void Serve() { wire_.Serve(clock_.Now()); }
  // A turn at the time that the wire asks for.
  void ServeNext() {
    ASSERT_NE(wire_.next(), kNever);
    clock_.Advance(wire_.next() - clock_.Now());
    Serve();
  }

  // From here on the device reaches the peer's name.
  void Listen() { listener_ = ControlSocket::Listen(peer_.address()).value(); }
  // Accepts the device's connection to it.
  std::unique_ptr<ControlSocket> Accept() {
    Serve();
    return ControlSocket::Accept(listener_.get()).value();
  }

  // A connection of the peer, which the device has greeted.
  std::unique_ptr<ControlSocket> Greet() {
    auto socket = ControlSocket::Connect(state_.address()).value();
    peer_.SayHello(*socket);
    Serve();
    Serve();
    EXPECT_NE(host_.peer, nullptr);
    EXPECT_EQ(socket->Receive().value().message.kind, ControlMessage::kHello);
    return socket;
  }

  // In a child: greets the device as `peer`, and keeps the connection until the test signals.
  void GreetFrom(Side& side, RawSharedPeer& peer) {
    const auto socket = ControlSocket::Connect(state_.address()).value();
    peer.SayHello(*socket);
    side.Signal();
    side.Await();
  }
  // In the test: the device hears that greeting.
  void HearFrom(Child& child) {
    child.side().Await();
    Serve();
    Serve();
    ASSERT_NE(host_.peer, nullptr);
  }

  ManualClock clock_;
  Engine engine_{clock_, /*threaded=*/true, std::chrono::milliseconds(5)};  // its doorbell alone
  SoftState state_{{.name = "soft9", .clock = &clock_, .profile = SoftProfile()},
                   DeviceShare::Create(/*shared=*/true).value(),
                   {.gid = NewGid(/*predictable=*/false)},
                   /*guid=*/1,
                   engine_};
  CountingHost host_;
  SharedWire wire_{state_, host_};
  RawSharedPeer peer_{state_.address()};
  UniqueFd listener_;  // the peer's, in tests that Listen()
};

// Listens under a name, and has no room for one more connection until one is accepted.
class FullName {
 public:
  explicit FullName(const DeviceAddress& address)
      : listener_(ControlSocket::Listen(address).value()) {
    EXPECT_EQ(listen(listener_.get(), 0), 0);
    first_ = ControlSocket::Connect(address).value();
  }
  absl::StatusOr<std::unique_ptr<ControlSocket>> Accept() {
    return ControlSocket::Accept(listener_.get());
  }

 private:
  UniqueFd listener_;
  std::unique_ptr<ControlSocket> first_;
};

TEST_F(SharedWireTest, APeerThatIsBusyIsReachedOnceItHasRoom) {
  FullName busy(peer_.address());
  for (const uint32_t qpn : {1u, 2u}) wire_.Connect({.qpn = qpn, .address = peer_.address()});
  Serve();
  ServeNext();
  EXPECT_TRUE(host_.by_tcp.empty());
  ASSERT_TRUE(busy.Accept().ok());
  ServeNext();
  const auto socket = busy.Accept();
  ASSERT_TRUE(socket.ok()) << socket.status();
  peer_.SayHello(**socket);
  Serve();
  std::vector<uint32_t> heard;
  for (auto received = (*socket)->Receive(); received.ok(); received = (*socket)->Receive()) {
    heard.push_back(received->message.kind);
  }
  EXPECT_EQ(heard, (std::vector<uint32_t>{ControlMessage::kHello, ControlMessage::kResolve,
                                          ControlMessage::kResolve}));
  EXPECT_TRUE(host_.by_tcp.empty());
}

TEST_F(SharedWireTest, APeerThatStaysBusyIsGivenUpForEachQueuePair) {
  const FullName busy(peer_.address());
  for (const uint32_t qpn : {1u, 2u}) wire_.Connect({.qpn = qpn, .address = peer_.address()});
  Serve();
  for (int i = 0; i < 100 && host_.by_tcp.empty(); ++i) ServeNext();
  ASSERT_EQ(host_.by_tcp.size(), 2u);
  for (const absl::Status& why : host_.by_tcp) {
    EXPECT_TRUE(absl::IsUnavailable(why)) << why;
    EXPECT_NE(why.message().find("backlog"), std::string::npos) << why;
  }
  EXPECT_EQ(wire_.next(), kNever);
}

TEST_F(SharedWireTest, AFewBusyPeersAreTriedAgainAndNoMore) {
  std::vector<std::unique_ptr<FullName>> names;
  for (size_t i = 0; i <= SharedWire::kMaxBusyPeers; ++i) {
    const DeviceAddress address{.gid = NewGid(/*predictable=*/false)};
    names.push_back(std::make_unique<FullName>(address));
    wire_.Connect({.qpn = 1, .address = address});
  }
  Serve();
  EXPECT_EQ(host_.by_tcp.size(), 1u);
}

// The kinds of the messages that wait.
std::vector<uint32_t> Kinds(ControlSocket& socket) {
  std::vector<uint32_t> kinds;
  for (auto one = socket.Receive(); one.ok(); one = socket.Receive()) {
    kinds.push_back(one->message.kind);
  }
  return kinds;
}

TEST_F(SharedWireTest, APeerThatAcceptsAndDoesNotGreetIsGivenUp) {
  Listen();
  wire_.Connect({.qpn = 1, .address = peer_.address()});
  const auto socket = Accept();
  EXPECT_TRUE(host_.by_tcp.empty());
  ServeNext();
  ASSERT_EQ(host_.by_tcp.size(), 1u);
  EXPECT_NE(host_.by_tcp[0].message().find("did not introduce itself in time"), std::string::npos)
      << host_.by_tcp[0];
  EXPECT_EQ(wire_.next(), kNever);
}

TEST_F(SharedWireTest, AProcessThatConnectsAndDoesNotGreetIsGivenUp) {
  const auto socket = ControlSocket::Connect(state_.address()).value();
  Serve();
  ServeNext();
  EXPECT_EQ(socket->Receive().value().message.kind, ControlMessage::kHello);
  EXPECT_TRUE(absl::IsAborted(socket->Receive().status()));
  EXPECT_EQ(wire_.next(), kNever);
}

TEST_F(SharedWireTest, AQueuePairFailsIfItsPeerNeverSaysHowItIsReached) {
  Listen();
  wire_.Connect({.qpn = 1, .address = peer_.address()});
  const auto socket = Accept();
  peer_.SayHello(*socket);
  Serve();
  EXPECT_TRUE(host_.failed.empty());
  clock_.Advance(Questions::kPatience);
  Serve();
  EXPECT_EQ(host_.failed, std::vector<uint32_t>{1});
  EXPECT_EQ(wire_.next(), kNever);
  // An answer that comes late breaks no rule; a second one does.
  const ControlMessage late{.kind = ControlMessage::kResolved, .request = 1};
  ASSERT_TRUE(socket->Send(late).ok());
  Serve();
  EXPECT_EQ(host_.peers_lost, 0);
  ASSERT_TRUE(socket->Send(late).ok());
  Serve();
  EXPECT_EQ(host_.peers_lost, 1);
}

TEST_F(SharedWireTest, APeerThatLeavesManyQuestionsUnansweredIsGivenUp) {
  Listen();
  wire_.Connect({.qpn = 1, .address = peer_.address()});
  const auto socket = Accept();
  peer_.SayHello(*socket);
  Serve();
  for (size_t i = 0; i < Questions::kMaxUnanswered; ++i) {
    const ConnectRequest gone{.qpn = 2, .address = peer_.address(), .remote_qpn = 7};
    wire_.Connect(gone);
    wire_.Forget(gone);
    Serve();
    Kinds(*socket);
  }
  EXPECT_EQ(host_.peers_lost, 0);
  clock_.Advance(Questions::kPatience);
  Serve();
  EXPECT_EQ(host_.peers_lost, 1);
}

TEST_F(SharedWireTest, NobodyIsAskedForAQueuePairThatIsGone) {
  Listen();
  const ConnectRequest gone{.qpn = 1, .address = peer_.address(), .remote_qpn = 7};
  wire_.Connect(gone);
  const auto socket = Accept();
  wire_.Forget(gone);
  Serve();
  peer_.SayHello(*socket);
  Serve();
  EXPECT_EQ(Kinds(*socket), std::vector<uint32_t>{ControlMessage::kHello});
}

TEST_F(SharedWireTest, ARestartedProcessIsNotTakenForTheOneBefore) {
  const auto before = Greet();
  RawSharedPeer restarted(state_.address());
  const auto socket = ControlSocket::Connect(state_.address()).value();
  restarted.SayHello(*socket);
  Serve();
  Serve();
  EXPECT_EQ(host_.peers_lost, 1);
  EXPECT_EQ(host_.lost_before_peer, 1);
  EXPECT_TRUE(absl::IsAborted(before->Receive().status()));
  EXPECT_EQ(socket->Receive().value().message.kind, ControlMessage::kHello);
}

// The kernel tells of its end before the wire reads it: its successor's greeting comes first.
TEST_F(SharedWireTest, AProcessThatHasEndedLeavesItsAddress) {
  Child child([this](Side& side) { GreetFrom(side, peer_); });
  HearFrom(child);
  RawSharedPeer restarted(state_.address());
  const auto socket = ControlSocket::Connect(state_.address()).value();
  restarted.SayHello(*socket);
  Serve();
  child.Kill();
  Serve();
  EXPECT_EQ(host_.peers_lost, 1);
  EXPECT_EQ(host_.lost_before_peer, 1);
  EXPECT_EQ(socket->Receive().value().message.kind, ControlMessage::kHello);
}

TEST_F(SharedWireTest, ADeviceThatHasEndedLeavesItsAddress) {
  Child child([this](Side& side) {
    GreetFrom(side, peer_);
    side.Signal();  // its connection is closed, and the process goes on
    side.Await();
  });
  HearFrom(child);
  RawSharedPeer successor(state_.address());
  const auto socket = ControlSocket::Connect(state_.address()).value();
  successor.SayHello(*socket);
  Serve();
  Side side = child.side();
  side.Signal();
  side.Await();
  Serve();
  EXPECT_EQ(host_.peers_lost, 1);
  EXPECT_EQ(host_.lost_before_peer, 1);
  side.Signal();
  child.Join();
}

// Whether it shows memory of its own, or that of the process whose address it claims.
TEST_F(SharedWireTest, AProcessThatLivesKeepsItsAddress) {
  Child child([this](Side& side) {
    side.Await();
    const auto own = ControlSocket::Connect(state_.address()).value();
    RawSharedPeer(state_.address()).SayHello(*own);
    const auto others = ControlSocket::Connect(state_.address()).value();
    peer_.SayHello(*others);
    side.Signal();
    side.Await();
    for (ControlSocket* socket : {own.get(), others.get()}) {
      EXPECT_EQ(socket->Receive().value().message.kind, ControlMessage::kHello);
      EXPECT_TRUE(absl::IsAborted(socket->Receive().status()));
    }
  });
  const auto socket = Greet();
  const std::shared_ptr<Peer> peer = host_.peer;
  Side side = child.side();
  side.Signal();
  side.Await();
  Serve();
  Serve();
  EXPECT_EQ(host_.peers_lost, 0);
  EXPECT_EQ(host_.peer, peer);
  EXPECT_TRUE(absl::IsUnavailable(socket->Receive().status())) << "the connection goes on";
  side.Signal();
  child.Join();
}

// The one that only claims it came first.
TEST_F(SharedWireTest, TheProcessThatListensUnderAnAddressHasIt) {
  Child child([this](Side& side) {
    RawSharedPeer claimant(state_.address());
    GreetFrom(side, claimant);
  });
  HearFrom(child);
  Listen();
  wire_.Connect({.qpn = 1, .address = peer_.address()});
  const auto socket = Accept();
  peer_.SayHello(*socket);
  Serve();
  EXPECT_EQ(host_.peers_lost, 1);
  EXPECT_EQ(host_.lost_before_peer, 1);
  EXPECT_TRUE(host_.failed.empty());
  child.side().Signal();
  child.Join();
}

TEST_F(SharedWireTest, OnlyOurProcessGreetsUnderTheAddressesOfItsDevices) {
  host_.local = peer_.address();
  Child child([this](Side& side) { GreetFrom(side, peer_); });
  Side side = child.side();
  side.Await();
  Serve();
  Serve();
  EXPECT_EQ(host_.peer, nullptr);
  side.Signal();
  child.Join();
  const auto socket = Greet();
}

TEST_F(SharedWireTest, APeerOfOurProcessThatCameDuringTheGreetingIsNotTheGreetersAndStays) {
  host_.own_peer =
      std::make_shared<Peer>(PeerParts{.address = peer_.address(), .in_process = true});
  Child child([this](Side& side) { GreetFrom(side, peer_); });
  Side side = child.side();
  side.Await();
  Serve();
  Serve();
  EXPECT_EQ(host_.own_peer.use_count(), 1) << "a connection has it";
  side.Signal();
  child.Join();
  Serve();
  EXPECT_EQ(host_.peers_lost, 0);
}

TEST_F(SharedWireTest, ASecondConnectionOfOneProcessEndsNone) {
  const auto first = Greet();
  const auto second = Greet();
  EXPECT_EQ(host_.peers_lost, 0);
}

// The device is in a PID namespace of its own, as in another container. It does not see the
// processes of its peers: the kernel gives it their process ids as 0.
class UnseenProcessTest : public SharedWireTest {
 protected:
  void SetUp() override {
    if (!MayMakePidNamespaces()) GTEST_SKIP() << "no PID namespaces may be made here";
  }

  // For a Child: the device, which has `turns` turns, each when the test asks for it. In turn
  // `dials` it connects to the peer.
  std::function<void(Side&)> Device(int turns, int dials = -1) {
    return InNewPidNamespace([this, turns, dials](Side& side) {
      for (int turn = 0; turn < turns; ++turn) {
        side.Await();
        if (turn == dials) wire_.Connect({.qpn = 1, .address = peer_.address()});
        Serve();
        Serve();
        side.Signal();
      }
      EXPECT_NE(host_.peer, nullptr);
      EXPECT_EQ(host_.peers_lost, 0);
      EXPECT_TRUE(host_.by_tcp.empty());
    });
  }
  static void AwaitTurn(Child& device) {
    Side side = device.side();
    side.Signal();
    side.Await();
  }

  std::unique_ptr<ControlSocket> Dial() {
    auto socket = ControlSocket::Connect(state_.address()).value();
    peer_.SayHello(*socket);
    return socket;
  }
  // Accepts the device's connection to the peer.
  std::unique_ptr<ControlSocket> TakeDial() {
    auto socket = ControlSocket::Accept(listener_.get()).value();
    peer_.SayHello(*socket);
    return socket;
  }
  // Whether the device has the peer's dial, and answers over it. It has one turn.
  static bool IsAnswered(ControlSocket& socket, Child& device) {
    EXPECT_TRUE(socket.Send({.kind = ControlMessage::kResolve}).ok());
    AwaitTurn(device);
    return Kinds(socket) ==
           std::vector<uint32_t>{ControlMessage::kHello, ControlMessage::kResolved};
  }
};

TEST_F(UnseenProcessTest, ItsMemoryAloneProvesNoAddress) {
  Child claimant([this](Side& side) {
    side.Await();
    const auto socket = Dial();
    side.Signal();
    side.Await();
    EXPECT_EQ(socket->Receive().value().message.kind, ControlMessage::kHello);
    EXPECT_TRUE(absl::IsAborted(socket->Receive().status()));
  });
  Child device(Device(/*turns=*/4));
  const auto socket = Dial();
  AwaitTurn(device);
  Side side = claimant.side();
  side.Signal();
  side.Await();
  AwaitTurn(device);
  side.Signal();
  claimant.Join();
  AwaitTurn(device);
  EXPECT_TRUE(IsAnswered(*socket, device)) << "the connection goes on";
  device.Join();
}

TEST_F(UnseenProcessTest, AProcessThatWasDialedMayDial) {
  Child device(Device(/*turns=*/4, /*dials=*/0));
  Listen();
  AwaitTurn(device);
  const auto theirs = TakeDial();
  AwaitTurn(device);
  const auto ours = Dial();
  AwaitTurn(device);
  EXPECT_TRUE(IsAnswered(*ours, device));
  device.Join();
}

TEST_F(UnseenProcessTest, AProcessThatHasDialedMayBeDialed) {
  Child device(Device(/*turns=*/4, /*dials=*/1));
  Listen();
  const auto ours = Dial();
  AwaitTurn(device);
  AwaitTurn(device);
  const auto theirs = TakeDial();
  AwaitTurn(device);
  EXPECT_TRUE(IsAnswered(*ours, device));
  device.Join();
}

// What the peer says of its arenas comes over each of its connections. The device reads one later
// than the other.
class ArenasOfAPeerTest : public SharedWireTest {
 protected:
  ArenasOfAPeerTest() {
    for (size_t i = 0; i < 3; ++i) memory_[i].data()[0] = std::byte{static_cast<uint8_t>(i)};
  }

  // Of its place, the arena before has the number less kMaxArenas.
  static uint32_t IdOf(uint32_t generation) { return 1 + generation * kMaxArenas; }
  void Announce(ControlSocket& socket, uint32_t generation) {
    const SharedRegion& memory = memory_[generation];
    ASSERT_TRUE(socket
                    .Send({.kind = ControlMessage::kArena,
                           .arena = IdOf(generation),
                           .arena_bytes = memory.size()},
                          {memory.fd()})
                    .ok());
    Serve();
  }
  void Withdraw(ControlSocket& socket, uint32_t generation) {
    ASSERT_TRUE(socket.Send({.kind = ControlMessage::kArenaGone, .arena = IdOf(generation)}).ok());
    Serve();
  }
  // Of which arena memory a copy to that one reaches; nothing if it is not mapped.
  std::optional<int> Reached(uint32_t generation) {
    const std::byte* found = host_.peer->Map({.arena = IdOf(generation)}, 1);
    if (found == nullptr) return std::nullopt;
    return static_cast<int>(*found);
  }

  const SharedRegion memory_[3] = {SharedRegion::Create("raw-arena", 4096).value(),
                                   SharedRegion::Create("raw-arena", 4096).value(),
                                   SharedRegion::Create("raw-arena", 4096).value()};
};

TEST_F(ArenasOfAPeerTest, LateWordOfAnArenaThatIsGoneMapsNothing) {
  const auto first = Greet();
  const auto second = Greet();
  Announce(*first, 0);
  EXPECT_EQ(Reached(0), 0);
  Withdraw(*first, 0);
  Announce(*second, 0);
  EXPECT_EQ(Reached(0), std::nullopt);
  Announce(*first, 1);
  EXPECT_EQ(Reached(1), 1);
  EXPECT_EQ(Reached(0), std::nullopt);
  EXPECT_EQ(host_.peers_lost, 0);
}

TEST_F(ArenasOfAPeerTest, LateEndOfAnArenaLeavesTheNextOfItsPlace) {
  const auto first = Greet();
  const auto second = Greet();
  Announce(*first, 0);
  Announce(*second, 0);
  Withdraw(*first, 0);
  Announce(*first, 1);
  Withdraw(*second, 0);
  EXPECT_EQ(Reached(1), 1);
}

TEST_F(ArenasOfAPeerTest, ANewerArenaReplacesOneWhoseEndWasNotReadYet) {
  const auto first = Greet();
  const auto second = Greet();
  Announce(*first, 0);
  Announce(*second, 2);
  EXPECT_EQ(Reached(2), 2);
  EXPECT_EQ(Reached(0), std::nullopt);
  Withdraw(*first, 0);
  Announce(*first, 1);
  Withdraw(*first, 1);
  EXPECT_EQ(Reached(2), 2);
  EXPECT_EQ(Reached(1), std::nullopt);
  EXPECT_EQ(host_.peers_lost, 0);
}

TEST_F(ArenasOfAPeerTest, AnArenaWithoutAPlaceEndsThePeer) {
  const auto socket = Greet();
  ASSERT_TRUE(socket
                  ->Send({.kind = ControlMessage::kArena,
                          .arena = 2 * kMaxArenas,
                          .arena_bytes = memory_[0].size()},
                         {memory_[0].fd()})
                  .ok());
  Serve();
  EXPECT_EQ(host_.peers_lost, 1);
}

TEST_F(SharedWireTest, WhenNoMoreCanBeWatchedAPeerIsRefusedInWords) {
  Listen();
  auto stranger = ControlSocket::Connect(state_.address()).value();
  WithForbiddenCommand(SYS_epoll_ctl, EPOLL_CTL_ADD, ENOSPC, [this] {
    wire_.Connect({.qpn = 1, .address = peer_.address()});
    Serve();
  });
  if (IsSkipped()) return;
  ASSERT_EQ(host_.by_tcp.size(), 1u);
  EXPECT_NE(host_.by_tcp[0].message().find("max_user_watches"), std::string::npos)
      << host_.by_tcp[0];
  EXPECT_FALSE(absl::IsUnavailable(stranger->Receive().status()));
}

TEST_F(SharedWireTest, WithoutADescriptorForItsProcessAPeerIsRefusedInWords) {
  Listen();
  wire_.Connect({.qpn = 1, .address = peer_.address()});
  const auto socket = Accept();
  if (socket->pid_fd() < 0) GTEST_SKIP() << "this kernel has no descriptors of processes";
  peer_.SayHello(*socket);
  WithForbiddenCommand(SYS_fcntl, F_DUPFD_CLOEXEC, EMFILE, [this] { Serve(); });
  if (IsSkipped()) return;
  EXPECT_EQ(host_.peer, nullptr);
  ASSERT_EQ(host_.by_tcp.size(), 1u);
  EXPECT_TRUE(absl::IsResourceExhausted(host_.by_tcp[0])) << host_.by_tcp[0];
}

TEST_F(SharedWireTest, ADoorbellThatMayHoldUpWhoRingsItIsRefused) {
  const UniqueFd waits(eventfd(0, EFD_CLOEXEC));
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_NONBLOCK | O_CLOEXEC), 0);
  const UniqueFd reads(ends[0]);
  const UniqueFd writes(ends[1]);
  for (const int doorbell : {waits.get(), writes.get()}) {
    const auto socket = ControlSocket::Connect(state_.address()).value();
    peer_.SayHelloWith(*socket, doorbell);
    Serve();
    Serve();
    EXPECT_EQ(host_.peer, nullptr);
    EXPECT_EQ(socket->Receive().value().message.kind, ControlMessage::kHello);
    EXPECT_TRUE(absl::IsAborted(socket->Receive().status()));
  }
  const auto socket = Greet();
}

constexpr size_t kAtOnce = Engine::Wire::kMessagesAtOnce;

void SendMany(ControlSocket& socket, const ControlMessage& message, size_t count) {
  for (size_t i = 0; i < count; ++i) ASSERT_TRUE(socket.Send(message).ok());
  ASSERT_FALSE(socket.has_waiting());
}

size_t Answers(ControlSocket& socket) {
  size_t count = 0;
  while (socket.Receive().ok()) ++count;
  return count;
}

TEST_F(SharedWireTest, ATurnAnswersAFewMessagesOfAPeerAndTheNextOneTheOthers) {
  const std::unique_ptr<ControlSocket> socket = Greet();
  SendMany(*socket, {.kind = ControlMessage::kResolve}, kAtOnce + 5);
  Serve();
  EXPECT_EQ(Answers(*socket), kAtOnce);
  Serve();
  EXPECT_EQ(Answers(*socket), 5u);
}

TEST_F(SharedWireTest, ATurnDropsAFewMessagesOfAPeerThatWasGivenUp) {
  std::unique_ptr<ControlSocket> socket = Greet();
  RawSharedPeer::BreakProtocol(*socket);
  SendMany(*socket, {.kind = ControlMessage::kResolve}, kAtOnce + 5);
  socket.reset();
  Serve();
  EXPECT_EQ(host_.peers_lost, 1);
  EXPECT_FALSE(host_.peer->gone());
  Serve();
  EXPECT_TRUE(host_.peer->gone());
}

TEST_F(SharedWireTest, AllThatAProcessSaidBeforeItsEndIsHeard) {
  Child child([this](Side& side) {
    auto socket = ControlSocket::Connect(state_.address()).value();
    peer_.SayHello(*socket);
    side.Signal();
    side.Await();
    // A message that the child left unread would fail the other side ahead of its last words.
    (void)socket->Receive().value();
    SendMany(*socket, {.kind = ControlMessage::kCloseLane}, kAtOnce + 5);
    side.Signal();
    side.Await();
  });
  Side side = child.side();
  side.Await();
  Serve();
  Serve();
  ASSERT_NE(host_.peer, nullptr);
  side.Signal();
  side.Await();
  child.Kill();
  for (int turn = 0; turn < 2; ++turn) Serve();
  EXPECT_EQ(host_.lanes_removed, static_cast<int>(kAtOnce) + 5);
  EXPECT_EQ(host_.peers_lost, 1);
}

}  // namespace shared_wire_test
}  // namespace verbena::internal::soft
