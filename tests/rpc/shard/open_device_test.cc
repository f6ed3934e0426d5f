// A named device is opened or refused, never replaced by another. Only "auto" reads VERBENA_DEVICE.
// Without that variable, "auto" gives the soft device, and also the host's RDMA device if there is
// one. The soft device over TCP is opened by its name, and by "auto" if memory cannot be shared.

#include "verbena/rpc/shard/open_device.h"

#include <fcntl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/forbidden_call.h"
#include "tests/transport/base/captured_log.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal {
namespace open_device_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class OpenDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* set = std::getenv("VERBENA_DEVICE");
    if (set != nullptr) before_ = set;
    unsetenv("VERBENA_DEVICE");
  }
  void TearDown() override {
    if (!before_.empty()) setenv("VERBENA_DEVICE", before_.c_str(), 1);
  }

 private:
  std::string before_;
};

TEST_F(OpenDeviceTest, SoftIsTheSoftDeviceWhateverTheHostHas) {
  absl::StatusOr<std::unique_ptr<Device>> device = OpenDevice("soft");
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ((*device)->kind(), DeviceKind::kSoft);
}

TEST_F(OpenDeviceTest, TheSoftDeviceOverTcpListensWhereItsNameSays) {
  absl::StatusOr<std::vector<std::unique_ptr<Device>>> devices =
      OpenDevices("soft:tcp:127.0.0.1:0");
  ASSERT_TRUE(devices.ok()) << devices.status();
  ASSERT_EQ(devices->size(), 1u);
  const auto& tcp = static_cast<const SoftDevice&>(*devices->front());
  EXPECT_TRUE(tcp.tcp());
  EXPECT_NE(tcp.tcp_port(), 0);
  EXPECT_EQ(devices->front()->name(), kTcpDeviceName);
  const absl::StatusOr<ibv_gid> gid = devices->front()->QueryGid(1, 0);
  ASSERT_TRUE(gid.ok()) << gid.status();
  const uint8_t loopback[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
  EXPECT_EQ(std::memcmp(gid->raw, loopback, sizeof(loopback)), 0);
  EXPECT_EQ(devices->front()->QueryPort(1)->lid, tcp.tcp_port());
}

// As in a container whose seccomp profile forbids memfds, or their seals.
TEST_F(OpenDeviceTest, WithoutMemoryToShareThereIsTcpAndALogLineOrTheErrorSaysSo) {
  const auto expect_tcp_alone = [] {
    CapturedLog log;
    auto automatic = OpenDevices("auto");
    ASSERT_TRUE(automatic.ok()) << automatic.status();
    EXPECT_EQ(automatic->back()->name(), kTcpDeviceName);
    EXPECT_TRUE(static_cast<SoftDevice&>(*automatic->back()).tcp());
    std::vector<std::string> lines = log.Take();
    std::erase_if(lines, [](const std::string& line) { return line.find("memfd") == line.npos; });
    EXPECT_THAT(lines, ElementsAre(HasSubstr("shares no memory")));

    const absl::Status refused = OpenDevices("soft").status();
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr("memfd"), HasSubstr("VERBENA_DEVICE=soft:tcp")));
    auto devices = OpenDevices("soft:tcp:127.0.0.1:0");
    ASSERT_TRUE(devices.ok()) << devices.status();
    auto& tcp = static_cast<SoftDevice&>(*devices->front());
    absl::StatusOr<std::byte*> memory = tcp.AllocateShared(4096);
    ASSERT_TRUE(memory.ok()) << memory.status();
    EXPECT_TRUE(tcp.FreeShared(*memory).ok());
  };
  std::thread([&] {
    if (ForbidCommand(SYS_fcntl, F_ADD_SEALS, EPERM)) expect_tcp_alone();
  }).join();
  WithForbidden(SYS_memfd_create, EPERM, expect_tcp_alone);
}

TEST_F(OpenDeviceTest, APortBesideSharedMemoryMakesTwoDevices) {
  absl::StatusOr<std::vector<std::unique_ptr<Device>>> devices = OpenDevices("soft:0");
  ASSERT_TRUE(devices.ok()) << devices.status();
  ASSERT_EQ(devices->size(), 2u);
  EXPECT_FALSE(static_cast<const SoftDevice&>(*(*devices)[0]).tcp());
  EXPECT_TRUE(static_cast<const SoftDevice&>(*(*devices)[1]).tcp());
  EXPECT_EQ(NameToReopen("soft:4791", *(*devices)[0]), "soft");
  EXPECT_EQ(NameToReopen("soft:4791", *(*devices)[1]), "soft:tcp:4791");
  EXPECT_EQ(NameToReopen("auto", *(*devices)[1]), "soft:tcp");
}

TEST_F(OpenDeviceTest, AWrongNameOfTheSoftDeviceIsRefusedAlsoFromTheEnvironment) {
  setenv("VERBENA_DEVICE", "soft:tpc", 1);
  EXPECT_THAT(OpenDevice("auto").status().ToString(),
              AllOf(HasSubstr("INVALID_ARGUMENT: VERBENA_DEVICE: "), HasSubstr("\"soft:tpc\""),
                    HasSubstr("soft:PORT")));
  EXPECT_FALSE(IsAutomatic("auto"));
  unsetenv("VERBENA_DEVICE");
  EXPECT_TRUE(IsAutomatic("auto"));
}

TEST_F(OpenDeviceTest, AutoIsTheSoftwareDeviceAndWhatElseThereIs) {
  for (const char* name : {"auto", ""}) {
    absl::StatusOr<std::vector<std::unique_ptr<Device>>> devices = OpenDevices(name);
    ASSERT_TRUE(devices.ok()) << devices.status();
    EXPECT_EQ((*devices)[0]->kind(), DeviceKind::kSoft);
    const bool has_rdma = OpenDevice("rdma").ok();
    EXPECT_EQ(devices->size(), has_rdma ? 2u : 1u);
    EXPECT_EQ((*OpenDevice(name))->kind(), has_rdma ? DeviceKind::kRdma : DeviceKind::kSoft);
  }
}

TEST_F(OpenDeviceTest, TheEnvironmentDecidesWhatAutoIsAndNothingElse) {
  setenv("VERBENA_DEVICE", "rdma:no_such_device", 1);
  EXPECT_THAT(OpenDevice("auto").status().ToString(),
              AllOf(HasSubstr("NOT_FOUND"), HasSubstr("\"no_such_device\"")));
  EXPECT_TRUE(OpenDevice("soft").ok());
}

TEST_F(OpenDeviceTest, EachDeviceOfAutoIsFoundAgainByTheNameThatReopensIt) {
  absl::StatusOr<std::vector<std::unique_ptr<Device>>> devices = OpenDevices("auto");
  ASSERT_TRUE(devices.ok()) << devices.status();
  for (const std::unique_ptr<Device>& device : *devices) {
    absl::StatusOr<std::unique_ptr<Device>> again = OpenDevice(NameToReopen("auto", *device));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ((*again)->name(), device->name());
    EXPECT_EQ((*again)->kind(), device->kind());
  }
}

TEST_F(OpenDeviceTest, AnEnvironmentThatSaysAutoDoesNotGoRound) {
  setenv("VERBENA_DEVICE", "auto", 1);
  EXPECT_TRUE(OpenDevice("auto").ok());
}

TEST_F(OpenDeviceTest, ADeviceThatWasNamedIsNotReplacedByAnother) {
  EXPECT_EQ(OpenDevice("rdma:no_such_device").status().code(), absl::StatusCode::kNotFound);
  const absl::Status status = OpenDevice("no_such_device").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("soft:tcp"), Not(HasSubstr("VERBENA_DEVICE"))));
}

}  // namespace open_device_test
}  // namespace verbena::internal
