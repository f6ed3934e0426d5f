// A device that gives too few windows to each link is logged once, and not once per link.

#include "verbena/transport/link/leases.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/transport/base/captured_log.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal {
namespace window_pool_test {

// Each link has one window; then the device has no more.
WindowBatch OneWindow(Device& device, ibv_pd* pd) {
  WindowBatch batch = AllocateWindows(device, pd, 1);
  batch.failure = absl::ResourceExhaustedError("the test's device has no more");
  return batch;
}

TEST(WindowPoolTest, ManyLinksThatGetTooFewWindowsCostOneLine) {
  const std::unique_ptr<SoftDevice> device = *SoftDevice::Create({});
  ibv_pd* pd = *device->AllocPd();
  CapturedLog log;
  for (int i = 0; i < 50; ++i) {
    WindowPool pool(16);
    EXPECT_EQ(pool.BeginRefill(16), 16u);
    pool.Refill(OneWindow(*device, pd));
    EXPECT_EQ(pool.free(), 1u);
    pool.TakeAll();
  }
  const std::vector<std::string> lines = log.Take();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("a link gets 1 memory windows instead of 16"), std::string::npos)
      << lines[0];
  EXPECT_EQ(device->DeallocPd(pd), absl::OkStatus());
}

}  // namespace window_pool_test
}  // namespace verbena::internal
