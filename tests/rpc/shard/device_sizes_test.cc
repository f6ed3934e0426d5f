// Devices that pin memory get LinkLimits::Small() where RLIMIT_MEMLOCK has no room for the default
// sizes, and are refused in words where not even those fit. Sizes that a program chose stay, the
// soft device pins nothing, and a cgroup's memory.max is compared with what may be taken.

#include "verbena/rpc/shard/device_sizes.h"

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "verbena/transport/connect/peer.h"
#include "verbena/transport/link/limits.h"

namespace verbena::internal {
namespace device_sizes_test {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr uint64_t kMiB = uint64_t{1} << 20;

class DeviceSizesTest : public testing::Test {
 protected:
  DeviceSizesTest() {
    memory_.memlock = 8 * kMiB;
    memory_.memlock_hard = 8 * kMiB;
  }
  absl::StatusOr<DeviceSizes> TryFit() const {
    return FitSizes(wanted_, executors_, devices_, memory_);
  }
  DeviceSizes Fit() const {
    const absl::StatusOr<DeviceSizes> sizes = TryFit();
    EXPECT_TRUE(sizes.ok()) << sizes.status();
    return sizes.value_or(DeviceSizes());
  }
  std::string Refusal() const { return std::string(TryFit().status().message()); }

  LinkLimits wanted_;
  int executors_ = 1;
  std::vector<DeviceNeed> devices_ = {{.name = "mlx5_0", .pins = true}};
  ProcessMemory memory_;
};

TEST_F(DeviceSizesTest, OneExecutorAndOneNicRunSmallWithinEightMebibytes) {
  const DeviceSizes sizes = Fit();
  EXPECT_EQ(sizes.pinning.srq_depth, LinkLimits::Small().srq_depth);
  EXPECT_THAT(sizes.reduced,
              AllOf(HasSubstr("LinkLimits::Small()"), HasSubstr("RLIMIT_MEMLOCK is 8192 KiB"),
                    HasSubstr("1 executor on mlx5_0"), HasSubstr("LimitMEMLOCK="),
                    HasSubstr("ulimit -l"), HasSubstr("container")));
  EXPECT_THAT(sizes.warnings, IsEmpty());
  EXPECT_LE(PinnedMemoryOf(sizes.pinning, /*emulated=*/false).all(), 8 * kMiB)
      << "all links and payloads fit, too";
}

TEST_F(DeviceSizesTest, OptionsThatPinNothingAreKeptInASmallRuntime) {
  wanted_.connect_timeout = std::chrono::seconds(3);
  wanted_.leases.level = LeaseLevel::kRegion;
  const DeviceSizes sizes = Fit();
  EXPECT_EQ(sizes.pinning.max_links, LinkLimits::Small().max_links);
  EXPECT_EQ(sizes.pinning.connect_timeout, std::chrono::seconds(3));
  EXPECT_EQ(sizes.pinning.leases.level, LeaseLevel::kRegion);
}

TEST_F(DeviceSizesTest, TheSoftDeviceBesideItKeepsItsSizesAndSharesAreThoseOfTheSmallOne) {
  devices_.push_back({.name = "soft0"});
  const DeviceSizes sizes = Fit();
  EXPECT_EQ(sizes.Of(LinkKind::kSoft).max_links, LinkLimits().max_links);
  EXPECT_EQ(sizes.Of(LinkKind::kTcp).max_links, LinkLimits().max_links);
  for (const LinkKind kind :
       {LinkKind::kInfiniBand, LinkKind::kRoce, LinkKind::kRoceV1, LinkKind::kIwarp}) {
    EXPECT_EQ(sizes.Of(kind).max_links, LinkLimits::Small().max_links);
  }
  EXPECT_EQ(sizes.smallest().memory.receive_bytes, LinkLimits::Small().memory.receive_bytes);
}

TEST_F(DeviceSizesTest, TheSoftDeviceAlonePinsNothing) {
  devices_ = {{.name = "soft0"}, {.name = "tcp0"}};
  memory_.memlock = 0;
  const DeviceSizes sizes = Fit();
  EXPECT_EQ(sizes.reduced, "");
  EXPECT_EQ(sizes.pinning.srq_depth, LinkLimits().srq_depth);
  EXPECT_EQ(sizes.smallest().srq_depth, LinkLimits().srq_depth);
}

TEST_F(DeviceSizesTest, WithRoomForMorePayloadsThanSmallTheDefaultsStay) {
  const uint64_t need = PinnedMemoryOf(LinkLimits(), /*emulated=*/false).at_start + 3 * kMiB;
  memory_.memlock = need;
  EXPECT_EQ(Fit().reduced, "");
  memory_.memlock = need - 1;
  EXPECT_NE(Fit().reduced, "");
  memory_.memlock = need + kMiB;
  memory_.pinned = 2 * kMiB;
  EXPECT_NE(Fit().reduced, "") << "another library pins memory, too";
  memory_.pinned = 0;
  executors_ = 2;
  EXPECT_NE(Fit().reduced, "");
  memory_.memlock = 2 * need;
  EXPECT_EQ(Fit().reduced, "");
}

// As CAP_IPC_LOCK, or LimitMEMLOCK=infinity.
TEST_F(DeviceSizesTest, WithoutALimitTheDefaultsStayExceptWhereTheDeviceCountsByItself) {
  memory_.may_lock_any = true;
  EXPECT_EQ(Fit().reduced, "");
  devices_[0].root = RootPins::kWithinTheLimit;
  EXPECT_NE(Fit().reduced, "");
  memory_.memlock = kNoMemoryLimit;
  EXPECT_EQ(Fit().reduced, "");
}

TEST_F(DeviceSizesTest, ALimitTooSmallForSmallIsRefusedWithFiguresAndRemedies) {
  memory_.memlock = 64 << 10;
  memory_.memlock_hard = 8 * kMiB;
  EXPECT_TRUE(absl::IsResourceExhausted(TryFit().status()));
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("RLIMIT_MEMLOCK is 64 KiB"), HasSubstr("is 8192 KiB"),
                               HasSubstr("1 executor on mlx5_0"), HasSubstr("ulimit -l"),
                               HasSubstr("LimitMEMLOCK="), HasSubstr("--ulimit memlock=")));
}

TEST_F(DeviceSizesTest, MoreExecutorsThanFitAreRefusedByNumber) {
  executors_ = 2;
  EXPECT_NE(Fit().reduced, "") << "two begin, and share what is left for payloads";
  executors_ = 3;
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("3 executors on mlx5_0"), HasSubstr("fewer executors")));
  executors_ = 1;
  devices_ = {{.name = "mlx5_0", .pins = true},
              {.name = "mlx5_1", .pins = true},
              {.name = "siw0", .pins = true}};
  EXPECT_THAT(Refusal(), HasSubstr("mlx5_0, mlx5_1, siw0"));
}

TEST_F(DeviceSizesTest, SizesThatTheProgramChoseAreNeitherChangedNorRefused) {
  wanted_.srq_depth = 4096;
  DeviceSizes sizes = Fit();
  EXPECT_EQ(sizes.pinning.srq_depth, 4096u);
  EXPECT_EQ(sizes.reduced, "");
  EXPECT_THAT(sizes.warnings, ElementsAre(AllOf(HasSubstr("RLIMIT_MEMLOCK is 8192 KiB"),
                                                HasSubstr("with the given LinkLimits"))));
  wanted_ = LinkLimits::Small();
  sizes = Fit();
  EXPECT_EQ(sizes.reduced, "") << "it was asked for";
  EXPECT_THAT(sizes.warnings, IsEmpty());
}

TEST_F(DeviceSizesTest, BudgetsBeyondTheCgroupAreLogged) {
  memory_.memlock = kNoMemoryLimit;
  memory_.cgroup_max = 256 * kMiB;
  memory_.cgroup_file = "/sys/fs/cgroup/memory.max";
  EXPECT_THAT(Fit().warnings,
              ElementsAre(AllOf(HasSubstr("/sys/fs/cgroup/memory.max says 262144 KiB"),
                                HasSubstr("under load"), HasSubstr("LinkLimits::memory"),
                                HasSubstr("MemoryMax="))));
  wanted_.memory = {
      .send_bytes = 32 * kMiB, .receive_bytes = 32 * kMiB, .landing_bytes = 32 * kMiB};
  EXPECT_THAT(Fit().warnings, IsEmpty());
  executors_ = 2;
  EXPECT_THAT(Fit().warnings, ElementsAre(HasSubstr("2 executors on mlx5_0")));
}

TEST_F(DeviceSizesTest, MemoryThatIsPinnedAtOnceBeyondTheCgroupIsRefused) {
  memory_.memlock = kNoMemoryLimit;
  memory_.cgroup_max = 32 * kMiB;
  memory_.cgroup_file = "/sys/fs/cgroup/memory.max";
  EXPECT_TRUE(absl::IsResourceExhausted(TryFit().status()));
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("says 32768 KiB"), HasSubstr("at their start"),
                               HasSubstr("LinkLimits::Small()")));
  wanted_ = LinkLimits::Small();
  EXPECT_THAT(Fit().warnings, IsEmpty());
  // The soft device takes memory as it is used.
  wanted_ = LinkLimits();
  devices_ = {{.name = "soft0"}};
  EXPECT_THAT(Fit().warnings, ElementsAre(HasSubstr("soft0")));
}

}  // namespace device_sizes_test
}  // namespace verbena::internal
