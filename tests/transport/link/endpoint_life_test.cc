// An endpoint is in use until its last user lets go, and whoever watches it learns that it is gone,
// however many users are left.

#include <gtest/gtest.h>

#include <memory>

#include "verbena/transport/executor/executor.h"
#include "verbena/transport/link/device_context.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal {
namespace endpoint_life_test {

class EndpointLifeTest : public testing::Test {
 protected:
  std::unique_ptr<Executor> executor_ = *Executor::Create();
  std::unique_ptr<SoftDevice> device_ = *SoftDevice::Create({});
  std::unique_ptr<DeviceContext> context_ = *DeviceContext::Create(*device_, {});
  std::unique_ptr<Endpoint> endpoint_ = *Endpoint::Create(*executor_, *context_, LinkLimits{});
};

TEST_F(EndpointLifeTest, IsInUseUntilTheLastUserLetsGo) {
  std::shared_ptr<const bool> first = endpoint_->Use();
  std::shared_ptr<const bool> second = endpoint_->Use();
  first.reset();
  EXPECT_FALSE(endpoint_->unused());
  second.reset();
  EXPECT_TRUE(endpoint_->unused());
}

TEST_F(EndpointLifeTest, NeitherAWatchNorTheGateIsAUse) {
  const std::weak_ptr<const bool> alive = endpoint_->alive();
  const std::shared_ptr<const bool> locked = alive.lock();
  const std::shared_ptr<ExecutorGate> gate = endpoint_->gate();
  EXPECT_NE(locked, nullptr);
  EXPECT_TRUE(endpoint_->unused());
}

TEST_F(EndpointLifeTest, AWatchExpiresWhileUsersAreLeft) {
  const std::weak_ptr<const bool> alive = endpoint_->alive();
  const std::shared_ptr<const bool> user = endpoint_->Use();
  EXPECT_FALSE(alive.expired());
  endpoint_.reset();
  EXPECT_TRUE(alive.expired());
}

// Loans that outlive an endpoint look for it through its gate.
TEST_F(EndpointLifeTest, TheGateIsClosedOnceTheEndpointIsGone) {
  const std::shared_ptr<ExecutorGate> gate = endpoint_->gate();
  EXPECT_TRUE(gate->open());
  endpoint_.reset();
  EXPECT_FALSE(gate->open());
  EXPECT_FALSE(gate->Post([] {}));
}

}  // namespace endpoint_life_test
}  // namespace verbena::internal
