// Calls to testing_server on another host bring back every byte right, also many at once.
// VERBENA_SERVER_ADDRESS names that host: in the guest phase, a second guest at the other end of a
// cable.

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "tests/rpc/testing_service.h"
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

// New queue pairs of rxe open and then carry nothing: packets of UDP have no route. TCP has one.
class DeadPathTest : public TwoHostsTest {
 protected:
  void SetUp() override {
    const char* device = std::getenv("VERBENA_DEVICE");
    if (device == nullptr || std::string(device) != "auto") {
      GTEST_SKIP() << "needs RDMA and TCP beside each other";
    }
    TwoHostsTest::SetUp();
    if (IsSkipped()) return;
    device_ = *Run(channel_->DeviceName());
  }
  void TearDown() override {
    if (is_cut_) Must("ip rule del pref 5 ipproto udp blackhole");
    Must("ip link set eth0 mtu 9000");
  }
  void Cut() {
    Must("ip rule add pref 5 ipproto udp blackhole");
    is_cut_ = true;
  }
  void Mend() {
    Must("ip rule del pref 5 ipproto udp blackhole");
    is_cut_ = false;
  }
  // A client that has no link yet.
  void StartAnew() {
    stub_.reset();
    channel_.reset();
    client_runtime_ = StartRuntime();
    channel_ = std::make_unique<Channel>(*client_runtime_, std::getenv("VERBENA_SERVER_ADDRESS"));
    stub_ = std::make_unique<testing::Testing::Stub>(*channel_);
  }

  std::string device_;  // that links go over at first
  bool is_cut_ = false;
};

TEST_F(DeadPathTest, CallsGoOverTcpWhileRdmaCarriesNothingAndReturn) {
  Cut();
  StartAnew();
  for (int i = 0; i < 10; ++i) ASSERT_EQ(Run(EchoOnce(i, "over TCP")), absl::OkStatus());
  EXPECT_NE(*Run(channel_->DeviceName()), device_);
  Mend();
  Eventually([this] { return *Run(channel_->DeviceName()) == device_; }, "calls are back on RDMA",
             std::chrono::minutes(2));
  EXPECT_EQ(Run(EchoOnce(1, "over RDMA")), absl::OkStatus());
}

TEST_F(DeadPathTest, NewLinksWorkAfterTheMtuShrank) {
  Must("ip link set eth0 mtu 1500");
  StartAnew();
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(Run(EchoOnce(i, std::string(i * 8000, 'x'))), absl::OkStatus());
  }
}

}  // namespace
}  // namespace verbena
