// What becomes of calls when the path between two RDMA devices breaks: the interface goes down, or
// a device is being removed. Runs in a guest with two rxe devices, one on each end of a veth pair
// (./dev vm --devices 2), and changes them.

#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "tests/rpc/testing_service.h"
#include "tests/transport/log/captured_log.h"
#include "verbena/transport/coro/task_scope.h"

namespace verbena {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

void Shell(const std::string& command) { EXPECT_EQ(std::system(command.c_str()), 0) << command; }

class PathTest : public RpcTest {
 protected:
  void SetUp() override {
    const char* device = std::getenv("VERBENA_DEVICE");
    if (device == nullptr || std::string(device) != "rdma:rxe0") {
      GTEST_SKIP() << "needs a guest with two rxe devices";
    }
    StartServer({}, {.device = "rdma:rxe1"});
    StartClient(
        {.device = "rdma:rxe0", .limits = {.ping_interval = std::chrono::milliseconds(200)}});
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
};

TEST_F(PathTest, CallsEndWhenTheInterfaceGoesDownAndWorkWhenItIsUpAgain) {
  ExpectLost(CallsStruckBy([] { Shell("ip link set dev eth0 down"); }));
  Shell("ip link set dev eth0 up");
  // These went with the interface.
  Shell("ip route replace 10.0.0.2 dev eth0 src 10.0.0.1 table 101");
  Shell(
      "ip neigh replace 10.0.0.2 dev eth0 nud permanent lladdr "
      "$(cat /sys/class/net/eth1/address)");
  ExpectCallsWorkAgain();
}

TEST_F(PathTest, TwoPortsOfDifferentMtuUseTheSmaller) {
  // The server's port offers less; what is longer than a packet of it crosses whole.
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
  EXPECT_THAT(log.Take(), Contains(HasSubstr("path MTU 1024: the port has 4096 here, 1024 there")));
  Shell("ip link set dev eth1 mtu 9000");
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

}  // namespace
}  // namespace verbena
