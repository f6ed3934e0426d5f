// The gate of an endpoint, through which loans that outlive it look for it, is closed once the
// endpoint is gone.

#include <gtest/gtest.h>

#include <memory>

#include "verbena/transport/executor/executor.h"
#include "verbena/transport/link/device_context.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal {
namespace {

TEST(EndpointGateTest, TheGateOfAnEndpointIsClosedOnceTheEndpointIsGone) {
  std::unique_ptr<Executor> executor = *Executor::Create();
  std::unique_ptr<SoftDevice> device = *SoftDevice::Create({});
  std::unique_ptr<DeviceContext> context = *DeviceContext::Create(*device, {});
  std::unique_ptr<Endpoint> endpoint = *Endpoint::Create(*executor, *context, LinkLimits{});
  const std::shared_ptr<ExecutorGate> gate = endpoint->gate();
  EXPECT_TRUE(gate->open());
  endpoint.reset();
  EXPECT_FALSE(gate->open());
  EXPECT_FALSE(gate->Post([] {}));
}

}  // namespace
}  // namespace verbena::internal
