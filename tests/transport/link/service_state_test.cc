// Shows that an endpoint in service can be suspended and resumed, that a second suspension keeps
// the first reason and a failure replaces it, and that shutting down hides behind neither.

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "verbena/transport/link/endpoint.h"

namespace verbena::internal {
namespace service_state_test {

const absl::Status kLost = absl::UnavailableError("queues are lost");
const absl::Status kGone = absl::UnavailableError("the device is gone");

TEST(ServiceStateTest, IsInServiceAtFirst) {
  ServiceState state;
  EXPECT_TRUE(state.in_service());
  EXPECT_EQ(state.Check(), absl::OkStatus());
  EXPECT_FALSE(state.failed());
}

TEST(ServiceStateTest, IsSuspendedOnceAndResumes) {
  ServiceState state;
  EXPECT_TRUE(state.Suspend(kLost));
  EXPECT_FALSE(state.Suspend(absl::UnavailableError("lost again")));
  EXPECT_FALSE(state.in_service());
  EXPECT_EQ(state.Check(), kLost);
  EXPECT_EQ(state.reason(), kLost);
  state.Resume();
  EXPECT_TRUE(state.in_service());
  EXPECT_TRUE(state.Suspend(kGone));
}

TEST(ServiceStateTest, FailureTakesTheReasonFromASuspension) {
  ServiceState state;
  state.Suspend(kLost);
  state.Fail(kGone);
  EXPECT_TRUE(state.failed());
  EXPECT_FALSE(state.Suspend(kLost));
  EXPECT_EQ(state.Check(), kGone);
}

TEST(ServiceStateTest, ShuttingDownOutlastsEverything) {
  ServiceState state;
  state.Suspend(kLost);
  state.ShutDown();
  state.Resume();
  EXPECT_FALSE(state.in_service());
  EXPECT_TRUE(state.shutting_down());
  EXPECT_EQ(state.Check().message(), "the endpoint is shutting down");
  EXPECT_EQ(state.reason(), absl::OkStatus());
}

}  // namespace service_state_test
}  // namespace verbena::internal
