// A connection whose sides leave the device open ("auto") takes one that both have, and shared
// memory on one host. Sides without a common device are told what each has. "auto" opens TCP only
// when a connection needs it: over loopback only if the two share no memory.

#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/rpc/testing_service.h"
#include "tests/support/forbidden_call.h"
#include "tests/transport/base/captured_log.h"
#include "tests/transport/connect/passing_stream.h"
#include "verbena/rpc/shard/open_device.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/connect/handshake.h"
#include "verbena/transport/connect/rdma_cm.h"
#include "verbena/transport/connect/tcp_bootstrap.h"

namespace verbena::internal {
namespace auto_device_test {

class AutoDeviceTest : public RpcTest {
 protected:
  // The environment's choice counts for "auto" alone, and these tests are not about it.
  void SetUp() override {
    const char* set = std::getenv("VERBENA_DEVICE");
    if (set != nullptr) before_ = set;
    unsetenv("VERBENA_DEVICE");
    has_rdma_ = OpenDevice("rdma").ok();
  }
  void TearDown() override {
    if (!before_.empty()) setenv("VERBENA_DEVICE", before_.c_str(), 1);
  }

  void Start(const std::string& server, const std::string& client,
             const std::string& address = "127.0.0.1:0") {
    StartServer({.address = address}, {.device = server});
    StartClient({.device = client});
  }

  // The devices that the client's links go over.
  std::vector<std::string> InUse() {
    std::vector<std::string> names;
    for (const DeviceStats& each : client_runtime_->device_stats(0)) {
      if (each.endpoint.links > 0) names.push_back(each.device);
    }
    return names;
  }

  static bool TcpInReserve(Runtime& runtime) {
    return CoreOf(runtime).shard(0).devices().back()->in_reserve();
  }

  // The client's reason for passing that device over; empty if its statistics leave it out.
  std::string PassedOver(const std::string& name) {
    for (const DeviceStats& each : client_runtime_->device_stats(0)) {
      if (each.device == name) return each.passed_over;
    }
    return "";
  }

  // An IPv4 address of this host that is not loopback, with port 0; empty if there is none.
  static std::string OwnAddress() {
    for (const HostAddress& each : ListAddresses()) {
      if (IsIpv4(each.ip)) return FormatIp(each.ip) + ":0";
    }
    return "";
  }

  bool has_rdma_ = false;

 private:
  std::string before_;
};

TEST_F(AutoDeviceTest, OnOneHostCallsGoThroughSharedMemory) {
  Start("auto", "auto");
  ASSERT_EQ(Run(EchoOnce(1, "hello")), absl::OkStatus());
  EXPECT_EQ(InUse(), std::vector<std::string>{OpenDevice("soft").value()->name()});
}

TEST_F(AutoDeviceTest, NoPortIsOpenedIfSharedMemoryServes) {
  Start("auto", "auto");
  ASSERT_EQ(Run(EchoOnce(1, "hello")), absl::OkStatus());
  EXPECT_TRUE(TcpInReserve(*server_runtime_));
  EXPECT_TRUE(TcpInReserve(*client_runtime_));
  EXPECT_EQ(server_runtime_->device_names().back(), kTcpDeviceName);
}

TEST_F(AutoDeviceTest, AServerOpensTcpForAClientOfItsHostThatAsksForIt) {
  Start("auto", "soft:tcp");
  EXPECT_EQ(Run(EchoOnce(1, "hello")), absl::OkStatus());
  EXPECT_FALSE(TcpInReserve(*server_runtime_));
}

TEST_F(AutoDeviceTest, AClientOpensTcpForAServerOfItsHostThatHasNoSharedMemory) {
  CapturedLog log;
  Start("soft:tcp", "auto");
  ASSERT_EQ(Run(EchoOnce(1, "hello")), absl::OkStatus());
  for (const std::string& line : log.Take()) {
    EXPECT_EQ(line.find("for a time"), std::string::npos) << line;
  }
  EXPECT_EQ(InUse(), std::vector<std::string>{kTcpDeviceName});
  EXPECT_NE(PassedOver("soft0").find("only tcp0 (tcp)"), std::string::npos) << PassedOver("soft0");
}

// A client's stream, whose offer is refused as by a server of another user.
class OtherUsersStream final : public PassingStream {
 public:
  using PassingStream::PassingStream;

  Task<absl::StatusOr<std::string>> Receive() override {
    co_return EncodeRefusal(absl::PermissionDeniedError("process 7 belongs to user 1, not 0"));
  }
};

// TCP, on which the first offer is refused so.
class OtherUsersBootstrap final : public Bootstrap {
 public:
  Task<absl::StatusOr<std::unique_ptr<MessageStream>>> Connect(std::string target) override {
    VERBENA_CO_ASSIGN_OR_RETURN(std::unique_ptr<MessageStream> stream,
                                co_await bootstrap_->Connect(std::move(target)));
    if (!std::exchange(is_first_, false)) co_return stream;
    co_return std::unique_ptr<MessageStream>(new OtherUsersStream(std::move(stream)));
  }
  absl::StatusOr<std::unique_ptr<MessageListener>> Listen(const std::string& address) override {
    return bootstrap_->Listen(address);
  }

 private:
  const std::unique_ptr<TcpBootstrap> bootstrap_ = TcpBootstrap::Create().value();
  bool is_first_ = true;
};

TEST_F(AutoDeviceTest, AClientOpensTcpForAServerOfAnotherUser) {
  OtherUsersBootstrap bootstrap;
  StartServer({.address = "127.0.0.1:0"}, {.device = "auto"});
  StartClient({.device = "auto", .use_bootstrap = &bootstrap});
  EXPECT_EQ(Run(EchoOnce(1, "hello")), absl::OkStatus());
  const std::string next = has_rdma_ ? OpenDevice("rdma").value()->name() : kTcpDeviceName;
  EXPECT_EQ(InUse(), std::vector<std::string>{next});
  EXPECT_NE(PassedOver("soft0").find("belongs to user 1"), std::string::npos)
      << PassedOver("soft0");
  stub_.reset();
  channel_.reset();
  client_runtime_.reset();
}

// Takes connections of a bootstrap, and closes each at once.
Task<void> HangUp(MessageListener& listener) {
  while ((co_await listener.Accept()).ok()) {
  }
}

TEST_F(AutoDeviceTest, AServerThatHangsUpOverLoopbackOpensNoPortOfItsClient) {
  const std::unique_ptr<TcpBootstrap> bootstrap = TcpBootstrap::Create().value();
  const std::unique_ptr<MessageListener> listener = bootstrap->Listen("127.0.0.1:0").value();
  server_runtime_ = StartRuntime({.device = "soft"});
  server_runtime_->Spawn(HangUp(*listener));
  client_runtime_ = StartRuntime({.device = "auto"});
  {
    Channel channel(*client_runtime_, listener->address());
    const absl::Status status = Run(channel.Connect());
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  }
  EXPECT_TRUE(TcpInReserve(*client_runtime_));
  server_runtime_.reset();
}

// As in a container whose seccomp profile forbids memfds.
TEST_F(AutoDeviceTest, AProcessThatMayNotShareMemoryStartsWithTcp) {
  WithForbidden(SYS_memfd_create, EPERM, [] {
    const std::unique_ptr<Runtime> runtime = StartRuntime({.device = "auto"});
    const std::vector<std::string>& names = runtime->device_names();
    EXPECT_EQ(names.back(), kTcpDeviceName);
    EXPECT_EQ(std::count(names.begin(), names.end(), kTcpDeviceName), 1);
    EXPECT_FALSE(TcpInReserve(*runtime));
  });
}

TEST_F(AutoDeviceTest, ADeviceThatTheServerLacksIsRefusedWithTheWayToChooseOne) {
  Start("soft:tcp", "soft");
  const absl::Status status = Run(EchoOnce(1, "hello"));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_NE(std::string(status.message()).find("only tcp0 (tcp)"), std::string::npos) << status;
  EXPECT_NE(std::string(status.message()).find("VERBENA_DEVICE"), std::string::npos) << status;
}

TEST_F(AutoDeviceTest, AClientOpensTcpForAServerThatNothingElseReaches) {
  const std::string address = OwnAddress();
  if (address.empty()) GTEST_SKIP() << "the host has no address but loopback";
  Start("soft:tcp", "auto", address);
  ASSERT_EQ(Run(EchoOnce(1, "hello")), absl::OkStatus());
  EXPECT_EQ(InUse(), std::vector<std::string>{kTcpDeviceName});
  EXPECT_FALSE(TcpInReserve(*client_runtime_));
  EXPECT_NE(PassedOver("soft0").find("only tcp0 (tcp)"), std::string::npos) << PassedOver("soft0");
}

TEST_F(AutoDeviceTest, AServerOpensTcpWhenAClientBeyondLoopbackAsksForIt) {
  const std::string address = OwnAddress();
  if (address.empty()) GTEST_SKIP() << "the host has no address but loopback";
  Start("auto", "soft:tcp", address);
  ASSERT_EQ(Run(EchoOnce(1, "hello")), absl::OkStatus());
  EXPECT_FALSE(TcpInReserve(*server_runtime_));
}

TEST_F(AutoDeviceTest, ADeviceThatComesLaterIsPassedOverWithTheReason) {
  Start("soft:0", "soft:0");
  ASSERT_EQ(Run(EchoOnce(1, "hello")), absl::OkStatus());
  EXPECT_EQ(InUse(), std::vector<std::string>{"soft0"});
  EXPECT_NE(PassedOver(kTcpDeviceName).find("soft comes before it"), std::string::npos)
      << PassedOver(kTcpDeviceName);
  for (const DeviceStats& each : client_runtime_->device_stats(0)) {
    EXPECT_EQ(each.kind, each.device == "soft0" ? "soft" : "tcp");
  }
}

TEST_F(AutoDeviceTest, AClientGoesOverTheDeviceThatTheServerHas) {
  if (!has_rdma_) GTEST_SKIP() << "needs an RDMA device";
  Start("rdma", "auto");
  ASSERT_EQ(Run(EchoOnce(1, "hello")), absl::OkStatus());
  EXPECT_EQ(InUse(), std::vector<std::string>{OpenDevice("rdma").value()->name()});
}

TEST_F(AutoDeviceTest, AServerTakesLinksOverEachOfItsDevices) {
  if (!has_rdma_) GTEST_SKIP() << "needs an RDMA device";
  Start("auto", "rdma");
  ASSERT_EQ(Run(EchoOnce(1, "hello")), absl::OkStatus());
  EXPECT_EQ(InUse(), std::vector<std::string>{OpenDevice("rdma").value()->name()});
}

TEST_F(AutoDeviceTest, SidesWithoutACommonDeviceSayWhichTheyHave) {
  if (!has_rdma_) GTEST_SKIP() << "needs an RDMA device";
  Start("soft", "rdma");
  const absl::Status status = Run(EchoOnce(1, "hello"));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(std::string(status.message()).find("only soft"), std::string::npos) << status;
}

}  // namespace auto_device_test
}  // namespace verbena::internal
