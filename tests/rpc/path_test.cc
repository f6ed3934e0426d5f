// Calls end when their path between two RDMA devices breaks, and work over one that is mended or
// moved. Runs in a guest with two rxe devices, one on each end of a veth pair (./dev vm --devices
// 2), and changes them; each test leaves them as they were.

#include <cstdlib>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "tests/rpc/testing_service.h"
#include "tests/transport/base/captured_log.h"
#include "verbena/transport/coro/scope.h"

namespace verbena {
namespace path_test {

using ::testing::Contains;
using ::testing::HasSubstr;

void Shell(const std::string& command) {
  EXPECT_EQ(std::system(("set -e\n" + command).c_str()), 0) << command;
}

// Routes packets between the two ends over the veth pair, and tells each end the other's hardware
// address. An interface that goes down loses both; tools/vm/network.sh has more about these tables.
std::string RouteAcross(const std::string& network) {
  std::string script;
  for (const auto& [interface, other, from, to, table] :
       {std::tuple("eth0", "eth1", network + ".1", network + ".2", "101"),
        std::tuple("eth1", "eth0", network + ".2", network + ".1", "102")}) {
    script += fmt::format(
        "ip route replace {2} dev {0} src {1} table {3}\n"
        "ip rule del pref 20 from {1} to {2} lookup {3} 2>/dev/null || true\n"
        "ip rule add pref 20 from {1} to {2} lookup {3}\n"
        "ip neigh replace {2} dev {0} nud permanent lladdr $(cat /sys/class/net/{4}/address)\n",
        interface, from, to, table, other);
  }
  return script;
}

// Gives both ends the addresses .1 and .2 of `network`, three numbers, and takes those of `former`.
void Move(const std::string& former, const std::string& network) {
  Shell(
      fmt::format("ip addr replace {1}.1/24 dev eth0\n"
                  "ip addr replace {1}.2/24 dev eth1\n"
                  "{2}"
                  "ip addr del {0}.1/24 dev eth0 2>/dev/null || true\n"
                  "ip addr del {0}.2/24 dev eth1 2>/dev/null || true\n",
                  former, network, RouteAcross(network)));
}

constexpr char kNetwork[] = "10.0.0";
constexpr char kOtherNetwork[] = "10.0.1";

class PathTest : public RpcTest {
 protected:
  void SetUp() override {
    const char* device = std::getenv("VERBENA_DEVICE");
    if (device == nullptr || std::string(device) != "rdma:rxe0") {
      GTEST_SKIP() << "needs a guest with two rxe devices";
    }
    StartServer({}, {.device = "rdma:rxe1"});
    StartClient({.device = "rdma:rxe0"});
  }

  void TearDown() override {
    if (IsSkipped()) return;
    Stop();
    Shell("ip link set dev eth0 up mtu 9000\nip link set dev eth1 up mtu 9000");
    Move(kOtherNetwork, kNetwork);
    // GIDs follow addresses a moment later.
    for (const char* device : {"rxe0", "rxe1"}) {
      Shell(
          fmt::format("for i in $(seq 1000); do grep -q :ffff:0a00:000 "
                      "/sys/class/infiniband/{0}/ports/1/gids/[0-9] 2>/dev/null && exit 0; "
                      "sleep 0.01; done; exit 1",
                      device));
    }
  }

  void Stop() {
    stub_.reset();
    channel_.reset();
    client_runtime_.reset();
    server_.reset();
    server_runtime_.reset();
  }

  // Starts calls that the server does not answer by itself, then `strike`; returns how they ended.
  template <typename Strike>
  std::vector<absl::Status> CallsStruckBy(Strike strike) {
    std::vector<absl::Status> ended(32);
    auto run = [&]() -> Task<absl::Status> {
      TaskScope scope(client_runtime_->executor(0));
      for (absl::Status& status : ended) {
        scope.Spawn([this, &status]() -> Task<void> {
          testing::WaitRequest request;
          testing::Empty reply;
          status = co_await stub_->Wait(request, reply, {.deadline = std::chrono::seconds(60)});
        });
      }
      // An answered call behind them: the others have arrived.
      absl::Status echoed = co_await EchoOnce(1, "marker");
      strike();
      co_await scope.Join();
      co_return echoed;
    };
    EXPECT_EQ(Run(run()), absl::OkStatus());
    return ended;
  }

  // Lost calls end as UNAVAILABLE, long before their deadline, and nobody knows whether they ran.
  static void ExpectLost(const std::vector<absl::Status>& ended) {
    for (const absl::Status& status : ended) {
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
      EXPECT_EQ(OutcomeOf(status), Outcome::kMaybeExecuted) << status;
    }
  }

  void ExpectCallsWorkAgain() {
    Eventually([this] { return Run(EchoOnce(2, "again")).ok(); }, "a call works again");
  }

  // A call that no link is there for ends at once, and was not sent.
  void ExpectCallsAreRefused() {
    const absl::Status refused = Run(EchoOnce(3, "refused"));
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable) << refused;
    EXPECT_EQ(OutcomeOf(refused), Outcome::kNotExecuted) << refused;
  }

  void TakeDownAndUp() {
    ExpectLost(CallsStruckBy([] { Shell("ip link set dev eth0 down"); }));
    ExpectCallsAreRefused();
    Shell("ip link set dev eth0 up\n" + RouteAcross(kNetwork));
    ExpectCallsWorkAgain();
  }

  void MoveBothEnds() {
    EXPECT_EQ(Run(EchoOnce(4, "before")), absl::OkStatus());
    CapturedLog log;
    ExpectLost(CallsStruckBy([] { Move(kNetwork, kOtherNetwork); }));
    ExpectCallsWorkAgain();
    const std::vector<std::string> lines = log.Take();
    for (const char* device : {"rxe0", "rxe1"}) {
      EXPECT_THAT(lines, Contains(HasSubstr(fmt::format("{}: new links use GID 2", device))));
    }
  }
};

TEST_F(PathTest, CallsEndWhenTheInterfaceGoesDownAndWorkWhenItIsUpAgain) { TakeDownAndUp(); }

TEST_F(PathTest, ALinkThatWasIdleFailsItsNextCallWhileTheInterfaceIsDown) {
  EXPECT_EQ(Run(EchoOnce(5, "before")), absl::OkStatus());
  Shell("ip link set dev eth0 down");
  ExpectLost({Run(EchoOnce(6, "down"))});
  ExpectCallsAreRefused();
}

TEST_F(PathTest, NewLinksUseTheNewAddressesWhenThoseOfBothPortsChange) { MoveBothEnds(); }

TEST_F(PathTest, TwoPortsOfDifferentMtuUseTheSmaller) {
  // The server's port has a smaller MTU; messages longer than its packets still arrive whole.
  server_.reset();
  server_runtime_.reset();
  Shell("ip link set dev eth1 mtu 1500");
  CapturedLog log;
  StartServer({}, {.device = "rdma:rxe1"});
  channel_ = std::make_unique<Channel>(*client_runtime_, server_->address());
  stub_ = std::make_unique<testing::Testing::Stub>(*channel_);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(Run(EchoOnce(i, std::string(i * 190, 'm'))), absl::OkStatus());
  }
  EXPECT_THAT(log.Take(), Contains(HasSubstr("path MTU 1024: it is 4096 here, 1024 there")));
}

// rxe tells nobody that it is being removed: the command waits until the last process has closed
// it.
TEST_F(PathTest, ADeviceThatIsBeingRemovedServesUntilItIsClosed) {
  std::thread removal([] { Shell("rdma link delete rxe1"); });
  Shell("while rdma link show | grep -q rxe1; do :; done");
  for (int i = 0; i < 100; ++i) EXPECT_EQ(Run(EchoOnce(i, "as before")), absl::OkStatus());
  server_.reset();
  server_runtime_.reset();
  removal.join();
  EXPECT_FALSE(Run(EchoOnce(3, "nobody")).ok());

  Shell("rdma link add rxe1 type rxe netdev eth1");
  StartServer({}, {.device = "rdma:rxe1"});
  channel_ = std::make_unique<Channel>(*client_runtime_, server_->address());
  stub_ = std::make_unique<testing::Testing::Stub>(*channel_);
  ExpectCallsWorkAgain();
}

}  // namespace path_test
}  // namespace verbena
