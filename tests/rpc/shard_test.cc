// An executor's part of a runtime allows as many links as its smallest device. It makes a new
// endpoint without registering memory on the executor.

#include "verbena/rpc/shard.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/transport/device/delegating_device.h"
#include "tests/transport/device/held_device.h"
#include "verbena/rpc/device_keeper.h"
#include "verbena/transport/connect/local_bootstrap.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/spawn.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena {
namespace {

// Its shared receive queues hold few receives, so few links share them.
class SmallDevice final : public DelegatingDevice {
 public:
  explicit SmallDevice(Device& device)
      : DelegatingDevice(device), attributes_(device.attributes()) {
    attributes_.max_srq_wr = 512;
  }
  const ibv_device_attr& attributes() const override { return attributes_; }

 private:
  ibv_device_attr attributes_;
};

// A server that counted too many would place links where they are refused.
TEST(ShardTest, MaxLinksIsThatOfItsSmallestDeviceInUseOrNot) {
  const std::unique_ptr<Executor> executor = *Executor::Create({});
  LocalNetwork network;
  LocalBootstrap bootstrap(network);
  const std::unique_ptr<SoftDevice> soft = *SoftDevice::Create({});
  SmallDevice small(*soft);
  const auto large_keeper = *DeviceKeeper::Create(*soft, {});
  const auto small_keeper = *DeviceKeeper::Create(small, {});
  const LinkLimits limits;
  const uint32_t most = DeriveLimits(limits, *soft)->max_links;
  const uint32_t least = DeriveLimits(limits, small)->max_links;
  ASSERT_GT(least, 0u);
  ASSERT_LT(least, most);

  for (const size_t used : {0, 1}) {
    Shard shard(*executor, bootstrap, 0, RuntimeId::Random());
    ASSERT_EQ(shard.Init({large_keeper.get(), small_keeper.get()}, limits, 1), absl::OkStatus());
    EXPECT_EQ(shard.max_links(), least) << "none is in use";
    ASSERT_TRUE(shard.EndpointOn(used).ok());
    EXPECT_EQ(shard.max_links(), least) << "device " << used << " is in use";
    ASSERT_TRUE(shard.EndpointOn(1 - used).ok());
    EXPECT_EQ(shard.max_links(), least) << "both are in use";
    bool done = false;
    Spawn(*executor, [](Shard& shard, bool& done) -> Task<void> {
      co_await shard.Shutdown();
      done = true;
    }(shard, done));
    while (!done) executor->Poll();
  }
}

class ShardEndpointTest : public ::testing::Test {
 protected:
  using Made = std::optional<absl::StatusOr<Endpoint*>>;

  void SetUp() override {
    ASSERT_EQ(shard_.Init({held_keeper_.get(), other_keeper_.get()}, {}, 1), absl::OkStatus());
    held_.WatchThisThread();
  }
  void TearDown() override {
    bool done = false;
    Spawn(*executor_, [](Shard& shard, bool& done) -> Task<void> {
      co_await shard.Shutdown();
      done = true;
    }(shard_, done));
    while (!done) executor_->Poll();
  }

  void Make(size_t device, Made& made) {
    Spawn(*executor_, [](Shard& shard, size_t device, Made& made) -> Task<void> {
      made = co_await shard.AwaitEndpointOn(device);
    }(shard_, device, made));
  }
  void Await(const std::function<bool()>& done) {
    while (!done()) executor_->Poll();
  }

  const std::unique_ptr<Executor> executor_ = *Executor::Create({});
  LocalNetwork network_;
  LocalBootstrap bootstrap_{network_};
  const std::unique_ptr<SoftDevice> soft_ = *SoftDevice::Create({});
  HeldDevice held_{*soft_};
  const std::unique_ptr<DeviceKeeper> held_keeper_ = *DeviceKeeper::Create(held_, {});
  const std::unique_ptr<DeviceKeeper> other_keeper_ = *DeviceKeeper::Create(*soft_, {});
  Shard shard_{*executor_, bootstrap_, 0, RuntimeId::Random()};
};

TEST_F(ShardEndpointTest, NoMemoryOfANewEndpointIsRegisteredOnItsExecutor) {
  Made made;
  Make(0, made);
  Await([&] { return made.has_value(); });
  EXPECT_TRUE(made->ok()) << made->status();
  EXPECT_GT(held_.calls(HeldDevice::Verb::kRegister), 0);
  EXPECT_EQ(held_.calls_of_this_thread(), 0);
}

TEST_F(ShardEndpointTest, OthersAreServedWhileTheMemoryOfANewEndpointIsRegistered) {
  held_.Hold(HeldDevice::Verb::kRegister);
  Made first, second, other;
  Make(0, first);
  Make(0, second);
  Await([&] { return held_.waiting(HeldDevice::Verb::kRegister) > 0; });
  Make(1, other);
  Await([&] { return other.has_value(); });
  EXPECT_TRUE(other->ok()) << other->status();
  EXPECT_FALSE(first.has_value() || second.has_value());
  held_.Release(HeldDevice::Verb::kRegister);
  Await([&] { return first.has_value() && second.has_value(); });
  ASSERT_TRUE(first->ok()) << first->status();
  EXPECT_EQ(*first, *second) << "one for both";
}

}  // namespace
}  // namespace verbena
