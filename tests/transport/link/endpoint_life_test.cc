// An endpoint is in use until its last user lets go, and whoever watches it learns that it is gone,
// however many users are left.

#include "verbena/transport/link/endpoint_life.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "verbena/transport/executor/executor.h"

namespace verbena::internal {
namespace {

class EndpointLifeTest : public testing::Test {
 protected:
  std::unique_ptr<Executor> executor_ = *Executor::Create();
  std::optional<EndpointLife> life_{std::in_place, *executor_};
};

TEST_F(EndpointLifeTest, IsInUseUntilTheLastUserLetsGo) {
  EXPECT_FALSE(life_->in_use());
  std::shared_ptr<const bool> first = life_->Use();
  std::shared_ptr<const bool> second = life_->Use();
  first.reset();
  EXPECT_TRUE(life_->in_use());
  second.reset();
  EXPECT_FALSE(life_->in_use());
}

TEST_F(EndpointLifeTest, NeitherAWatchNorTheGateIsAUse) {
  const std::weak_ptr<const bool> alive = life_->alive();
  const std::shared_ptr<const bool> locked = alive.lock();
  const std::shared_ptr<ExecutorGate> gate = life_->gate();
  EXPECT_NE(locked, nullptr);
  EXPECT_FALSE(life_->in_use());
}

TEST_F(EndpointLifeTest, AWatchExpiresWhileUsersAndTheGateAreLeft) {
  const std::weak_ptr<const bool> alive = life_->alive();
  const std::shared_ptr<const bool> user = life_->Use();
  const std::shared_ptr<ExecutorGate> gate = life_->gate();
  EXPECT_FALSE(alive.expired());
  life_.reset();
  EXPECT_TRUE(alive.expired());
  gate->Close();
  EXPECT_FALSE(gate->open());
}

}  // namespace
}  // namespace verbena::internal
