// Two QPs reach each other over TCP, in two processes and in one, over IPv4 and IPv6: no byte and
// no wake-up is lost, many QPs share one connection, and a peer that dies or stops reading harms
// nobody else.

#include <dirent.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/held_port.h"
#include "tests/transport/soft/exchanges.h"
#include "tests/transport/soft/qp_end.h"
#include "tests/transport/soft/test_wire.h"
#include "tests/transport/soft/two_processes.h"
#include "verbena/transport/base/process.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/soft/control_socket.h"
#include "verbena/transport/soft/user_memory.h"

namespace verbena::internal::soft {
namespace tcp_wire_test {

using testing::HasSubstr;

SoftDeviceOptions Tcp(const std::string& address = "127.0.0.1") {
  return {.name = "tcp0", .shared_memory = false, .tcp = TcpWireOptions{.address = address}};
}

struct TcpProcess : Process {
  explicit TcpProcess(const QpEndOptions& options = {}, const SoftDeviceOptions& wire = Tcp())
      : Process(options, wire) {}
};

constexpr int kRounds = 2'000;

TEST(TcpWireTest, BytesCrossBetweenProcessesThatPoll) { PingPong(Tcp(), kRounds, false, false); }
TEST(TcpWireTest, BytesCrossOverIpv6) {
  if (!HasIpv6()) GTEST_SKIP() << "this machine has no IPv6";
  PingPong(Tcp("::1"), kRounds, false, false);
}
TEST(TcpWireTest, NoWakeUpIsLostBetweenProcessesThatSleep) { PingPong(Tcp(), kRounds, true, true); }
TEST(TcpWireTest, NoWakeUpIsLostWhenOnlyThePeerSleeps) { PingPong(Tcp(), kRounds, false, true); }

TEST(TcpWireTest, LargeMessagesAndOneSidedOperationsArriveWhole) { ExchangeLargeOperations(Tcp()); }

// The kernel refuses to send what may not be read, and its socket tells nobody. The pages stay
// reserved, so that no thread's memory takes their place.
TEST(TcpWireTest, AProcessThatSleepsHearsThatLentMemoryIsGone) {
  GuardUserMemory();
  TcpProcess target;
  Process process({.with_channel = true}, Tcp());
  QpEnd& endpoint = process.endpoint;
  Connect(endpoint, target.endpoint);
  // One fragment, lent whole: a short rest would be copied when it is posted.
  constexpr uint32_t kBytes = 8192;
  void* const memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  MrHandle region(
      *process.device,
      process.device->RegMr(endpoint.pd(), memory, kBytes, IBV_ACCESS_LOCAL_WRITE).value());
  const auto write = [&] {
    return endpoint.PostOneSided(
        IBV_WR_RDMA_WRITE, 1,
        {.addr = reinterpret_cast<uintptr_t>(memory), .length = kBytes, .lkey = region->lkey},
        reinterpret_cast<uint64_t>(target.endpoint.receive_buffer()), target.endpoint.mr()->rkey);
  };
  // The engine dials, and sends what waits for that: from here on posts send by themselves.
  ASSERT_EQ(write(), 0);
  ASSERT_EQ(AwaitByEvents(endpoint).status, IBV_WC_SUCCESS);
  ASSERT_EQ(mprotect(memory, kBytes, PROT_NONE), 0);
  // An event of the first write, if one is left, would be taken for the second's.
  while (endpoint.device().GetCqEvent(endpoint.channel()).ok()) {
    endpoint.device().AckCqEvents(endpoint.cq(), 1);
  }
  ASSERT_EQ(ibv_req_notify_cq(endpoint.cq(), 0), 0);
  ASSERT_EQ(write(), 0);
  // Nobody looks at the CQ before its event.
  pollfd waiting{.fd = endpoint.channel()->fd, .events = POLLIN, .revents = 0};
  ASSERT_EQ(poll(&waiting, 1, /*timeout=*/60'000), 1) << "a wake-up was lost";
  EXPECT_EQ(AwaitByEvents(endpoint).status, IBV_WC_RETRY_EXC_ERR);
  munmap(memory, kBytes);
}

TEST(TcpWireTest, QpOfAKilledPeerFailsAndOthersGoOn) {
  Child victim([](Side& side) {
    TcpProcess process;
    PostReceives(process.endpoint, 4);
    side.Connect(process.endpoint);
    side.Await();
  });
  Child other([](Side& side) {
    TcpProcess process;
    PostReceives(process.endpoint, 4);
    side.Connect(process.endpoint);
    Echo(process.endpoint, 10, false);
    side.Await();
  });
  TcpProcess process;
  QpEnd& endpoint = process.endpoint;
  QpHandle to_other = endpoint.AddQp();
  ASSERT_TRUE(endpoint.ToInit(to_other.get()).ok());
  PostReceives(endpoint, 4);
  const Address theirs = victim.side().Connect(endpoint);
  const Address others = other.side().Exchange({.gid = endpoint.gid(),
                                                .qpn = to_other->qp_num,
                                                .rkey = 0,
                                                .receive_buffer = 0,
                                                .lid = endpoint.lid()});
  ASSERT_TRUE(endpoint.ToRtr(to_other.get(), others.gid, others.qpn, others.lid).ok());
  ASSERT_TRUE(endpoint.ToRts(to_other.get()).ok());
  std::thread killer([&] { victim.Kill(); });
  EXPECT_EQ(WriteUntilItFails(endpoint, theirs, 4096), IBV_WC_RETRY_EXC_ERR);
  killer.join();
  ibv_wc wc;
  while (ibv_poll_cq(endpoint.cq(), 1, &wc) == 1) EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
  // The receives of the other QP are its own.
  for (int i = 0; i < 4; ++i) {
    ibv_sge sge = endpoint.ReceiveSge(1024 + i * 64, 64);
    ibv_recv_wr wr{.wr_id = 100, .next = nullptr, .sg_list = &sge, .num_sge = 1};
    ibv_recv_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_recv(to_other.get(), &wr, &bad), 0);
  }
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(endpoint.PostSend(1, endpoint.SendSge(0, 8), IBV_SEND_SIGNALED, to_other.get()), 0);
    for (int ended = 0; ended < 2; ++ended) {
      wc = AwaitByPolling(endpoint.cq());
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
      if (wc.opcode != IBV_WC_RECV) continue;
      ibv_sge sge = endpoint.ReceiveSge(1024, 64);
      ibv_recv_wr wr{.wr_id = 100, .next = nullptr, .sg_list = &sge, .num_sge = 1};
      ibv_recv_wr* bad = nullptr;
      ASSERT_EQ(ibv_post_recv(to_other.get(), &wr, &bad), 0);
    }
  }
  other.side().Signal();
  other.Join();
}

TEST(TcpWireTest, QpToAPortWhereNobodyListensFails) {
  TcpProcess process;
  QpEnd& endpoint = process.endpoint;
  const HeldPort nobody;
  ASSERT_TRUE(endpoint.ToRtr(endpoint.qp(), endpoint.gid(), 0x4001, nobody.port()).ok());
  ASSERT_TRUE(endpoint.ToRts(endpoint.qp()).ok());
  ASSERT_EQ(endpoint.PostSend(0, endpoint.SendSge(0, 8)), 0);
  EXPECT_EQ(AwaitByPolling(endpoint.cq()).status, IBV_WC_RETRY_EXC_ERR);
}

TEST(TcpWireTest, QpToANumberThatNobodyHasFails) {
  TcpProcess process;
  TcpProcess other;
  QpEnd& endpoint = process.endpoint;
  ASSERT_TRUE(
      endpoint.ToRtr(endpoint.qp(), other.endpoint.gid(), 0x4fff, other.endpoint.lid()).ok());
  ASSERT_TRUE(endpoint.ToRts(endpoint.qp()).ok());
  ASSERT_EQ(endpoint.PostSend(0, endpoint.SendSge(0, 8)), 0);
  EXPECT_EQ(AwaitByPolling(endpoint.cq()).status, IBV_WC_RETRY_EXC_ERR);
}

TEST(TcpWireTest, DeviceIsNamedByItsAddressAndPort) {
  auto device = SoftDevice::Create(Tcp()).value();
  ibv_gid gid = device->QueryGid(1, 0).value();
  const uint8_t mapped[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
  EXPECT_EQ(std::memcmp(gid.raw, mapped, sizeof(mapped)), 0);
  EXPECT_TRUE(device->tcp());
  EXPECT_EQ(device->QueryPort(1)->lid, device->tcp_port());
  if (!HasIpv6()) GTEST_SKIP() << "this machine has no IPv6";
  auto v6 = SoftDevice::Create(Tcp("::1")).value();
  gid = v6->QueryGid(1, 0).value();
  EXPECT_EQ(gid.raw[15], 1);
  EXPECT_EQ(gid.raw[11], 0);
  auto plain = SoftDevice::Create().value();
  EXPECT_FALSE(plain->tcp());
  EXPECT_EQ(plain->QueryPort(1)->lid, 0);
}

TEST(TcpWireTest, DeviceThatListensEverywhereIsNamedByAnAddressThatOthersCanDial) {
  for (const char* everywhere : {"", "0.0.0.0", "::"}) {
    auto device = SoftDevice::Create(Tcp(everywhere)).value();
    const ibv_gid gid = device->QueryGid(1, 0).value();
    const auto unnamed = [](uint8_t byte) { return byte == 0; };
    EXPECT_FALSE(std::all_of(std::begin(gid.raw) + 12, std::end(gid.raw), unnamed)) << everywhere;
  }
}

TEST(TcpWireTest, PortThatIsTakenAndAnAddressThatIsNoneAreRefused) {
  auto first = SoftDevice::Create(Tcp()).value();
  SoftDeviceOptions options = Tcp();
  options.tcp->port = first->tcp_port();
  const absl::Status taken = SoftDevice::Create(options).status();
  EXPECT_EQ(taken.code(), absl::StatusCode::kFailedPrecondition) << taken;
  const std::string port = std::to_string(first->tcp_port());
  EXPECT_THAT(std::string(taken.message()), HasSubstr("TCP port " + port + " of 127.0.0.1"));
  // By name, link-local, and of a range that is kept for examples (RFC 5737).
  for (const char* address : {"localhost", "fe80::1", "203.0.113.1"}) {
    const absl::Status none = SoftDevice::Create(Tcp(address)).status();
    EXPECT_EQ(none.code(), absl::StatusCode::kInvalidArgument) << none;
    EXPECT_THAT(std::string(none.message()), HasSubstr(address));
  }
}

// As a process of another user may: the name follows from the address and the port.
TEST(TcpWireTest, ADeviceWhoseNameForThisHostIsTakenIsReachedByTcp) {
  const HeldPort port;
  TcpProcess far;
  const UniqueFd taken =
      ControlSocket::Listen({.gid = far.endpoint.gid(), .lid = port.port()}).value();
  SoftDeviceOptions options = Tcp();
  options.shared_memory = true;
  options.tcp->port = port.port();
  Process near({}, options);
  Connect(near.endpoint, far.endpoint);
  PostReceives(far.endpoint, 1);
  ASSERT_EQ(near.endpoint.SendText(1, "hello"), 0);
  EXPECT_EQ(AwaitByPolling(far.endpoint.cq()).status, IBV_WC_SUCCESS);
  EXPECT_EQ(AwaitByPolling(near.endpoint.cq()).status, IBV_WC_SUCCESS);
  EXPECT_EQ(far.endpoint.ReceivedText(0, 5), "hello");
}

TEST(TcpWireTest, AnySourceOfTheEnvironmentIsZeroOrOne) {
  for (const char* wrong : {"yes", "true", "2", " 1"}) {
    setenv("VERBENA_SOFT_ANY_SOURCE", wrong, /*overwrite=*/1);
    const absl::Status status = SoftDevice::Create(Tcp()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("VERBENA_SOFT_ANY_SOURCE is \"" + std::string(wrong) + "\""));
  }
  for (const char* right : {"", "0", "1"}) {
    setenv("VERBENA_SOFT_ANY_SOURCE", right, /*overwrite=*/1);
    EXPECT_TRUE(SoftDevice::Create(Tcp()).ok()) << right;
  }
  unsetenv("VERBENA_SOFT_ANY_SOURCE");
}

TEST(TcpWireTest, LeastRingOutOfRangeIsRefused) {
  SoftDeviceOptions options = Tcp();
  for (const uint32_t bytes : {0u, 64u << 10, (128u << 10) + 64, 32u << 20}) {
    options.tcp->least_ring_bytes = bytes;
    const absl::Status status = SoftDevice::Create(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bytes;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("least_ring_bytes is " + std::to_string(bytes)));
  }
  for (const uint32_t bytes : {128u << 10, 16u << 20}) {
    options.tcp->least_ring_bytes = bytes;
    EXPECT_TRUE(SoftDevice::Create(options).ok()) << bytes;
  }
}

TEST(TcpWireTest, LidAloneNamesADeviceOfThisHost) {
  TcpProcess a;
  TcpProcess b;
  PostReceives(b.endpoint, 1);
  for (auto [from, to] : {std::pair{&a, &b}, std::pair{&b, &a}}) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_4096;
    attr.dest_qp_num = to->endpoint.qp()->qp_num;
    attr.max_dest_rd_atomic = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.dlid = to->endpoint.lid();
    ASSERT_TRUE(from->device
                    ->ModifyQp(from->endpoint.qp(), attr,
                               IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                   IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)
                    .ok());
    ASSERT_TRUE(from->endpoint.ToRts(from->endpoint.qp()).ok());
  }
  ASSERT_EQ(a.endpoint.SendText(1, "here"), 0);
  EXPECT_EQ(AwaitByPolling(b.endpoint.cq()).status, IBV_WC_SUCCESS);
  EXPECT_EQ(b.endpoint.ReceivedText(0, 4), "here");
}

TEST(TcpWireTest, QpsOfOneDeviceReachEachOther) {
  TcpProcess process;
  QpEnd& endpoint = process.endpoint;
  QpHandle other = endpoint.AddQp();
  ASSERT_TRUE(endpoint.ToInit(other.get()).ok());
  ASSERT_TRUE(endpoint.ToRtr(endpoint.qp(), endpoint.gid(), other->qp_num, endpoint.lid()).ok());
  ASSERT_TRUE(
      endpoint.ToRtr(other.get(), endpoint.gid(), endpoint.qp()->qp_num, endpoint.lid()).ok());
  ASSERT_TRUE(endpoint.ToRts(endpoint.qp()).ok());
  ASSERT_TRUE(endpoint.ToRts(other.get()).ok());
  PostReceives(endpoint, 1);
  ASSERT_EQ(endpoint.PostSend(5, endpoint.SendSge(0, 8), 0, other.get()), 0);
  EXPECT_EQ(AwaitByPolling(endpoint.cq()).opcode, IBV_WC_RECV);
}

// Connections between CQs, of which each end is a descriptor of this process.
size_t Sockets() {
  size_t count = 0;
  DIR* directory = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(directory)) {
    char target[64] = {};
    const std::string path = std::string("/proc/self/fd/") + entry->d_name;
    if (readlink(path.c_str(), target, sizeof(target) - 1) > 0 &&
        std::strncmp(target, "socket:", 7) == 0) {
      ++count;
    }
  }
  closedir(directory);
  return count;
}

TEST(TcpWireTest, ManyQpsShareOneConnectionAndOneThatIsBlockedHoldsUpNoOther) {
  constexpr int kQps = 32;
  const size_t before = Sockets();
  TcpProcess a;
  TcpProcess b;
  std::vector<QpHandle> ours;
  std::vector<QpHandle> theirs;
  for (int i = 0; i < kQps; ++i) {
    ours.push_back(a.endpoint.AddQp());
    theirs.push_back(b.endpoint.AddQp());
    ConnectQps(a.endpoint, ours[i].get(), b.endpoint, theirs[i].get());
  }
  // The first one has no receive, and is retried for ever.
  for (int i = 1; i < kQps; ++i) {
    ibv_sge sge = b.endpoint.ReceiveSge(i * 64, 64);
    ibv_recv_wr wr{.wr_id = uint64_t(i), .next = nullptr, .sg_list = &sge, .num_sge = 1};
    ibv_recv_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_recv(theirs[i].get(), &wr, &bad), 0);
  }
  for (int i = 0; i < kQps; ++i) {
    ASSERT_EQ(a.endpoint.PostSend(i, a.endpoint.SendSge(0, 8), IBV_SEND_SIGNALED, ours[i].get()),
              0);
  }
  std::vector<bool> received(kQps);
  for (int i = 1; i < kQps; ++i) {
    const ibv_wc wc = AwaitByPolling(b.endpoint.cq());
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    received[wc.wr_id] = true;
  }
  for (int i = 1; i < kQps; ++i) {
    EXPECT_TRUE(received[i]) << i;
    // The target says what it consumed at its next poll, or, if it does not poll, by its engine.
    EXPECT_EQ(AwaitByPolling(a.endpoint.cq()).status, IBV_WC_SUCCESS);
  }
  // Two listeners; and a control connection and one for the CQs, with two ends each.
  EXPECT_EQ(Sockets() - before, 2u + 2u + 2u);
}

TEST(TcpWireTest, PeerThatStopsReadingFillsItsRingsAndNothingElse) {
  Child frozen([](Side& side) {
    TcpProcess process({.bytes = 4 << 20});
    side.Connect(process.endpoint);
    side.Signal();
    side.Await();
    side.Signal();
    side.Await();
  });
  // A ring that is larger than the sockets' buffers: both are filled.
  SoftDeviceOptions wire = Tcp();
  wire.request_ring_bytes = 16 << 20;
  TcpProcess process({.bytes = 4 << 20}, wire);
  TcpProcess a;
  TcpProcess b;
  QpEnd& endpoint = process.endpoint;
  const Address theirs = frozen.side().Connect(endpoint);
  frozen.side().Await();
  // Until the connection stands.
  ASSERT_EQ(endpoint.PostOneSided(IBV_WR_RDMA_WRITE, 0, endpoint.SendSge(0, 8),
                                  theirs.receive_buffer, theirs.rkey),
            0);
  ASSERT_EQ(AwaitByPolling(endpoint.cq()).status, IBV_WC_SUCCESS);
  frozen.Stop();
  for (int i = 0; i < 60; ++i) {
    ASSERT_EQ(endpoint.PostOneSided(IBV_WR_RDMA_WRITE, 1, endpoint.SendSge(0, 1 << 20),
                                    theirs.receive_buffer, theirs.rkey),
              0);
  }
  ibv_wc wc;
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(ibv_poll_cq(endpoint.cq(), 1, &wc), 0);
  PostReceives(b.endpoint, 4);
  Connect(a.endpoint, b.endpoint);
  ASSERT_EQ(a.endpoint.SendText(1, "others"), 0);
  EXPECT_EQ(AwaitByPolling(b.endpoint.cq()).status, IBV_WC_SUCCESS);
  frozen.Continue();
  for (int i = 0; i < 60; ++i) ASSERT_EQ(AwaitInTime(endpoint.cq()).status, IBV_WC_SUCCESS);
  frozen.side().Signal();
  frozen.side().Await();
  frozen.side().Signal();
  frozen.Join();
}

TEST(TcpWireTest, DestroyedQpIsQuietAtOnceThoughItsPeerKeepsWriting) {
  TcpProcess a;
  TcpProcess b;
  Connect(a.endpoint, b.endpoint);
  const QpIdentity identity = b.device->IdentityOf(b.endpoint.qp());
  ASSERT_EQ(a.endpoint.PostOneSided(IBV_WR_RDMA_WRITE, 0, a.endpoint.SendSge(0, 8),
                                    reinterpret_cast<uint64_t>(b.endpoint.receive_buffer()),
                                    b.endpoint.mr()->rkey),
            0);
  EXPECT_EQ(AwaitByPolling(a.endpoint.cq()).status, IBV_WC_SUCCESS);
  EXPECT_FALSE(b.device->Quiesced(identity));
  b.endpoint.qp_handle().Reset();
  EXPECT_TRUE(b.device->Quiesced(identity));
  ASSERT_EQ(a.endpoint.PostOneSided(IBV_WR_RDMA_WRITE, 0, a.endpoint.SendSge(0, 8),
                                    reinterpret_cast<uint64_t>(b.endpoint.receive_buffer()),
                                    b.endpoint.mr()->rkey),
            0);
  EXPECT_EQ(AwaitByPolling(a.endpoint.cq()).status, IBV_WC_RETRY_EXC_ERR);
}

SoftDeviceOptions BothWires() {
  return {.name = "both0", .tcp = TcpWireOptions{.address = "127.0.0.1"}};
}

TEST(TcpWireTest, DeviceWithBothWiresReachesOneThatHasTcpAlone) {
  auto device = SoftDevice::Create(BothWires()).value();
  QpEnd both(*device, {});
  TcpProcess alone;
  QpEnd& other = alone.endpoint;
  ASSERT_EQ(other.PostReceive(1, other.ReceiveSge(0, 64)), 0);
  ASSERT_TRUE(both.ToInit(both.qp()).ok());
  ASSERT_TRUE(both.ToRtr(both.qp(), other.gid(), other.qp()->qp_num, other.lid()).ok());
  ASSERT_TRUE(other.ToRtr(other.qp(), both.gid(), both.qp()->qp_num, both.lid()).ok());
  ASSERT_TRUE(both.ToRts(both.qp()).ok());
  ASSERT_TRUE(other.ToRts(other.qp()).ok());
  ASSERT_EQ(both.SendText(1, "hello"), 0);
  EXPECT_EQ(AwaitByPolling(other.cq()).status, IBV_WC_SUCCESS);
}

TEST(TcpWireTest, DevicesWithBothWiresPreferSharedMemory) {
  const QpEndOptions options{.shared_arena = true};
  Child child([&](Side& side) {
    auto device = SoftDevice::Create(BothWires()).value();
    QpEnd endpoint(*device, options);
    ASSERT_TRUE(endpoint.ToInit(endpoint.qp()).ok());
    side.Connect(endpoint);
    side.Signal();
    side.Await();
  });
  auto device = SoftDevice::Create(BothWires()).value();
  QpEnd endpoint(*device, options);
  ASSERT_TRUE(endpoint.ToInit(endpoint.qp()).ok());
  const Address theirs = child.side().Connect(endpoint);
  child.side().Await();
  // The first operation takes the ring if it is faster than the connection.
  ASSERT_EQ(endpoint.PostOneSided(IBV_WR_RDMA_READ, 0, endpoint.SendSge(0, 8),
                                  theirs.receive_buffer, theirs.rkey),
            0);
  EXPECT_EQ(AwaitByPolling(endpoint.cq()).status, IBV_WC_SUCCESS);
  ASSERT_EQ(endpoint.PostOneSided(IBV_WR_RDMA_WRITE, 0, endpoint.SendSge(0, 4096),
                                  theirs.receive_buffer, theirs.rkey),
            0);
  EXPECT_EQ(AwaitByPolling(endpoint.cq()).status, IBV_WC_SUCCESS);
  // Over TCP the target would have copied.
  EXPECT_EQ(device->copied_bytes().direct_write_bytes, 4096u);
  child.side().Signal();
  child.Join();
}

}  // namespace tcp_wire_test
}  // namespace verbena::internal::soft
