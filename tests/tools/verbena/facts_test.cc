// The doctor reads a machine's facts from /proc, /sys and /dev, and takes missing files and garbage
// for facts that are unknown.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "tests/support/fake_root.h"
#include "tests/support/forbidden_call.h"
#include "tools/verbena/container_facts.h"
#include "tools/verbena/device_facts.h"
#include "tools/verbena/host_facts.h"

namespace verbena::doctor {
namespace facts_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(HostFactsTest, AnEmptyMachineHasNothingAndIsNoError) {
  const FakeRoot root;
  const HostFacts facts = ReadHostFacts(root.path(), 65536, kUnlimited);
  EXPECT_EQ(facts.memlock_bytes, 65536u);
  EXPECT_EQ(facts.memlock_hard_bytes, kUnlimited);
  EXPECT_FALSE(facts.container);
  EXPECT_FALSE(facts.may_lock_any_memory);
  EXPECT_FALSE(facts.cgroup_memory_bytes.has_value());
  EXPECT_THAT(facts.modules, IsEmpty());
  EXPECT_THAT(facts.device_files, IsEmpty());
  EXPECT_THAT(facts.huge_pages, IsEmpty());
}

TEST(HostFactsTest, ReadsWhatAMachineHas) {
  FakeRoot root;
  root.Write("proc/sys/kernel/osrelease", "6.1.0\n");
  root.Write("proc/sys/kernel/io_uring_disabled", "2\n");
  root.Write("proc/self/status", "Name:\tx\nCapEff:\t0000000000004000\n");
  root.Write("proc/self/cgroup", "0::/kubepods/pod7\n");
  root.Write("proc/1/cgroup", "0::/kubepods/pod7\n");
  root.Write("sys/fs/cgroup/kubepods/pod7/memory.max", "1048576\n");
  root.Write("sys/fs/cgroup/kubepods/pod7/rdma.max",
             "mlx5_0 hca_handle=2 hca_object=max\nmlx5_1 hca_handle=max hca_object=max\n");
  root.Write("sys/module/ib_core/refcnt", "1");
  root.Write("sys/module/snd/refcnt", "1");
  root.Write("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "10\n");
  root.Write("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "4\n");
  root.Write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  root.Write("dev/infiniband/uverbs0", "");
  root.Write("dev/infiniband/umad0", "");
  root.Write("sys/class/net/eth0/type", "1\n");
  root.Write("sys/class/net/eth0/operstate", "up\n");
  root.Write("sys/class/net/eth1/type", "1\n");
  root.Write("sys/class/net/eth1/operstate", "down\n");
  root.Write("sys/class/net/lo/type", "772\n");
  root.Write("sys/class/net/lo/operstate", "unknown\n");
  const HostFacts facts = ReadHostFacts(root.path(), 0, 0);
  EXPECT_EQ(facts.kernel, "6.1.0");
  EXPECT_TRUE(facts.io_uring_forbidden);
  EXPECT_TRUE(facts.may_lock_any_memory);
  EXPECT_TRUE(facts.container);
  EXPECT_EQ(facts.cgroup_memory_bytes, 1048576u);
  EXPECT_THAT(facts.cgroup_rdma, ElementsAre("mlx5_0 hca_handle=2 hca_object=max"));
  EXPECT_THAT(facts.modules, ElementsAre("ib_core"));
  ASSERT_EQ(facts.huge_pages.size(), 1u);
  EXPECT_EQ(facts.huge_pages[0].page_kib, 2048u);
  EXPECT_EQ(facts.huge_pages[0].total, 10u);
  EXPECT_EQ(facts.huge_pages[0].free, 4u);
  EXPECT_EQ(facts.transparent_huge_pages, "madvise");
  ASSERT_EQ(facts.device_files.size(), 1u);
  EXPECT_EQ(facts.device_files[0].path, "/dev/infiniband/uverbs0");
  EXPECT_TRUE(facts.device_files[0].usable);
  EXPECT_THAT(facts.interfaces, ElementsAre("eth0"));
}

TEST(HostFactsTest, GarbageInSmallFilesIsSkipped) {
  FakeRoot root;
  root.Write("proc/self/status", "CapEff:\tzzz\n");
  root.Write("sys/kernel/mm/hugepages/hugepages-/nr_hugepages", "many");
  root.Write("sys/kernel/mm/hugepages/x/nr_hugepages", "1");
  root.Write("sys/kernel/mm/transparent_hugepage/enabled", "]always[");
  root.Write("proc/self/cgroup", "garbage\n");
  root.Write("sys/fs/cgroup/memory.max", "max\n");
  const HostFacts facts = ReadHostFacts(root.path(), 0, 0);
  EXPECT_FALSE(facts.may_lock_any_memory);
  EXPECT_EQ(facts.transparent_huge_pages, "");
  EXPECT_FALSE(facts.cgroup_memory_bytes.has_value());
}

TEST(ContainerFactsTest, ReadsWhatAContainerTakes) {
  FakeRoot root;
  root.Write("proc/self/status",
             "Name:\tSeccomp:\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t1\n");
  root.Write("proc/self/uid_map", "         0     100000      65536\n");
  root.Write("proc/sys/kernel/io_uring_disabled", "1\n");
  root.Write("proc/self/cgroup", "0::/kubepods/pod7\n");
  root.Write("sys/fs/cgroup/kubepods/pod7/cpu.max", "max 100000\n");
  root.Write("sys/fs/cgroup/kubepods/cpu.max", "150000 100000\n");
  root.Write("sys/fs/cgroup/cpu.max", "garbage\n");
  const ContainerFacts facts = ReadContainerFiles(root.path());
  EXPECT_EQ(facts.seccomp, 2);
  EXPECT_TRUE(facts.no_new_privileges);
  EXPECT_TRUE(facts.user_namespace);
  EXPECT_EQ(facts.io_uring_disabled, 1u);
  EXPECT_EQ(facts.core_quota, 1.5);
}

TEST(ContainerFactsTest, AnEmptyMachineTakesNothing) {
  const FakeRoot root;
  const ContainerFacts facts = ReadContainerFiles(root.path());
  EXPECT_EQ(facts.seccomp, 0);
  EXPECT_FALSE(facts.no_new_privileges);
  EXPECT_FALSE(facts.user_namespace);
  EXPECT_FALSE(facts.io_uring_disabled.has_value());
  EXPECT_FALSE(facts.core_quota.has_value());
}

// As under the profiles of Docker and containerd.
TEST(ContainerFactsTest, IoUringThatAFilterForbidsIsFoundByTryingIt) {
  WithForbidden(SYS_io_uring_setup, EPERM, [] {
    const ContainerFacts facts = ReadContainerFacts();
    EXPECT_FALSE(facts.io_uring.ok());
    EXPECT_EQ(facts.user, geteuid());
    EXPECT_GT(facts.cores, 0u);
  });
}

TEST(DeviceFactsTest, ReadsPortsAndGidsInTheOrderOfTheirIndex) {
  FakeRoot root;
  const std::string device = "sys/class/infiniband/rxe0/";
  root.Write(device + "node_type", "1: CA\n");
  root.Write(device + "fw_ver", "\n");
  root.Write(device + "device/numa_node", "1\n");
  root.Write(device + "ports/1/state", "4: ACTIVE\n");
  root.Write(device + "ports/1/link_layer", "Ethernet\n");
  root.Write(device + "ports/1/rate", "2.5 Gb/sec (1X SDR)\n");
  root.Write(device + "ports/1/lid", "0x0\n");
  const auto add_gid = [&](const std::string& index, const std::string& gid,
                           const std::string& type) {
    root.Write(device + "ports/1/gids/" + index, gid + "\n");
    root.Write(device + "ports/1/gid_attrs/types/" + index, type + "\n");
    root.Write(device + "ports/1/gid_attrs/ndevs/" + index, "eth0\n");
  };
  add_gid("0", "fe80:0000:0000:0000:0000:0000:0000:0001", "IB/RoCE v1");
  add_gid("2", "0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2");
  add_gid("10", "2001:0db8:0000:0000:0000:0000:0000:0001", "RoCE v2");
  add_gid("3", "0000:0000:0000:0000:0000:0000:0000:0000", "");
  const std::vector<DeviceFacts> devices = ReadDeviceFacts(root.path());
  ASSERT_EQ(devices.size(), 1u);
  EXPECT_EQ(devices[0].name, "rxe0");
  EXPECT_EQ(devices[0].node_type, "CA");
  EXPECT_EQ(devices[0].numa_node, 1);
  ASSERT_EQ(devices[0].ports.size(), 1u);
  const PortFacts& port = devices[0].ports[0];
  EXPECT_EQ(port.state, "ACTIVE");
  ASSERT_EQ(port.gids.size(), 3u);
  EXPECT_EQ(port.gids[0].address, "fe80::1");
  EXPECT_EQ(port.gids[1].address, "10.0.0.1");
  EXPECT_EQ(port.gids[1].type, "RoCE v2");
  EXPECT_EQ(port.gids[2].index, 10);
}

TEST(DeviceFactsTest, OpeningADeviceThatDoesNotExistSaysSo) {
  DeviceFacts device;
  device.name = "no_such_device0";
  OpenAndProbe(device);
  EXPECT_FALSE(device.opened.ok());
  EXPECT_FALSE(device.attributes.has_value());
}

}  // namespace facts_test
}  // namespace verbena::doctor
