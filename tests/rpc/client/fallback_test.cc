// A client with several devices goes over the next one if links over the first open and carry
// nothing: in the same attempt to connect, so that no call fails.

#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tests/rpc/testing_service.h"
#include "tests/transport/device/delegating_device.h"
#include "tests/transport/link/black_hole.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/client/connection.h"
#include "verbena/rpc/client/device_scores.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/rpc/testing/fake_clock.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal {
namespace fallback_test {

// A soft device that says that it is a NIC on Ethernet.
class RoceLikeDevice final : public DelegatingDevice {
 public:
  explicit RoceLikeDevice(Device& device) : DelegatingDevice(device) {
    told_kind = DeviceKind::kRdma;
  }
  absl::StatusOr<ibv_port_attr> QueryPort(uint8_t port) override {
    absl::StatusOr<ibv_port_attr> attributes = DelegatingDevice::QueryPort(port);
    if (attributes.ok()) attributes->link_layer = IBV_LINK_LAYER_ETHERNET;
    return attributes;
  }
};

// One side's devices: over the first a BlackHole may lie, the second one is TCP.
struct Devices {
  explicit Devices(const std::string& side)
      : below(*SoftDevice::Create({.name = side + "-roce"})),
        roce(*below),
        tcp(*SoftDevice::Create({.name = side + "-tcp",
                                 .shared_memory = false,
                                 .tcp = TcpWireOptions{.address = "127.0.0.1"}})) {}

  std::unique_ptr<SoftDevice> below;
  RoceLikeDevice roce;
  std::unique_ptr<SoftDevice> tcp;
};

class FallbackTest : public RpcTest {
 protected:
  static constexpr Duration kMoment = std::chrono::milliseconds(1);
  static constexpr Duration kStep = std::chrono::milliseconds(100);

  FallbackTest() : hole_(*near_.below->context()) {}
  ~FallbackTest() override {
    hole_.Close();
    clock_.Run();
    stub_.reset();
    StopAll();
  }

  void Start(bool server_has_tcp = true, Duration ping_interval = LinkLimits().ping_interval) {
    RuntimeOptions options{.clock = &clock_};
    options.limits.ping_interval = ping_interval;
    server_runtime_ = StartRuntime(
        {}, {.use = &far_.roce, .also_use = server_has_tcp ? far_.tcp.get() : nullptr});
    Serve();
    client_runtime_ =
        StartRuntime(std::move(options), {.use = &near_.roce, .also_use = near_.tcp.get()});
    channel_ = std::make_unique<Channel>(*client_runtime_, server_->address());
    stub_ = std::make_unique<testing::Testing::Stub>(*channel_);
  }

  // Makes a call, of which a PING is lost first. Lets the time for the proof pass then.
  absl::Status CallIntoTheHole() {
    const uint64_t before = hole_.swallowed();
    JoinHandle<absl::Status> call = client_runtime_->Spawn(EchoOnce(1, "hello"));
    while (hole_.swallowed() == before) std::this_thread::yield();
    clock_.Advance(*client_runtime_, kProofTime);
    return call.Join();
  }

  // Lets the client's time pass, `step` by step, until `done`.
  void PassUntil(Duration step, const std::function<bool()>& done) {
    const TimePoint limit = Clock::Real().Now() + std::chrono::minutes(1);
    while (!done()) {
      ASSERT_LT(Clock::Real().Now(), limit) << "never came true";
      clock_.Advance(*client_runtime_, step);
      std::this_thread::yield();
    }
  }

  // The devices that the client's links go over.
  std::vector<std::string> InUse() {
    std::vector<std::string> names;
    for (const DeviceStats& each : client_runtime_->device_stats(0)) {
      if (each.endpoint.links > 0) names.push_back(each.device);
    }
    return names;
  }

  Task<absl::Status> Linger() { co_return (co_await stub_->Linger(testing::Empty())).status(); }

  // Most of the time until the first device is tried again.
  void PassThePause() { clock_.Advance(*client_runtime_, Connection::kFirstReturn * 3 / 4); }

  // Makes a call, so that the server has a turn of its own while the client's time passes.
  bool Serves() { return Run(EchoOnce(1, "hello")).ok(); }

  // SENDs of the client over that device.
  uint64_t SendsOver(const std::string& name) {
    for (const DeviceStats& each : client_runtime_->device_stats(0)) {
      if (each.device == name) return each.endpoint.traffic.sends;
    }
    return 0;
  }

  std::string PassedOver(const std::string& name) {
    for (const DeviceStats& each : client_runtime_->device_stats(0)) {
      if (each.device == name) return each.passed_over;
    }
    return "";
  }

  Devices near_{"near"};
  Devices far_{"far"};
  BlackHole hole_;
  testing::FakeClock clock_;
};

TEST_F(FallbackTest, TheFirstDeviceIsTakenIfItCarriesWhatItIsGiven) {
  Start();
  EXPECT_EQ(Run(EchoOnce(1, "hello")), absl::OkStatus());
  EXPECT_EQ(InUse(), std::vector<std::string>{"near-roce"});
}

TEST_F(FallbackTest, ACallGoesOverTheNextDeviceInTheSameAttempt) {
  Start();
  hole_.SwallowOver(0);
  EXPECT_EQ(CallIntoTheHole(), absl::OkStatus());
  PassUntil(kMoment, [this] { return InUse() == std::vector<std::string>{"near-tcp"}; });
  EXPECT_NE(PassedOver("near-roce").find("carried nothing"), std::string::npos)
      << PassedOver("near-roce");
}

TEST_F(FallbackTest, AnMtuThatShrankIsNamed) {
  Start();
  hole_.SwallowOver(1500);
  EXPECT_EQ(CallIntoTheHole(), absl::OkStatus());
  EXPECT_NE(PassedOver("near-roce").find("smaller MTU"), std::string::npos)
      << PassedOver("near-roce");
}

TEST_F(FallbackTest, NoDeviceIsBlamedIfNoneProvesItself) {
  Start(/*server_has_tcp=*/false);
  hole_.SwallowOver(0);
  const absl::Status failed = CallIntoTheHole();
  EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable) << failed;
  EXPECT_EQ(OutcomeOf(failed), Outcome::kNotExecuted);
  EXPECT_NE(failed.message().find("RoCE v2: a link to"), std::string::npos) << failed;
  EXPECT_NE(failed.message().find("tcp: "), std::string::npos) << failed;
  EXPECT_EQ(PassedOver("near-roce"), "");
}

// A path that lets each link prove itself, and then carries nothing.
TEST_F(FallbackTest, ADeviceThatLosesEachLinkBeforeAnAnswerComesLast) {
  Start();
  for (size_t i = 0; i < DeviceScores::kLosses; ++i) {
    hole_.Close();
    PassUntil(kMoment, [this] { return Run(channel_->Connect()).ok(); });
    EXPECT_EQ(InUse(), std::vector<std::string>{"near-roce"});
    hole_.SwallowOver(0);
    JoinHandle<absl::Status> call = client_runtime_->Spawn(EchoOnce(1, "lost"));
    PassUntil(std::chrono::milliseconds(100), [this] { return InUse().empty(); });
    const absl::Status lost = call.Join();
    EXPECT_NE(lost.message().find("has not answered a PING"), std::string::npos) << lost;
  }
  hole_.Close();
  PassUntil(kMoment, [this] { return Run(channel_->Connect()).ok(); });
  EXPECT_EQ(InUse(), std::vector<std::string>{"near-tcp"});
  EXPECT_NE(PassedOver("near-roce").find("has lost 3 links"), std::string::npos)
      << PassedOver("near-roce");
  EXPECT_EQ(Run(EchoOnce(2, "hello")), absl::OkStatus());
}

TEST_F(FallbackTest, NewCallsGoBackToTheFirstDeviceAndThoseUnderWayEndWhereTheyAre) {
  Start(/*server_has_tcp=*/true, std::chrono::minutes(30));
  hole_.SwallowOver(0);
  EXPECT_EQ(CallIntoTheHole(), absl::OkStatus());
  PassUntil(kMoment, [this] { return InUse() == std::vector<std::string>{"near-tcp"}; });
  JoinHandle<absl::Status> lingers = client_runtime_->Spawn(Linger());
  EXPECT_EQ(Run(service_.lingering.Until(1)), absl::OkStatus());
  // The device is tried in vain once, and stays passed over.
  const uint64_t swallowed = hole_.swallowed();
  PassThePause();
  PassUntil(kStep, [&] { return Serves() && hole_.swallowed() > swallowed; });
  PassUntil(kStep, [this] { return Serves() && InUse() == std::vector<std::string>{"near-tcp"}; });
  hole_.Close();
  const std::vector<std::string> both = {"near-roce", "near-tcp"};
  PassThePause();
  PassUntil(kStep, [&] { return Serves() && InUse() == both; });
  PassUntil(kMoment, [this] { return Serves() && PassedOver("near-roce").empty(); });
  const uint64_t before = SendsOver("near-roce");
  EXPECT_EQ(Run(EchoOnce(3, "back")), absl::OkStatus());
  EXPECT_GT(SendsOver("near-roce"), before);
  service_.let_go = true;
  EXPECT_EQ(lingers.Join(), absl::OkStatus()) << "it ends over the link that it began on";
  PassUntil(kMoment, [this] { return InUse() == std::vector<std::string>{"near-roce"}; });
}

TEST_F(FallbackTest, AChannelThatEndsDuringTheSearchLeavesNoLink) {
  Start();
  hole_.SwallowOver(0);
  EXPECT_EQ(CallIntoTheHole(), absl::OkStatus());
  const uint64_t swallowed = hole_.swallowed();
  PassThePause();
  PassUntil(kStep, [&] { return Serves() && hole_.swallowed() > swallowed; });
  stub_.reset();
  channel_.reset();
  PassUntil(kMoment, [this] { return InUse().empty(); });
}

}  // namespace fallback_test
}  // namespace verbena::internal
