// An executor's part of a runtime allows as many links as its smallest device. It makes a new
// endpoint without registering memory on the executor, once for all who wait for it, and on the
// opening of the device that is in service by then.

#include "verbena/rpc/shard/shard.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tests/transport/device/delegating_device.h"
#include "tests/transport/device/fragile_devices.h"
#include "tests/transport/device/held_device.h"
#include "verbena/rpc/shard/device_keeper.h"
#include "verbena/transport/connect/local_bootstrap.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/spawn.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/soft/options.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal {
namespace shard_test {

// In the steps of Runtime::Shutdown.
void EndShard(Executor& executor, Shard& shard) {
  bool done = false;
  Spawn(executor, [](Shard& shard, bool& done) -> Task<void> {
    shard.BeginShutdown();
    co_await shard.CloseLinks();
    co_await shard.JoinTasks();
    co_await shard.End();
    done = true;
  }(shard, done));
  while (!done) executor.Poll();
}

// A server that counted too many would place links where they are refused.
TEST(ShardTest, MaxLinksIsThatOfItsSmallestDeviceInUseOrNot) {
  const std::unique_ptr<Executor> executor = *Executor::Create({});
  LocalNetwork network;
  LocalBootstrap bootstrap(network);
  const std::unique_ptr<SoftDevice> soft = *SoftDevice::Create({.profile = SoftProfile{}});
  DelegatingDevice small(*soft);
  small.limits.max_srq_wr = 512;  // few receives, so that few links share them
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
    EndShard(*executor, shard);
  }
}

class ShardEndpointTest : public ::testing::Test {
 protected:
  using Made = std::optional<absl::StatusOr<Endpoint*>>;

  void SetUp() override {
    ASSERT_EQ(shard_.Init({held_keeper_.get(), other_keeper_.get()}, {}, 1), absl::OkStatus());
    held_.WatchThisThread();
  }
  void TearDown() override { EndShard(*executor_, shard_); }

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

TEST_F(ShardEndpointTest, AFirstCallerThatIsCancelledEndsNoRegistrationThatOthersWaitFor) {
  held_.Hold(HeldDevice::Verb::kRegister);
  Made first, second;
  TaskScope scope(*executor_);
  scope.Spawn([&]() -> Task<void> { first = co_await shard_.AwaitEndpointOn(0); });
  Await([&] { return held_.waiting(HeldDevice::Verb::kRegister) > 0; });
  Make(0, second);
  scope.RequestCancel();
  Await([&] { return first.has_value(); });
  EXPECT_TRUE(absl::IsCancelled(first->status())) << first->status();
  held_.Release(HeldDevice::Verb::kRegister);
  Await([&] { return second.has_value(); });
  ASSERT_TRUE(second->ok()) << second->status();
  EXPECT_EQ(**second, shard_.devices()[0]->endpoint());
  // Each region is the endpoint's, and none was made for the first alone.
  const int registered = held_.calls(HeldDevice::Verb::kRegister);
  Shard other(*executor_, bootstrap_, 1, RuntimeId::Random());
  ASSERT_EQ(other.Init({held_keeper_.get()}, {}, 1), absl::OkStatus());
  EXPECT_EQ(registered, held_.calls(HeldDevice::Verb::kRegister) - registered);
  EndShard(*executor_, other);
}

TEST_F(ShardEndpointTest, ARegistrationThatItsRuntimeEndsIsToldToWhoWaitsForIt) {
  held_.Hold(HeldDevice::Verb::kRegister);
  Made made;
  Make(0, made);
  Await([&] { return held_.waiting(HeldDevice::Verb::kRegister) > 0; });
  shard_.tasks().RequestCancel();
  Await([&] { return made.has_value(); });
  held_.Release(HeldDevice::Verb::kRegister);
  EXPECT_TRUE(absl::IsUnavailable(made->status())) << made->status();
  EXPECT_NE(made->status().message().find("its runtime ends"), absl::string_view::npos)
      << made->status();
}

TEST_F(ShardEndpointTest, WhoeverWaitsForAnEndpointDoesNotWaitForTheEndOfMemoryThatCameTooLate) {
  held_.Hold(HeldDevice::Verb::kRegister);
  held_.Hold(HeldDevice::Verb::kDeregister);
  Made made;
  Make(0, made);
  Await([&] { return held_.waiting(HeldDevice::Verb::kRegister) > 0; });
  std::thread releaser([this] {
    while (held_.waiting(HeldDevice::Verb::kRegister) < 2) std::this_thread::yield();
    held_.Release(HeldDevice::Verb::kRegister);
  });
  const absl::StatusOr<Endpoint*> at_once = shard_.EndpointOn(0);
  releaser.join();
  ASSERT_TRUE(at_once.ok()) << at_once.status();
  Await([&] { return made.has_value(); });
  held_.Release(HeldDevice::Verb::kDeregister);
  ASSERT_TRUE(made->ok()) << made->status();
  EXPECT_EQ(**made, *at_once);
}

// Its registrations throw while a test says so.
class ThrowingDevice final : public DelegatingDevice {
 public:
  using DelegatingDevice::DelegatingDevice;
  absl::StatusOr<ibv_mr*> RegMr(ibv_pd* pd, void* address, size_t bytes, int access) override {
    if (throws) throw std::bad_alloc();
    return DelegatingDevice::RegMr(pd, address, bytes, access);
  }

  bool throws = false;
};

TEST_F(ShardEndpointTest, ARegistrationThatThrowsIsToldToWhoeverWaitsAndTheNextOneIsTried) {
  ThrowingDevice device(*soft_);
  // Without threads it throws where it is awaited.
  const auto keeper = *DeviceKeeper::Create(device, {.context = {.control_threads = false}});
  Shard shard(*executor_, bootstrap_, 1, RuntimeId::Random());
  ASSERT_EQ(shard.Init({keeper.get(), other_keeper_.get()}, {}, 1), absl::OkStatus());
  for (const bool throws : {true, false}) {
    device.throws = throws;
    Made made[2];
    for (Made& each : made) {
      Spawn(*executor_, [](Shard& shard, Made& made) -> Task<void> {
        made = co_await shard.AwaitEndpointOn(0);
      }(shard, each));
    }
    for (const Made& each : made) {
      Await([&] { return each.has_value(); });
      EXPECT_EQ(each->status().code(), throws ? absl::StatusCode::kInternal : absl::StatusCode::kOk)
          << each->status();
    }
  }
  EndShard(*executor_, shard);
}

// The parameter: whether the failed device completes the registration, or answers EIO.
class ShardOnFragileDevicesTest : public ShardEndpointTest,
                                  public ::testing::WithParamInterface<bool> {};

TEST_P(ShardOnFragileDevicesTest, ARegistrationThatHangsOnAFailedOpeningDelaysNobodyOnTheNextOne) {
  FragileDevices devices("fragile");
  const auto keeper = *DeviceKeeper::Create(*devices.Open(), [&devices] { return devices.Open(); },
                                            {.backoff = {.first = std::chrono::milliseconds(1),
                                                         .longest = std::chrono::milliseconds(4)}});
  Shard shard(*executor_, bootstrap_, 1, RuntimeId::Random());
  ASSERT_EQ(shard.Init({keeper.get(), other_keeper_.get()}, {}, 1), absl::OkStatus());
  const auto make = [&](Made& made) {
    Spawn(*executor_, [](Shard& shard, Made& made) -> Task<void> {
      made = co_await shard.AwaitEndpointOn(0);
    }(shard, made));
  };
  const ShardDevice& device = *shard.devices()[0];
  devices.HoldRegistrations(GetParam() ? absl::OkStatus() : absl::InternalError("EIO"));
  Made before, after;
  make(before);
  Await([&] { return devices.held_registrations() > 0; });
  devices.Refuse(1'000'000);
  devices.Fail();
  Await([&] { return before.has_value(); });
  EXPECT_TRUE(absl::IsUnavailable(before->status())) << before->status();
  EXPECT_NE(before->status().message().find("is being reopened"), absl::string_view::npos)
      << before->status();
  devices.Refuse(0);
  Await([&] { return device.opened() != nullptr; });
  make(after);
  Await([&] { return after.has_value(); });
  ASSERT_TRUE(after->ok()) << after->status();
  EXPECT_EQ(&(**after)->context(), device.opened()->context.get());
  EXPECT_EQ(devices.alive(), 2);
  devices.ReleaseRegistrations();
  Await([&] { return devices.alive() == 1; });
  EXPECT_EQ(device.endpoint(), **after) << "the late registration changes nothing";
  EndShard(*executor_, shard);
  keeper->Stop();
}

INSTANTIATE_TEST_SUITE_P(Answers, ShardOnFragileDevicesTest, ::testing::Bool());

}  // namespace shard_test
}  // namespace verbena::internal
