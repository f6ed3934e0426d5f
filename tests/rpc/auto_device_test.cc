// A connection whose sides leave the device open ("auto") takes one that both have, and shared
// memory on one host. Sides without a common device are told what each has.

#include <cstdlib>
#include <string>
#include <vector>

#include "tests/rpc/testing_service.h"
#include "verbena/rpc/internal/open_device.h"

namespace verbena::internal {
namespace {

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

  void Start(const std::string& server, const std::string& client) {
    StartServer({}, {.device = server});
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

  bool has_rdma_ = false;

 private:
  std::string before_;
};

TEST_F(AutoDeviceTest, OnOneHostCallsGoThroughSharedMemory) {
  Start("auto", "auto");
  ASSERT_EQ(Run(EchoOnce(1, "hello")), absl::OkStatus());
  EXPECT_EQ(InUse(), std::vector<std::string>{OpenDevice("soft").value()->name()});
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

}  // namespace
}  // namespace verbena::internal
