// Two QPs in two processes lose no byte and no wake-up over the shared-memory wire. Peers that die,
// freeze or talk nonsense harm nobody else.

#include <sched.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/support/in_a_child.h"
#include "tests/transport/soft/exchanges.h"
#include "tests/transport/soft/qp_end.h"
#include "tests/transport/soft/raw_shared_peer.h"
#include "tests/transport/soft/two_processes.h"
#include "verbena/transport/base/process.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/soft/address.h"
#include "verbena/transport/soft/control_socket.h"

namespace verbena::internal::soft {
namespace shared_memory_test {

constexpr int kRounds = 3'000;

TEST(SharedMemoryTest, BytesCrossBetweenProcessesThatPoll) { PingPong({}, kRounds, false, false); }
TEST(SharedMemoryTest, NoWakeUpIsLostBetweenProcessesThatSleep) {
  PingPong({}, kRounds, true, true);
}
TEST(SharedMemoryTest, NoWakeUpIsLostWhenOnlyThePeerSleeps) { PingPong({}, kRounds, false, true); }

TEST(SharedMemoryTest, LargeMessagesAndOneSidedOperationsArriveWhole) {
  ExchangeLargeOperations({});
}

// Receives until it is killed.
void ReceiveForever(Side& side) {
  Process process({.with_channel = true});
  PostReceives(process.endpoint, 32);
  side.Connect(process.endpoint);
  while (true) {
    const ibv_wc wc = AwaitByPolling(process.endpoint.cq());
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    ASSERT_EQ(
        process.endpoint.PostReceive(wc.wr_id, process.endpoint.ReceiveSge(wc.wr_id * 64, 64)), 0);
  }
}

TEST(SharedMemoryTest, PeerKilledInTheMiddleEndsOurWorkAndHarmsNobodyElse) {
  Child victim(ReceiveForever);
  Child bystander(ReceiveForever);
  Process process({.with_channel = true});
  QpEnd& endpoint = process.endpoint;
  victim.side().Connect(endpoint);
  QpHandle to_bystander = endpoint.AddQp();
  const Address theirs = bystander.side().Exchange(
      {.gid = endpoint.gid(), .qpn = to_bystander->qp_num, .rkey = 0, .receive_buffer = 0});
  ASSERT_TRUE(endpoint.ToInit(to_bystander.get()).ok());
  ASSERT_TRUE(endpoint.ToRtr(to_bystander.get(), theirs.gid, theirs.qpn).ok());
  ASSERT_TRUE(endpoint.ToRts(to_bystander.get()).ok());

  // Sends stay outstanding to the victim all the time, while it dies.
  int outstanding = 0;
  bool killed = false;
  ibv_wc_status first_failure = IBV_WC_SUCCESS;
  for (int round = 0; first_failure == IBV_WC_SUCCESS; ++round) {
    while (outstanding < 8) {
      ASSERT_EQ(endpoint.PostSend(0, endpoint.SendSge(0, 64)), 0);
      ++outstanding;
    }
    if (round == 1000) {
      victim.Kill();
      killed = true;
    }
    // After the death the engine alone must end what is outstanding.
    const ibv_wc wc = killed ? AwaitByEvents(endpoint) : AwaitByPolling(endpoint.cq());
    --outstanding;
    first_failure = wc.status;
  }
  EXPECT_EQ(first_failure, IBV_WC_RETRY_EXC_ERR);
  while (outstanding-- > 0) EXPECT_EQ(AwaitByEvents(endpoint).status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(process.device->QueryQp(endpoint.qp(), IBV_QP_STATE)->qp_state, IBV_QPS_ERR);
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(endpoint.PostSend(i, endpoint.SendSge(0, 64), IBV_SEND_SIGNALED, to_bystander.get()),
              0);
    ASSERT_EQ(AwaitByPolling(endpoint.cq()).status, IBV_WC_SUCCESS);
  }
}

TEST(SharedMemoryTest, StoppedPeerHoldsUpNobodyElseAndGoesOnLater) {
  Child sleeper(ReceiveForever);
  Child other(ReceiveForever);
  Process process({.with_channel = true});
  QpEnd& endpoint = process.endpoint;
  sleeper.side().Connect(endpoint);
  QpHandle to_other = endpoint.AddQp();
  const Address theirs = other.side().Exchange(
      {.gid = endpoint.gid(), .qpn = to_other->qp_num, .rkey = 0, .receive_buffer = 0});
  ASSERT_TRUE(endpoint.ToInit(to_other.get()).ok());
  ASSERT_TRUE(endpoint.ToRtr(to_other.get(), theirs.gid, theirs.qpn).ok());
  ASSERT_TRUE(endpoint.ToRts(to_other.get()).ok());
  ASSERT_EQ(endpoint.PostSend(0, endpoint.SendSge(0, 64)), 0);
  ASSERT_EQ(AwaitByPolling(endpoint.cq()).status, IBV_WC_SUCCESS);

  sleeper.Stop();
  for (uint64_t i = 0; i < 8; ++i) ASSERT_EQ(endpoint.PostSend(i, endpoint.SendSge(0, 64)), 0);
  for (uint64_t i = 100; i < 1100; ++i) {
    ASSERT_EQ(endpoint.PostSend(i, endpoint.SendSge(0, 64), IBV_SEND_SIGNALED, to_other.get()), 0);
    const ibv_wc wc = AwaitByPolling(endpoint.cq());
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    ASSERT_EQ(wc.wr_id, i) << "a send to the stopped peer completed";
  }
  sleeper.Continue();
  for (uint64_t i = 0; i < 8; ++i) {
    const ibv_wc wc = AwaitByEvents(endpoint);
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.wr_id, i);
  }
}

ptrdiff_t OpenDescriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return std::distance(begin(all), end(all));
}

// A peer that lives long, and has a CQ for each connection to our one.
TEST(SharedMemoryTest, ALaneIsFreedWhoseTargetEndedWhileNothingWasUnderWay) {
  constexpr int kConnections = 24;
  constexpr int kFirst = 4;
  Child child([](Side& side) {
    const auto device = SoftDevice::Create().value();
    for (int i = 0; i < kConnections; ++i) {
      QpEnd endpoint(*device, {});
      ASSERT_TRUE(endpoint.ToInit(endpoint.qp()).ok());
      PostReceives(endpoint, 1);
      side.Connect(endpoint);
      ASSERT_EQ(AwaitByPolling(endpoint.cq()).status, IBV_WC_SUCCESS);
      side.Await();
      endpoint.qp_handle().Reset();
      endpoint.cq_handle().Reset();
      side.Signal();
    }
  });
  Process process;
  QpEnd& endpoint = process.endpoint;
  ptrdiff_t before = 0;
  for (int i = 0; i < kConnections; ++i) {
    if (i != 0) {
      endpoint.qp_handle() = endpoint.AddQp();
      ASSERT_TRUE(endpoint.ToInit(endpoint.qp()).ok());
    }
    child.side().Connect(endpoint);
    ASSERT_EQ(endpoint.PostSend(1, endpoint.SendSge(0, 8)), 0);
    ASSERT_EQ(AwaitByPolling(endpoint.cq()).status, IBV_WC_SUCCESS);
    ibv_wc wc;
    for (int turn = 0; turn < 256; ++turn) ASSERT_EQ(ibv_poll_cq(endpoint.cq(), 1, &wc), 0);
    endpoint.qp_handle().Reset();
    child.side().Signal();
    child.side().Await();
    if (i == kFirst) before = OpenDescriptors();
  }
  EXPECT_LT(OpenDescriptors() - before, (kConnections - kFirst) / 2);
  child.Join();
}

TEST(SharedMemoryTest, MessagesOfAPeerThatExitedAreStillDelivered) {
  Child child([](Side& side) {
    Process process;
    side.Connect(process.endpoint);
    ASSERT_EQ(process.endpoint.SendText(0, "first words", 0), 0);
    // Once they are there the connection stands: a post returns with its message in the lane. The
    // engine has read the first words: a poll takes what it did before.
    side.Await();
    ibv_wc none;
    ASSERT_EQ(ibv_poll_cq(process.endpoint.cq(), 1, &none), 0);
    for (uint64_t i = 1; i < 4; ++i) ASSERT_EQ(process.endpoint.SendText(i, "last words", 0), 0);
    _exit(0);
  });
  Process process({.with_channel = true});
  PostReceives(process.endpoint, 4);
  child.side().Connect(process.endpoint);
  ASSERT_EQ(AwaitByEvents(process.endpoint).status, IBV_WC_SUCCESS);
  child.side().Signal();
  child.Join();
  for (int i = 1; i < 4; ++i) {
    ASSERT_EQ(AwaitByPolling(process.endpoint.cq()).status, IBV_WC_SUCCESS);
    EXPECT_EQ(process.endpoint.ReceivedText(i * 64, 10), "last words");
  }
}

TEST(SharedMemoryTest, GidThatNobodyAnswersForEndsSendsWithRetryExceeded) {
  Process process({.with_channel = true});
  QpEnd& endpoint = process.endpoint;
  ibv_gid nobody = endpoint.gid();
  nobody.raw[15] ^= 1;
  EXPECT_EQ(process.device->AwaitPeer(endpoint.qp()).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(endpoint.ToRtr(endpoint.qp(), nobody, 77).ok());
  EXPECT_EQ(process.device->AwaitPeer(endpoint.qp()).code(), absl::StatusCode::kUnavailable);
  ASSERT_TRUE(endpoint.ToRts(endpoint.qp()).ok());
  ASSERT_EQ(endpoint.SendText(0, "anybody?"), 0);
  EXPECT_EQ(AwaitByEvents(endpoint).status, IBV_WC_RETRY_EXC_ERR);
}

int RawConnection(const ibv_gid& gid) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::string name = "verbena-soft/";
  for (uint8_t byte : gid.raw) {
    char hex[3];
    std::snprintf(hex, sizeof(hex), "%02x", byte);
    name += hex;
  }
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address),
                    static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())),
            0);
  return fd;
}

// Reads until the device hangs up.
void ExpectHangUp(int fd) {
  char bytes[4096];
  ssize_t count;
  while ((count = recv(fd, bytes, sizeof(bytes), 0)) > 0) {
  }
  EXPECT_TRUE(count == 0 || errno == ECONNRESET);
  close(fd);
}

TEST(SharedMemoryTest, ConnectionThatTalksNonsenseIsHungUpOnAndTheDeviceGoesOn) {
  Process process({.with_channel = true});
  for (size_t bytes : {1u, 24u, 88u, 2000u}) {
    const int fd = RawConnection(process.endpoint.gid());
    std::vector<char> nonsense(bytes, 0x5a);
    ASSERT_EQ(send(fd, nonsense.data(), bytes, 0), static_cast<ssize_t>(bytes));
    ExpectHangUp(fd);
  }
  // Itself is the nearest peer to show that it still serves.
  QpEnd other(*process.device, {.with_channel = true});
  ASSERT_TRUE(other.ToInit(other.qp()).ok());
  PostReceives(other, 1);
  ASSERT_TRUE(other.ToRtr(other.qp(), process.endpoint.gid(), process.endpoint.qp()->qp_num).ok());
  ASSERT_TRUE(process.endpoint.ToRtr(process.endpoint.qp(), other.gid(), other.qp()->qp_num).ok());
  ASSERT_TRUE(process.endpoint.ToRts(process.endpoint.qp()).ok());
  ASSERT_EQ(process.endpoint.SendText(0, "alive"), 0);
  EXPECT_EQ(AwaitByEvents(other).status, IBV_WC_SUCCESS);
}

// Sends a message over `queue` of `a`'s, to `b`.
void ExpectDelivery(QpEnd& a, ibv_qp* queue, QpEnd& b) {
  ASSERT_EQ(a.PostSend(1, a.SendSge(0, 8), IBV_SEND_SIGNALED, queue), 0);
  EXPECT_EQ(AwaitInTime(a.cq()).status, IBV_WC_SUCCESS);
  EXPECT_EQ(AwaitInTime(b.cq()).status, IBV_WC_SUCCESS);
}

Address GidOf(QpEnd& endpoint) {
  return {.gid = endpoint.gid(), .qpn = 0, .rkey = 0, .receive_buffer = 0};
}

// Whether the device hangs up instead of answering.
bool IsRefused(ControlSocket& socket) {
  (void)socket.Send({.kind = ControlMessage::kResolve, .request = 1});
  while (true) {
    const auto received = socket.Receive();
    if (received.ok() && received->message.kind == ControlMessage::kResolved) return false;
    if (!received.ok() && !absl::IsUnavailable(received.status())) return true;
    sched_yield();
  }
}

TEST(SharedMemoryTest, NoOtherProcessSpeaksForADeviceOfThisOne) {
  Child child([](Side& side) {
    const DeviceAddress one{.gid = side.Exchange({}).gid};
    const DeviceAddress other{.gid = side.Exchange({}).gid};
    RawSharedPeer peer(one);
    {
      const auto as_itself = ControlSocket::Connect(one).value();
      const auto as_other = ControlSocket::Connect(one).value();
      peer.Claim(*as_itself, one.gid);
      peer.Claim(*as_other, other.gid);
      EXPECT_TRUE(IsRefused(*as_itself));
      EXPECT_TRUE(IsRefused(*as_other));
    }
    // The device has seen the end of these when it has greeted another one.
    peer.Greet();
  });
  Process one;
  const auto other = SoftDevice::Create().value();
  QpEnd target(*other, {.shared_receives = true});
  PostReceives(target, 3);
  Connect(one.endpoint, target);
  ExpectDelivery(one.endpoint, one.endpoint.qp(), target);
  child.side().Exchange(GidOf(one.endpoint));
  child.side().Exchange(GidOf(target));
  child.Join();
  ExpectDelivery(one.endpoint, one.endpoint.qp(), target);
  const QpHandle later = one.endpoint.AddQp();
  const QpHandle its_target = target.AddQp();
  ConnectQps(one.endpoint, later.get(), target, its_target.get());
  ExpectDelivery(one.endpoint, later.get(), target);
}

// The other process claims the address before the device is made.
TEST(SharedMemoryTest, ADeviceOfThisProcessHasItsAddressWhoeverClaimedIt) {
  Child child([](Side& side) {
    RawSharedPeer peer({.gid = side.Exchange({}).gid});
    const auto socket = peer.Greet();
    side.Signal();
    side.Await();
  });
  Process one;
  Side side = child.side();
  side.Exchange(GidOf(one.endpoint));
  side.Await();
  const RawSharedPeer claimant({.gid = one.endpoint.gid()});
  const auto other = SoftDevice::Create({.gid = claimant.address().gid}).value();
  QpEnd target(*other, {.shared_receives = true});
  PostReceives(target, 2);
  Connect(one.endpoint, target);
  ExpectDelivery(one.endpoint, one.endpoint.qp(), target);
  side.Signal();
  child.Join();
  RawSharedPeer bystander({.gid = one.endpoint.gid()}, 2);
  const auto after_its_end = bystander.Greet();
  ExpectDelivery(one.endpoint, one.endpoint.qp(), target);
}

constexpr uid_t kNobody = 65534;

// Connects a QP here to one that the device of another process does not have, and waits for that
// device. `become` makes of the other process what it is.
absl::Status ReachOf(const std::function<void()>& become) {
  Child child([&](Side& side) {
    become();
    Process process;
    side.Exchange({.gid = process.endpoint.gid(), .qpn = 0, .rkey = 0, .receive_buffer = 0});
    side.Await();
  });
  Process process;
  QpEnd& endpoint = process.endpoint;
  Side side = child.side();
  const Address theirs = side.Exchange({});
  EXPECT_TRUE(endpoint.ToRtr(endpoint.qp(), theirs.gid, 0xabcdef).ok());
  absl::Status reach = process.device->AwaitPeer(endpoint.qp());
  side.Signal();
  child.Join();
  return reach;
}

// The device answers for itself; that it has no such QP, the first send tells.
TEST(SharedMemoryTest, ADeviceThatIsThereAnswersAlsoForAQueuePairThatItDoesNotHave) {
  EXPECT_EQ(ReachOf([] {}), absl::OkStatus());
}

// The first of them cannot be sent: the peer greets, and takes nothing more.
TEST(SharedMemoryTest, EachQueuePairHearsThatItsPeerTakesNoRequests) {
  Process process;
  QpEnd& endpoint = process.endpoint;
  RawSharedPeer peer({.gid = endpoint.gid()}, 1);
  const UniqueFd listener = ControlSocket::Listen(peer.address()).value();
  QpHandle other = endpoint.AddQp();
  ASSERT_TRUE(endpoint.ToInit(other.get()).ok());
  for (ibv_qp* qp : {endpoint.qp(), other.get()}) {
    ASSERT_TRUE(endpoint.ToRtr(qp, peer.address().gid, RawSharedPeer::kQpn).ok());
  }
  absl::StatusOr<std::unique_ptr<ControlSocket>> socket = absl::UnavailableError("");
  while (absl::IsUnavailable(socket.status())) socket = ControlSocket::Accept(listener.get());
  ASSERT_TRUE(socket.ok()) << socket.status();
  // The device has looked at both requests by the time that it has answered another peer twice.
  RawSharedPeer bystander({.gid = endpoint.gid()}, 2);
  const std::unique_ptr<ControlSocket> answered = bystander.Greet();
  ASSERT_EQ(shutdown((*socket)->fd(), SHUT_RD), 0);
  peer.SayHello(**socket);
  for (ibv_qp* qp : {endpoint.qp(), other.get()}) {
    const absl::Status reach = process.device->AwaitPeer(qp);
    EXPECT_NE(reach.message().find("sending to another soft device"), std::string::npos) << reach;
  }
}

TEST(SharedMemoryTest, ADeviceOfAnotherUserIsNotReachedAndTheReasonIsNamed) {
  if (!SucceedsInAChild([] { return seteuid(kNobody) == 0; }))
    GTEST_SKIP() << "this user cannot become another one";
  const absl::Status status = ReachOf([] { ASSERT_EQ(seteuid(kNobody), 0); });
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
  EXPECT_NE(status.message().find("belongs to user 65534"), std::string::npos) << status;
}

TEST(SharedMemoryTest, ProcessOfAnotherUserIsRefused) {
  if (!SucceedsInAChild([] { return seteuid(kNobody) == 0; }))
    GTEST_SKIP() << "this user cannot become another one";
  Child child([](Side& side) {
    // Before any thread exists, and for this process alone.
    ASSERT_EQ(seteuid(kNobody), 0);
    const Address theirs = side.Exchange({});
    ExpectHangUp(RawConnection(theirs.gid));
  });
  Process process;
  child.side().Exchange({.gid = process.endpoint.gid(), .qpn = 0, .rkey = 0, .receive_buffer = 0});
  child.Join();
}

}  // namespace shared_memory_test
}  // namespace verbena::internal::soft
