// What probing a device finds, and which devices it refuses. A soft device, with a profile or with
// another post_send, stands for the hardware.

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "verbena/transport/soft/options.h"
#include "verbena/transport/soft/soft_device.h"
#include "verbena/transport/verbs/rdma_device.h"

namespace verbena::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::unique_ptr<SoftDevice> MakeDevice(const std::string& name, const SoftProfile& profile) {
  return SoftDevice::Create({.name = name, .engine_thread = false, .profile = profile}).value();
}

TEST(ProbeTest, FindsWhatADeviceSaysThatItHas) {
  const std::unique_ptr<SoftDevice> device = MakeDevice("soft0", {});
  const absl::StatusOr<DeviceCapabilities> found = ProbeCapabilities(*device);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(found->srq && found->srq_limit_event && found->last_wqe_event && found->atomics &&
              found->memory_windows && found->flushes_in_error);
  EXPECT_GE(found->max_inline_bytes, 2048u);
}

// As EFA: it has ports, GIDs and memory regions, and makes no RC queue pair.
TEST(ProbeTest, ADeviceWithoutReliableConnectionsIsRefusedInWords) {
  const std::unique_ptr<SoftDevice> device = MakeDevice(
      "efa_0",
      {.reliable_connections = false, .srq = false, .atomics = false, .memory_windows = false});
  const absl::Status refused = ProbeCapabilities(*device).status();
  EXPECT_TRUE(absl::IsUnimplemented(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("efa_0 has no reliable connections (RC queue pairs)"),
                    HasSubstr("use another RDMA device, or soft:tcp"), HasSubstr("EOPNOTSUPP")));
}

}  // namespace
}  // namespace verbena::internal
