// A runtime that may pin little runs with LinkLimits::Small() on devices that pin memory, says so
// in the log and by reduced(), and is refused in words where not even that fits. Executors that
// should run near a device that says nothing of its place run anywhere.

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport/base/captured_log.h"
#include "tests/transport/device/delegating_device.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal {
namespace small_runtime_test {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr uint64_t kMiB = uint64_t{1} << 20;

// A soft device that says that it is a NIC on Ethernet, and so that it pins memory.
class NicLikeDevice final : public DelegatingDevice {
 public:
  explicit NicLikeDevice(Device& device) : DelegatingDevice(device) {
    told_kind = DeviceKind::kRdma;
  }
  absl::StatusOr<ibv_port_attr> QueryPort(uint8_t port) override {
    absl::StatusOr<ibv_port_attr> attributes = DelegatingDevice::QueryPort(port);
    if (attributes.ok()) attributes->link_layer = IBV_LINK_LAYER_ETHERNET;
    return attributes;
  }
};

class SmallRuntimeTest : public testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<Runtime>> Start(RuntimeOptions options, uint64_t memlock) {
    TestDevice device{.use = &nic_, .also_use = also_use_};
    device.memory.memlock = memlock;
    return RuntimeCore::Start(std::move(options), std::move(device));
  }
  // The most links that the first executor takes on a device.
  static uint32_t MaxLinksOn(Runtime& runtime, size_t device) {
    Shard& shard = CoreOf(runtime).shard(0);
    return runtime.BlockOn([](Shard& shard, size_t device) -> Task<uint32_t> {
      const absl::StatusOr<Endpoint*> endpoint = shard.EndpointOn(device);
      co_return endpoint.ok() ? (*endpoint)->limits().max_links : 0;
    }(shard, device));
  }

  const std::unique_ptr<SoftDevice> below_ = *SoftDevice::Create({.profile = SoftProfile()});
  NicLikeDevice nic_{*below_};
  Device* also_use_ = nullptr;
  CapturedLog log_;
};

TEST_F(SmallRuntimeTest, EightMebibytesMakeItSmallAndItSaysSoOnce) {
  auto runtime = Start({}, 8 * kMiB);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  EXPECT_THAT((*runtime)->reduced(), HasSubstr("RLIMIT_MEMLOCK is 8192 KiB"));
  EXPECT_THAT(log_.Take(), Contains("Verbena " + (*runtime)->reduced()).Times(1));
  EXPECT_THAT(CoreOf(**runtime).degraded(), ElementsAre("the runtime " + (*runtime)->reduced()));
  EXPECT_EQ(MaxLinksOn(**runtime, 0), LinkLimits::Small().max_links);
}

TEST_F(SmallRuntimeTest, WithoutALimitItIsNotAndSaysNothing) {
  auto runtime = Start({}, kNoMemoryLimit);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  EXPECT_EQ((*runtime)->reduced(), "");
  EXPECT_THAT(CoreOf(**runtime).degraded(), IsEmpty());
  EXPECT_THAT(log_.Take(), Not(Contains(HasSubstr("Small()"))));
  EXPECT_EQ(MaxLinksOn(**runtime, 0), LinkLimits().max_links);
}

TEST_F(SmallRuntimeTest, ADeviceThatPinsNothingKeepsItsSizesBesideIt) {
  const std::unique_ptr<SoftDevice> soft =
      *SoftDevice::Create({.name = "soft1", .profile = SoftProfile()});
  also_use_ = soft.get();
  auto runtime = Start({}, 8 * kMiB);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  EXPECT_EQ(MaxLinksOn(**runtime, 0), LinkLimits::Small().max_links);
  EXPECT_EQ(MaxLinksOn(**runtime, 1), LinkLimits().max_links);
  EXPECT_EQ(CoreOf(**runtime).shard(0).wanted_limits().memory.receive_bytes,
            LinkLimits::Small().memory.receive_bytes)
      << "shares of clients are shares of the small device";
}

TEST_F(SmallRuntimeTest, ALimitForNothingIsRefusedAtTheStart) {
  const absl::Status refused = Start({}, 64 << 10).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("RLIMIT_MEMLOCK is 64 KiB"), HasSubstr("LimitMEMLOCK=")));
}

TEST_F(SmallRuntimeTest, SizesOfTheProgramStay) {
  auto runtime = Start({.limits = {.max_links = 16}}, 8 * kMiB);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  EXPECT_EQ((*runtime)->reduced(), "");
  EXPECT_EQ(MaxLinksOn(**runtime, 0), 16u);
}

// No file of /sys tells where this device is.
TEST_F(SmallRuntimeTest, NearADeviceThatDoesNotSayWhereItIsNoExecutorIsPinned) {
  auto runtime = Start({.numa = true}, kNoMemoryLimit);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  EXPECT_THAT(log_.Take(), Contains(HasSubstr("0 of 1 executors are pinned")));
  auto soft = Runtime::Start({.numa = true, .device = "soft"});
  ASSERT_TRUE(soft.ok()) << soft.status();
  EXPECT_THAT(log_.Take(), Contains(HasSubstr("there is no RDMA device")));
}

}  // namespace small_runtime_test
}  // namespace verbena::internal
