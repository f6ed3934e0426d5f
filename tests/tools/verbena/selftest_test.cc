// The selftest passes on a device that does what links ask of it, measures each figure, skips what
// the device says that it lacks, and names what does not work: here a device that reaches half of
// the memory, and one that cannot be connected.

#include "tools/verbena/selftest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/transport/device/delegating_device.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::doctor {
namespace selftest_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr SelftestOptions kShort = {.exchanges = 20, .sends = 200, .transfers = 4};

class SelftestTest : public ::testing::Test {
 protected:
  static SelftestReport Run(internal::Device& device) {
    absl::StatusOr<SelftestReport> report = Selftest(device, kShort);
    EXPECT_TRUE(report.ok()) << report.status();
    return report.value_or(SelftestReport());
  }

  const std::unique_ptr<internal::SoftDevice> soft_ =
      *internal::SoftDevice::Create({.profile = internal::SoftProfile()});
  internal::DelegatingDevice device_{*soft_};
};

TEST_F(SelftestTest, ADeviceThatDoesWhatLinksAskPassesAndIsMeasured) {
  const SelftestReport report = Run(device_);
  EXPECT_TRUE(report.passed()) << Describe(report);
  EXPECT_GT(report.measured.half_round_trip_us, 0);
  EXPECT_GE(report.measured.half_round_trip_p99_us, report.measured.half_round_trip_us);
  EXPECT_GT(report.measured.sends_per_second, 0);
  EXPECT_GT(report.measured.write_bytes_per_second, 0);
  EXPECT_GT(report.measured.read_bytes_per_second, 0);
  EXPECT_THAT(Describe(report), AllOf(HasSubstr("selftest of soft0"), HasSubstr("GB/s"),
                                      HasSubstr("All that was tried works."),
                                      Not(HasSubstr("FAILED")), Not(HasSubstr("not measured"))));
}

TEST_F(SelftestTest, WhatTheDeviceLacksIsSkippedWithTheReason) {
  device_.can.send_with_immediate = false;
  device_.can.rnr_nak = false;
  const SelftestReport report = Run(device_);
  EXPECT_TRUE(report.passed()) << Describe(report);
  EXPECT_THAT(
      Describe(report),
      AllOf(HasSubstr("skipped  a SEND brings its immediate (the device has no immediates)"),
            HasSubstr("skipped  a SEND without a receive fails")));
}

// Registers half of the memory that it is given.
class ForgetfulDevice final : public internal::DelegatingDevice {
 public:
  using DelegatingDevice::DelegatingDevice;
  absl::StatusOr<ibv_mr*> RegMr(ibv_pd* pd, void* address, size_t bytes, int access) override {
    return DelegatingDevice::RegMr(pd, address, bytes / 2, access);
  }
};

TEST_F(SelftestTest, ADeviceThatDoesNotReachAllOfTheMemoryFailsByName) {
  ForgetfulDevice forgetful(*soft_);
  const SelftestReport report = Run(forgetful);
  EXPECT_FALSE(report.passed());
  EXPECT_THAT(Describe(report),
              AllOf(HasSubstr("FAILED   a SEND arrives behind the WRITE before it: "),
                    HasSubstr("checks failed.")));
}

class UnconnectedDevice final : public internal::DelegatingDevice {
 public:
  using DelegatingDevice::DelegatingDevice;
  absl::Status ModifyQp(ibv_qp* qp, const ibv_qp_attr& attributes, int mask) override {
    if (attributes.qp_state == IBV_QPS_RTR) return absl::UnavailableError("no route to the peer");
    return DelegatingDevice::ModifyQp(qp, attributes, mask);
  }
};

TEST_F(SelftestTest, ADeviceWhoseQueuePairsCannotBeConnectedIsNotTested) {
  UnconnectedDevice unconnected(*soft_);
  EXPECT_THAT(std::string(Selftest(unconnected, kShort).status().message()),
              HasSubstr("no route to the peer"));
}

TEST_F(SelftestTest, AFailedCheckIsPrintedWithItsReasonAndCounted) {
  SelftestReport report;
  report.device = "mlx5_0";
  report.kind = "RoCE v2";
  report.mtu_bytes = 4096;
  report.checks.resize(2);
  report.checks[0].what = "a READ gets the target's bytes";
  report.checks[0].result = absl::DataLossError("byte 7 of 9 is 0, not 3");
  report.checks[1].what = "a WRITE arrives";
  EXPECT_FALSE(report.passed());
  EXPECT_THAT(Describe(report),
              AllOf(HasSubstr("selftest of mlx5_0: RoCE v2, path MTU 4096"),
                    HasSubstr("FAILED   a READ gets the target's bytes: byte 7 of 9 is 0, not 3"),
                    HasSubstr("ok       a WRITE arrives"), HasSubstr("not measured"),
                    HasSubstr("1 of 2 checks failed.")));
}

}  // namespace selftest_test
}  // namespace verbena::doctor
