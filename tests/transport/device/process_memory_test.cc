// What a process may pin and have is read from /proc and /sys: RLIMIT_MEMLOCK binds unless
// CAP_IPC_LOCK is in effect on the host, and of the cgroups on the way up the smallest memory.max
// counts. Missing files and garbage bound nothing.

#include "verbena/transport/device/process_memory.h"

#include <cstdint>

#include "gtest/gtest.h"
#include "tests/support/fake_root.h"

namespace verbena::internal {
namespace process_memory_test {

constexpr uint64_t kLimit = uint64_t{8} << 20;
constexpr char kAnyCapability[] = "Name:\tx\nVmPin:\t     0 kB\nCapEff:\t000001ffffffffff\n";

ProcessMemory ReadBelow(const FakeRoot& root) {
  return ReadProcessMemory(root.path(), kLimit, kNoMemoryLimit);
}

TEST(ProcessMemoryTest, WhatIsPinnedAlreadyLeavesLess) {
  FakeRoot root;
  root.Write("proc/self/status", "Name:\tx\nVmPin:\t    1024 kB\nCapEff:\t0000000000000000\n");
  const ProcessMemory memory = ReadBelow(root);
  EXPECT_EQ(memory.memlock, kLimit);
  EXPECT_EQ(memory.memlock_hard, kNoMemoryLimit);
  EXPECT_EQ(memory.pinned, uint64_t{1} << 20);
  EXPECT_EQ(memory.MayPin(RootPins::kFreely), uint64_t{7} << 20);
  root.Write("proc/self/status", "Name:\tx\nVmPin:\t   10240 kB\n");
  EXPECT_EQ(ReadBelow(root).MayPin(RootPins::kFreely), 0u) << "the limit was lowered since";
}

TEST(ProcessMemoryTest, CapIpcLockLiftsTheLimitExceptOnADeviceThatCountsByItself) {
  FakeRoot root;
  root.Write("proc/self/status", kAnyCapability);
  root.Write("proc/self/uid_map", "         0          0 4294967295\n");
  const ProcessMemory memory = ReadBelow(root);
  EXPECT_TRUE(memory.may_lock_any);
  EXPECT_EQ(memory.MayPin(RootPins::kFreely), kNoMemoryLimit);
  EXPECT_EQ(memory.MayPin(RootPins::kWithinTheLimit), kLimit);
}

TEST(ProcessMemoryTest, OtherCapabilitiesDoNotLiftTheLimit) {
  FakeRoot root;
  root.Write("proc/self/status", "Name:\tx\nCapEff:\t000001ffffffbfff\n");
  EXPECT_EQ(ReadBelow(root).MayPin(RootPins::kFreely), kLimit);
}

// The kernel asks for the capability on the host, and root of a container with user ids of its own
// does not have it there.
TEST(ProcessMemoryTest, CapabilitiesOfAUserNamespaceDoNotLiftTheLimit) {
  FakeRoot root;
  root.Write("proc/self/status", kAnyCapability);
  root.Write("proc/self/uid_map", "         0     100000      65536\n");
  EXPECT_FALSE(ReadBelow(root).may_lock_any);
  EXPECT_EQ(ReadBelow(root).MayPin(RootPins::kFreely), kLimit);
}

TEST(ProcessMemoryTest, TheSmallestBoundOnTheWayUpToTheTopCounts) {
  FakeRoot root;
  root.Write("proc/self/cgroup", "1:name=x:/other\n0::/kubepods/pod7/c1\n");
  root.Write("sys/fs/cgroup/kubepods/pod7/c1/memory.max", "max\n");
  root.Write("sys/fs/cgroup/kubepods/pod7/memory.max", "268435456\n");
  root.Write("sys/fs/cgroup/kubepods/memory.max", "1073741824\n");
  root.Write("sys/fs/cgroup/other/memory.max", "1\n");
  const ProcessMemory memory = ReadBelow(root);
  EXPECT_EQ(memory.cgroup_max, 268435456u);
  EXPECT_EQ(memory.cgroup_file, root.path() + "/sys/fs/cgroup/kubepods/pod7/memory.max");
  EXPECT_EQ(CgroupDirectory(root.path()), root.path() + "/sys/fs/cgroup/kubepods/pod7/c1/");
}

// As in a container, which sees its own cgroup as the top one, or is told of one that it cannot
// see.
TEST(ProcessMemoryTest, TheTopOfAContainersCgroupsCounts) {
  FakeRoot root;
  root.Write("sys/fs/cgroup/memory.max", "4096\n");
  for (const char* line : {"0::/\n", "0::/../../other\n", "0::/not/mounted/here\n"}) {
    root.Write("proc/self/cgroup", line);
    EXPECT_EQ(ReadBelow(root).cgroup_max, 4096u) << line;
  }
}

TEST(ProcessMemoryTest, AMachineThatSaysNothingBoundsNothing) {
  FakeRoot root;
  EXPECT_EQ(ReadBelow(root).pinned, 0u);
  EXPECT_EQ(ReadBelow(root).cgroup_max, kNoMemoryLimit);
  EXPECT_EQ(ReadBelow(root).cgroup_file, "");
  EXPECT_FALSE(ReadBelow(root).may_lock_any);
  root.Write("proc/self/cgroup", "garbage\n");
  root.Write("sys/fs/cgroup/memory.max", "much\n");
  root.Write("proc/self/status", "CapEff:\tzzz\n");
  EXPECT_EQ(ReadBelow(root).cgroup_max, kNoMemoryLimit);
  EXPECT_FALSE(ReadBelow(root).may_lock_any);
  EXPECT_EQ(ReadProcessMemory("/nowhere", kNoMemoryLimit, kNoMemoryLimit).MayPin(RootPins::kFreely),
            kNoMemoryLimit);
}

TEST(ProcessMemoryTest, PinnedBytesAreReadFromVmPinAndNotFromItsNeighbours) {
  EXPECT_EQ(PinnedBytes("Name:\tx\nVmLck:\t    16 kB\nVmPin:\t     8 kB\nVmHWM:\t 100 kB\n"),
            8u * 1024);
  EXPECT_EQ(PinnedBytes("Name:\tVmPin: 8 kB\nVmLck:\t 16 kB\n"), 0u);
  EXPECT_EQ(PinnedBytes(""), 0u);
}

}  // namespace process_memory_test
}  // namespace verbena::internal
