// Executors get cores that the kernel calls near their device, of those that the process may use:
// each a physical core of its own while there are some. A machine that does not tell gives none.

#include "verbena/transport/device/near_cores.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_root.h"

namespace verbena::internal {
namespace near_cores_test {

using testing::ElementsAre;
using testing::IsEmpty;

// A machine of two nodes of four physical cores with two hardware threads each: threads 0 and 8 are
// one core. mlx5_0 hangs on node 1: cores 4 to 7 and 12 to 15.
class NearCoresTest : public testing::Test {
 protected:
  NearCoresTest() {
    for (int core = 0; core < 16; ++core) {
      allowed_.push_back(core);
      const int first = core % 8;
      root_.Write(
          "sys/devices/system/cpu/cpu" + std::to_string(core) + "/topology/thread_siblings_list",
          std::to_string(first) + "," + std::to_string(first + 8) + "\n");
    }
    root_.Write("sys/devices/system/node/node0/cpulist", "0-3,8-11\n");
    root_.Write("sys/devices/system/node/node1/cpulist", "4-7,12-15\n");
    root_.Write("sys/class/infiniband/mlx5_0/device/numa_node", "1\n");
    root_.Write("sys/class/infiniband/mlx5_0/device/local_cpulist", "4-7,12-15\n");
  }
  std::vector<int> Near(size_t count) { return CoresNear(root_.path(), "mlx5_0", allowed_, count); }

  FakeRoot root_;
  std::vector<int> allowed_;
};

TEST_F(NearCoresTest, PhysicalCoresOfTheDevicesNodeComeFirstAndThenTheirOtherThreads) {
  EXPECT_THAT(Near(1), ElementsAre(4));
  EXPECT_THAT(Near(4), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(Near(6), ElementsAre(4, 5, 6, 7, 12, 13));
}

TEST_F(NearCoresTest, NoCoreOfAnotherNodeIsTaken) {
  EXPECT_THAT(Near(100), ElementsAre(4, 5, 6, 7, 12, 13, 14, 15));
}

// As by taskset, or by the cpuset of a container.
TEST_F(NearCoresTest, OnlyCoresThatTheProcessMayUseAreTaken) {
  allowed_ = {0, 1, 5, 13, 14};
  EXPECT_THAT(Near(3), ElementsAre(5, 14, 13));
  allowed_ = {0, 1, 2};
  EXPECT_THAT(Near(3), IsEmpty()) << "none of them is near";
}

TEST_F(NearCoresTest, WithoutAListOfItsOwnTheDevicesNodeCounts) {
  root_.Write("sys/class/infiniband/mlx5_0/device/local_cpulist", "\n");
  EXPECT_THAT(Near(2), ElementsAre(4, 5));
  root_.Write("sys/class/infiniband/mlx5_0/device/numa_node", "0\n");
  EXPECT_THAT(Near(2), ElementsAre(0, 1));
}

TEST_F(NearCoresTest, ADeviceOfNoNodeGivesNoCores) {
  root_.Write("sys/class/infiniband/rxe0/device/numa_node", "-1\n");
  EXPECT_THAT(CoresNear(root_.path(), "rxe0", allowed_, 2), IsEmpty());
  EXPECT_THAT(CoresNear(root_.path(), "absent0", allowed_, 2), IsEmpty());
  EXPECT_THAT(CoresNear("/nowhere", "mlx5_0", allowed_, 2), IsEmpty());
}

// As in a virtual machine that does not show its topology.
TEST_F(NearCoresTest, CoresWhoseThreadsAreUnknownCountAsPhysicalOnes) {
  FakeRoot bare;
  bare.Write("sys/class/infiniband/mlx5_0/device/local_cpulist", "2-3\n");
  bare.Write("sys/devices/system/cpu/cpu2/topology/thread_siblings_list", "garbage\n");
  EXPECT_THAT(CoresNear(bare.path(), "mlx5_0", allowed_, 4), ElementsAre(2, 3));
}

TEST(CpuListTest, ListsOfTheKernelAreReadAndOthersAreNone) {
  EXPECT_THAT(ParseCpuList("0-2,8\n"), ElementsAre(0, 1, 2, 8));
  EXPECT_THAT(ParseCpuList("7"), ElementsAre(7));
  EXPECT_THAT(ParseCpuList("3,1,1-2"), ElementsAre(1, 2, 3));
  for (const char* text : {"", "\n", "a", "1-", "-1", "1-2-3", "1,,2", "65536", "0-99999999999"}) {
    EXPECT_THAT(ParseCpuList(text), IsEmpty()) << text;
  }
}

TEST(CpuListTest, ThisThreadMayRunSomewhere) { EXPECT_FALSE(AllowedCores().empty()); }

}  // namespace near_cores_test
}  // namespace verbena::internal
