// Calls to testing_server on another host bring back every byte right, also many at once.
// VERBENA_SERVER_ADDRESS names that host: in the guest phase, a second guest at the other end of a
// cable.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/rpc/testing_service.h"
#include "verbena/transport/coro/combinators.h"
#include "verbena/transport/coro/scope.h"

namespace verbena {
namespace {

class TwoHostsTest : public RpcTest {
 protected:
  void SetUp() override {
    const char* address = std::getenv("VERBENA_SERVER_ADDRESS");
    if (address == nullptr) GTEST_SKIP() << "needs a server on another host";
    client_runtime_ = StartRuntime();
    channel_ = std::make_unique<Channel>(*client_runtime_, address);
    stub_ = std::make_unique<testing::Testing::Stub>(*channel_);
    // The other guest answers pings before its server runs.
    Eventually([this] { return Run(EchoOnce(0, "hello")).ok(); }, "the server answers",
               std::chrono::minutes(2));
  }
};

TEST_F(TwoHostsTest, EveryReplyByteIsRight) {
  for (int i = 0; i < 50; ++i) {
    ASSERT_EQ(Run(EchoOnce(i, std::string(i * 80, static_cast<char>(i)))), absl::OkStatus());
  }
}

TEST_F(TwoHostsTest, ManyCallsInFlightDoNotMixUpTheirReplies) {
  std::vector<absl::Status> ended(2000, absl::UnknownError("not ended"));
  auto run = [&]() -> Task<void> {
    TaskScope scope(client_runtime_->executor(0));
    for (size_t i = 0; i < ended.size(); ++i) {
      scope.Spawn([this, &ended, i]() -> Task<void> {
        ended[i] = co_await EchoOnce(i, std::string(i % 500, 'x'));
      });
    }
    co_await scope.Join();
  };
  Run(run());
  for (const absl::Status& status : ended) EXPECT_EQ(status, absl::OkStatus());
}

// Runs a command of the shell as root of the guest.
void Must(const std::string& command) { ASSERT_EQ(std::system(command.c_str()), 0) << command; }

// Paths to the other host that break for RDMA alone: table 200 has the route of UDP, by which rxe
// sends. The bootstrap and the soft device go by TCP, which is left as it is. That route may lead
// through a gateway, an address that no host has: packets go to the host whose MAC address its
// neighbour entry tells.
class DeadPathTest : public TwoHostsTest {
 protected:
  void SetUp() override {
    const char* device = std::getenv("VERBENA_DEVICE");
    if (device == nullptr || std::string(device) != "auto") {
      GTEST_SKIP() << "needs RDMA and TCP beside each other";
    }
    TwoHostsTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    const std::string address = std::getenv("VERBENA_SERVER_ADDRESS");
    peer_ = address.substr(0, address.find(':'));
    const absl::StatusOr<std::string> first = Run(channel_->DeviceName());
    ASSERT_TRUE(first.ok()) << first.status();
    first_ = *first;
    ASSERT_EQ(first_.substr(0, 3), "rxe") << "links go over another device at once";
  }
  void TearDown() override {
    if (is_routed_) Mend();
    if (is_shrunk_) Must("ip link set eth0 mtu 9000");
  }

  // UDP takes `route` from now on.
  void Route(const std::string& route) {
    Must("ip route replace " + peer_ + " " + route + " table 200");
    Must("ip rule add pref 5 ipproto udp lookup 200");
    is_routed_ = true;
  }
  void RouteThroughGateway() { Route(std::string("via ") + kGateway + " dev eth0 onlink"); }
  static void SetGateway(const std::string& mac) {
    Must(std::string("ip neigh replace ") + kGateway + " lladdr " + mac +
         " nud permanent dev eth0");
  }
  // The other host's MAC address; empty if that is unknown.
  std::string MacOfPeer() const {
    std::ifstream table("/proc/net/arp");
    for (std::string line; std::getline(table, line);) {
      std::istringstream columns(line);
      std::string address, type, flags, mac;
      if (columns >> address >> type >> flags >> mac && address == peer_) return mac;
    }
    return "";
  }
  void Mend() {
    is_routed_ = false;
    Must("ip rule del pref 5");
    Must("ip route flush table 200");
  }

  // A client that has no link yet.
  void StartAnew() {
    stub_.reset();
    channel_.reset();
    client_runtime_ = StartRuntime();
    channel_ = std::make_unique<Channel>(*client_runtime_, std::getenv("VERBENA_SERVER_ADDRESS"));
    stub_ = std::make_unique<testing::Testing::Stub>(*channel_);
  }
  // A call whose caller would wait for a minute.
  absl::Status PatientEcho() {
    return Run(WithDeadline(EchoOnce(1, "over whatever works"),
                            Clock::Real().Now() + std::chrono::minutes(1)));
  }
  void ExpectCallsOverAnother(const std::string& reason) {
    for (int i = 0; i < 10; ++i) ASSERT_EQ(PatientEcho(), absl::OkStatus());
    EXPECT_NE(Run(channel_->DeviceName()).value_or(first_), first_);
    for (const DeviceStats& each : client_runtime_->device_stats(0)) {
      if (each.device == first_) {
        EXPECT_NE(each.passed_over.find(reason), std::string::npos) << each.passed_over;
      }
    }
  }
  void ExpectReturn() {
    Eventually([this] { return Run(channel_->DeviceName()).value_or("") == first_; },
               "calls are back on RDMA", std::chrono::minutes(2));
    EXPECT_EQ(Run(EchoOnce(1, "over RDMA")), absl::OkStatus());
  }
  static void PrintTime(const char* what, TimePoint since) {
    std::printf("%s after %.1f s\n", what,
                std::chrono::duration<double>(Clock::Real().Now() - since).count());
  }

  static constexpr const char* kGateway = "10.0.0.9";
  static constexpr const char* kMacOfNobody = "02:00:00:00:00:09";

  std::string peer_;   // the other host
  std::string first_;  // the device that links go over at first
  bool is_routed_ = false;
  bool is_shrunk_ = false;
};

// The packets leave, and nobody takes them.
TEST_F(DeadPathTest, CallsGoOverTcpBehindAWrongNeighbourEntryAndReturn) {
  SetGateway(kMacOfNobody);
  RouteThroughGateway();
  StartAnew();
  ExpectCallsOverAnother("carried nothing");
  Mend();
  ExpectReturn();
}

// The neighbour entry becomes wrong under a link that has carried calls.
TEST_F(DeadPathTest, CallsGoOverTcpOnceThePathOfAnOpenLinkHasBrokenAndReturn) {
  const std::string mac = MacOfPeer();
  ASSERT_NE(mac, "") << "no neighbour entry of " << peer_;
  SetGateway(mac);
  RouteThroughGateway();
  StartAnew();
  ASSERT_EQ(PatientEcho(), absl::OkStatus());
  ASSERT_EQ(Run(channel_->DeviceName()).value_or(""), first_);
  SetGateway(kMacOfNobody);
  // The call that finds the link open fails when the link does. No later one fails.
  const absl::Status lost = PatientEcho();
  EXPECT_TRUE(absl::IsUnavailable(lost)) << lost;
  const TimePoint seen = Clock::Real().Now();
  ASSERT_EQ(PatientEcho(), absl::OkStatus());
  PrintTime("the first answer over TCP", seen);
  ExpectCallsOverAnother("carried nothing");
  SetGateway(mac);
  const TimePoint mended = Clock::Real().Now();
  ExpectReturn();
  PrintTime("calls are back on RDMA", mended);
}

// Both interfaces have the larger MTU, and what is between them has not.
TEST_F(DeadPathTest, CallsGoOverTcpWhereThePathHasASmallerMtuAndReturn) {
  Route("dev eth0 mtu lock 1500");
  StartAnew();
  ExpectCallsOverAnother("carries short packets");
  Mend();
  ExpectReturn();
}

// A device knows its own interface.
TEST_F(DeadPathTest, NewLinksTakeTheMtuToWhichTheInterfaceShrank) {
  is_shrunk_ = true;
  Must("ip link set eth0 mtu 1500");
  StartAnew();
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(Run(EchoOnce(i, std::string(i * 8000, 'x'))), absl::OkStatus());
  }
  EXPECT_EQ(Run(channel_->DeviceName()).value_or(""), first_);
}

}  // namespace
}  // namespace verbena
