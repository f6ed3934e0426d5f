// The doctor's findings: each fault of a machine gives a finding with its severity and the command
// that mends it, and a machine in order gives none.

#include "tools/verbena/findings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace verbena::doctor {
namespace findings_test {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

auto Found(Severity severity, const std::string& what, const std::string& mend) {
  return Contains(AllOf(Field(&Finding::severity, severity), Field(&Finding::what, HasSubstr(what)),
                        Field(&Finding::mend, HasSubstr(mend))));
}

// A machine with one RoCE card on which everything is right; each test breaks one thing.
class FindingsTest : public ::testing::Test {
 protected:
  FindingsTest() {
    host_.memlock_bytes = kUnlimited;
    host_.memlock_hard_bytes = kUnlimited;
    host_.huge_pages = {{.page_kib = 2048, .total = 512, .free = 512}};
    host_.device_files = {{"/dev/infiniband/rdma_cm", true}, {"/dev/infiniband/uverbs0", true}};
    DeviceFacts device;
    device.name = "mlx5_0";
    device.node_type = "CA";
    device.opened = absl::OkStatus();
    device.attributes.emplace();
    device.capabilities.srq = true;
    PortFacts port;
    port.state = "ACTIVE";
    port.link_layer = "Ethernet";
    GidFacts gid;
    gid.type = "RoCE v2";
    gid.interface = "ens1";
    port.gids = {gid};
    device.ports = {port};
    devices_ = {device};
  }

  Diagnosis Examine() { return doctor::Examine(host_, devices_, soft_); }
  PortFacts& port() { return devices_[0].ports[0]; }

  HostFacts host_;
  std::vector<DeviceFacts> devices_;
  absl::Status soft_;
};

TEST_F(FindingsTest, AMachineInOrderHasNone) {
  const Diagnosis diagnosis = Examine();
  EXPECT_THAT(diagnosis.findings, IsEmpty());
  EXPECT_TRUE(diagnosis.rdma_works);
  EXPECT_EQ(diagnosis.ExitStatus(), 0);
}

TEST_F(FindingsTest, WithoutADeviceTheSoftDeviceIsEnoughAndRxeIsAdvised) {
  devices_.clear();
  host_.device_files.clear();
  host_.interfaces = {"eth7"};
  const Diagnosis diagnosis = Examine();
  EXPECT_THAT(diagnosis.findings,
              Found(Severity::kAdvice, "no RDMA device",
                    "modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth7"));
  EXPECT_FALSE(diagnosis.rdma_works);
  EXPECT_EQ(diagnosis.ExitStatus(), 0);
}

TEST_F(FindingsTest, AContainerWithoutDevicesIsToldHowToPassThem) {
  devices_.clear();
  host_.container = true;
  EXPECT_THAT(Examine().findings,
              Found(Severity::kAdvice, "container", "--device /dev/infiniband"));
}

TEST_F(FindingsTest, NothingWorksWithoutTheSoftDeviceEither) {
  devices_.clear();
  soft_ = absl::PermissionDeniedError("memfd_create");
  const Diagnosis diagnosis = Examine();
  EXPECT_THAT(diagnosis.findings, Found(Severity::kError, "memfd_create", "seccomp"));
  EXPECT_EQ(diagnosis.ExitStatus(), 1);
}

TEST_F(FindingsTest, APortThatIsDownIsAnErrorAndNamesItsInterface) {
  port().state = "DOWN";
  const Diagnosis diagnosis = Examine();
  EXPECT_THAT(diagnosis.findings,
              Found(Severity::kError, "mlx5_0 port 1 is DOWN", "ip link set ens1 up"));
  EXPECT_EQ(diagnosis.ExitStatus(), 1);
}

TEST_F(FindingsTest, AnotherPortThatIsUpIsEnough) {
  devices_[0].ports.push_back(port());
  devices_[0].ports[1].port = 2;
  port().state = "DOWN";
  EXPECT_EQ(Examine().ExitStatus(), 0);
}

TEST_F(FindingsTest, InfiniBandWithoutASubnetManagerHasNoLid) {
  port().link_layer = "InfiniBand";
  port().lid = 0;
  const Diagnosis diagnosis = Examine();
  EXPECT_THAT(diagnosis.findings, Found(Severity::kError, "no LID", "opensm"));
  EXPECT_EQ(diagnosis.ExitStatus(), 1);
  port().lid = 7;
  EXPECT_EQ(Examine().ExitStatus(), 0);
}

TEST_F(FindingsTest, AnInterfaceWithoutAddressHasNoGid) {
  port().gids.clear();
  const Diagnosis diagnosis = Examine();
  EXPECT_THAT(diagnosis.findings, Found(Severity::kError, "no GID", "ip address add"));
  EXPECT_EQ(diagnosis.ExitStatus(), 1);
}

TEST_F(FindingsTest, RoceV1AloneIsAWarning) {
  port().gids[0].type = "IB/RoCE v1";
  const Diagnosis diagnosis = Examine();
  EXPECT_THAT(diagnosis.findings, Found(Severity::kWarning, "RoCE v1", "RoCE v2"));
  EXPECT_EQ(diagnosis.ExitStatus(), 0);
}

TEST_F(FindingsTest, ADeviceFileWithoutAccessIsAnError) {
  host_.device_files[1].usable = false;
  devices_[0].opened = absl::PermissionDeniedError("ibv_open_device: Permission denied");
  const Diagnosis diagnosis = Examine();
  EXPECT_THAT(diagnosis.findings, Found(Severity::kError, "/dev/infiniband/uverbs0", "chmod 0666"));
  EXPECT_THAT(diagnosis.findings, Found(Severity::kError, "cannot be opened", "ibverbs-providers"));
  EXPECT_EQ(diagnosis.ExitStatus(), 1);
}

TEST_F(FindingsTest, ADeviceWithoutReliableConnectionsIsNotMendedByAPackage) {
  devices_[0].opened = absl::UnimplementedError("efa_0 has no reliable connections");
  const Diagnosis diagnosis = Examine();
  EXPECT_THAT(diagnosis.findings, Found(Severity::kWarning, "no reliable connections",
                                        "nothing: `auto` passes it over"));
  EXPECT_FALSE(diagnosis.rdma_works);
}

TEST_F(FindingsTest, NoDeviceFilesAtAllIsAnErrorOfItsOwn) {
  host_.device_files.clear();
  EXPECT_THAT(Examine().findings, Found(Severity::kError, "uverbs", "modprobe ib_uverbs"));
}

TEST_F(FindingsTest, IwarpNeedsRdmaCm) {
  devices_[0].node_type = "RNIC";
  port().gids[0].type = "";
  EXPECT_EQ(Examine().ExitStatus(), 0);
  EXPECT_THAT(Examine().findings, IsEmpty());
  host_.device_files.erase(host_.device_files.begin());
  EXPECT_THAT(Examine().findings, Found(Severity::kError, "rdma_cm", "modprobe rdma_ucm"));
  EXPECT_EQ(Examine().ExitStatus(), 1) << "no other device connects";
}

TEST_F(FindingsTest, TooLittleMemlockNamesBothFiguresAndTheCommand) {
  host_.memlock_bytes = 64 << 10;
  const Diagnosis diagnosis = Examine();
  EXPECT_THAT(diagnosis.findings,
              Found(Severity::kError, "RLIMIT_MEMLOCK is 64 KiB", "ulimit -l unlimited"));
  EXPECT_THAT(diagnosis.findings,
              Found(Severity::kError, std::to_string(SmallMemoryPerExecutor() >> 10) + " KiB", ""));
  EXPECT_EQ(diagnosis.ExitStatus(), 1);
}

TEST_F(FindingsTest, MemlockForOneExecutorAloneIsAWarning) {
  host_.memlock_bytes = 2 * MemoryPerExecutor();
  host_.memlock_hard_bytes = host_.memlock_bytes;
  const Diagnosis diagnosis = Examine();
  EXPECT_THAT(diagnosis.findings, Found(Severity::kWarning, "RLIMIT_MEMLOCK", "limits.conf"));
  EXPECT_EQ(diagnosis.ExitStatus(), 0);
}

TEST_F(FindingsTest, MemlockForSmallLimitsAloneIsAWarningThatSaysSo) {
  host_.memlock_bytes = 8 << 20;
  const Diagnosis diagnosis = Examine();
  EXPECT_THAT(diagnosis.findings,
              Found(Severity::kWarning, "run with LinkLimits::Small()", "LimitMEMLOCK=infinity"));
  EXPECT_EQ(diagnosis.ExitStatus(), 0);
}

TEST_F(FindingsTest, MemlockBindsWhoMayLockAnythingOnADeviceThatCountsByItself) {
  host_.memlock_bytes = 64 << 10;
  host_.may_lock_any_memory = true;
  devices_[0].capabilities.root_pins = internal::RootPins::kWithinTheLimit;
  EXPECT_THAT(Examine().findings, Found(Severity::kError, "RLIMIT_MEMLOCK is 64 KiB", ""));
}

TEST_F(FindingsTest, MemlockDoesNotBindWhoMayLockAnything) {
  host_.memlock_bytes = 0;
  host_.may_lock_any_memory = true;
  EXPECT_THAT(Examine().findings, IsEmpty());
}

TEST_F(FindingsTest, CgroupLimitsAreWarnings) {
  host_.cgroup_rdma = {"mlx5_0 hca_handle=2 hca_object=5"};
  host_.cgroup_memory_bytes = 1 << 20;
  const Diagnosis diagnosis = Examine();
  EXPECT_THAT(diagnosis.findings, Found(Severity::kWarning, "hca_handle=2", "rdma.max"));
  EXPECT_THAT(diagnosis.findings, Found(Severity::kWarning, "memory.max is 1024 KiB", ""));
  EXPECT_EQ(diagnosis.ExitStatus(), 0);
}

TEST_F(FindingsTest, ADeviceWithoutSharedReceiveQueuesCarriesFewerLinks) {
  devices_[0].capabilities.srq = false;
  const Diagnosis diagnosis = Examine();
  EXPECT_THAT(diagnosis.findings, Found(Severity::kWarning, "256 links by default", "srq_depth"));
  EXPECT_EQ(diagnosis.ExitStatus(), 0);
}

TEST_F(FindingsTest, HugepagesAndIoUringAreAdvice) {
  host_.huge_pages[0].total = 0;
  host_.io_uring_forbidden = true;
  const Diagnosis diagnosis = Examine();
  EXPECT_THAT(diagnosis.findings, Found(Severity::kAdvice, "hugepages", "vm.nr_hugepages"));
  EXPECT_THAT(diagnosis.findings, Found(Severity::kAdvice, "io_uring", "io_uring_disabled=0"));
  EXPECT_EQ(diagnosis.ExitStatus(), 0);
}

}  // namespace findings_test
}  // namespace verbena::doctor
