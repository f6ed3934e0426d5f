// A device's NUMA node is read from sysfs, and -1 stands for each value that is missing or
// senseless. Memory that is bound to a node prefers that node.

#include "verbena/transport/device/device.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace verbena::internal {
namespace numa_test {

// A device's directory as sysfs has it, which says `text` of its node.
std::string DirectoryThatSays(const std::string& name, const std::string& text) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / name;
  std::filesystem::create_directories(path / "device");
  std::ofstream(path / "device" / "numa_node") << text;
  return path.string();
}

TEST(NumaTest, ADevicesNodeIsReadFromItsDirectory) {
  EXPECT_EQ(NumaNodeOf(DirectoryThatSays("one", "1\n").c_str()), 1);
  EXPECT_EQ(NumaNodeOf(DirectoryThatSays("none", "-1\n").c_str()), -1);
  EXPECT_EQ(NumaNodeOf(DirectoryThatSays("empty", "").c_str()), -1);
  EXPECT_EQ(NumaNodeOf(DirectoryThatSays("large", "1000000\n").c_str()), -1);
  EXPECT_EQ(NumaNodeOf("/nowhere"), -1);
}

TEST(NumaTest, PagesThatAreNotThereYetComeFromTheNode) {
  constexpr size_t kBytes = size_t{4} << 20;
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  EXPECT_FALSE(PreferNumaNode(memory, kBytes, -1));
  if (!PreferNumaNode(memory, kBytes, 0)) {
    munmap(memory, kBytes);
    GTEST_SKIP() << "this kernel lets nobody choose a node";
  }
  int mode = -1;
  unsigned long nodes[64] = {};
  constexpr unsigned long kNodes = 8 * sizeof(nodes);
  ASSERT_EQ(syscall(SYS_get_mempolicy, &mode, nodes, kNodes, memory, MPOL_F_ADDR), 0);
  EXPECT_EQ(mode, MPOL_PREFERRED);
  EXPECT_EQ(nodes[0], 1u);
  munmap(memory, kBytes);
}

}  // namespace numa_test
}  // namespace verbena::internal
