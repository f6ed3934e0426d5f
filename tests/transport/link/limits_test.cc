// Limits that cannot be kept are refused by name and number, and the others are fitted to what the
// device has: queues hold every completion and receive of the links that are allowed.

#include "verbena/transport/link/limits.h"

#include <chrono>
#include <cstdint>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport/device/fake_device.h"

namespace verbena::internal {
namespace limits_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

class LimitsTest : public ::testing::Test {
 protected:
  LimitsTest() {
    device_.can.srq = true;
    device_.limits.max_srq_wr = 1 << 20;
    device_.limits.max_qp_wr = 1 << 20;
    device_.limits.max_cqe = 1 << 20;
  }

  LinkLimits Derived() {
    absl::StatusOr<LinkLimits> limits = DeriveLimits(wanted_, device_);
    EXPECT_TRUE(limits.ok()) << limits.status();
    return limits.ok() ? *limits : LinkLimits{};
  }

  FakeDevice device_;
  LinkLimits wanted_;
};

// Its positions would alias with the marker's, so that draining it would always time out.
TEST_F(LimitsTest, ASendQueueDeeperThanPositionsTellApartIsRefused) {
  wanted_.max_links = 1;
  wanted_.send_queue_depth = 4095;
  EXPECT_EQ(Derived().send_queue_depth, 4095u);
  wanted_.send_queue_depth = 4096;
  const absl::Status refused = DeriveLimits(wanted_, device_).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("send_queue_depth is 4096"), HasSubstr("[64, 4095]")));
}

TEST_F(LimitsTest, TimesThatCannotBeKeptAreRefusedByName) {
  wanted_.ping_interval = Duration::zero();
  absl::Status refused = DeriveLimits(wanted_, device_).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("ping_interval is 0 ns"));
  wanted_.ping_interval = std::chrono::seconds(1);
  wanted_.connect_timeout = Duration::zero();
  refused = DeriveLimits(wanted_, device_).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("LinkLimits::connect_timeout is 0 ns"));
  wanted_.connect_timeout = std::chrono::seconds(1);
  for (const Duration pause : {Duration(std::chrono::milliseconds(9)),
                               Duration(std::chrono::seconds(61)), Duration::max()}) {
    wanted_.longest_reconnect_pause = pause;
    refused = DeriveLimits(wanted_, device_).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("longest_reconnect_pause is "));
  }
  wanted_.longest_reconnect_pause = std::chrono::minutes(1);
  EXPECT_EQ(Derived().longest_reconnect_pause, std::chrono::minutes(1));
  wanted_.idle_timeout = std::chrono::nanoseconds(-5);
  refused = DeriveLimits(wanted_, device_).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("idle_timeout is -5 ns"));
  wanted_.idle_timeout = Duration::zero();
  EXPECT_EQ(Derived().idle_timeout, Duration::zero());
  wanted_.keep_alive_interval = wanted_.ping_interval - std::chrono::nanoseconds(1);
  refused = DeriveLimits(wanted_, device_).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("keep_alive_interval is 999999999 ns"));
  wanted_.keep_alive_interval = wanted_.ping_interval;
  EXPECT_EQ(Derived().keep_alive_interval, wanted_.ping_interval);
}

TEST_F(LimitsTest, MoreSendBuffersThanTheirBoundAreRefusedByNumber) {
  wanted_.send_buffers = 1 << 20;
  EXPECT_EQ(Derived().send_buffers, 1u << 20);
  wanted_.send_buffers = (1 << 20) + 1;
  const absl::Status refused = DeriveLimits(wanted_, device_).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("send_buffers is 1048577"));
}

TEST_F(LimitsTest, TheLargestMessageHasAFrameAtLeastAndABufferAtMost) {
  EXPECT_EQ(Derived().max_message_bytes, size_t{4} << 20);
  for (const size_t bytes : {size_t{wanted_.eager_bytes}, size_t{64} << 20}) {
    wanted_.max_message_bytes = bytes;
    EXPECT_EQ(Derived().max_message_bytes, bytes);
  }
  for (const size_t bytes : {size_t{wanted_.eager_bytes} - 1, (size_t{64} << 20) + 1}) {
    wanted_.max_message_bytes = bytes;
    const absl::Status refused = DeriveLimits(wanted_, device_).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr("max_message_bytes is " + std::to_string(bytes)));
  }
}

TEST_F(LimitsTest, ALargeDeviceGivesWhatIsWanted) {
  const LinkLimits limits = Derived();
  EXPECT_EQ(limits.max_links, wanted_.max_links);
  EXPECT_EQ(limits.srq_depth, wanted_.srq_depth);
  EXPECT_EQ(limits.send_queue_depth, wanted_.send_queue_depth);
}

TEST_F(LimitsTest, OverSharedMemoryLandingsAreGrantedForSmallPayloadsUnlessAskedOtherwise) {
  EXPECT_EQ(Derived().leases.largest_grant_bytes, 16384u);
  wanted_.leases.largest_grant_bytes = 1 << 20;
  EXPECT_EQ(Derived().leases.largest_grant_bytes, size_t{1} << 20);
}

TEST_F(LimitsTest, OverTcpLandingsAreGrantedForAllPayloads) {
  const absl::StatusOr<LinkLimits> limits = DeriveLimits(wanted_, device_, /*over_tcp=*/true);
  ASSERT_TRUE(limits.ok()) << limits.status();
  EXPECT_EQ(limits->leases.largest_grant_bytes, wanted_.max_payload_bytes);
}

TEST_F(LimitsTest, PayloadsTravelInFramesUpToTheDevicesDefaultUnlessAskedOtherwise) {
  EXPECT_EQ(Derived().largest_payload_in_frame, DefaultPayloadInFrame(device_));
  wanted_.largest_payload_in_frame = 700;
  EXPECT_EQ(Derived().largest_payload_in_frame, 700u);
  wanted_.largest_payload_in_frame = 0;
  wanted_.eager_bytes = 1024;
  EXPECT_EQ(Derived().largest_payload_in_frame, 1024u) << "a SEND has no room for more";
}

class OwnReceivesTest : public LimitsTest {
 protected:
  OwnReceivesTest() {
    device_.can.srq = false;
    device_.limits.max_srq_wr = 0;
  }
};

TEST_F(OwnReceivesTest, EachLinkHasAPartOfTheReceivesAndCreditsForMostOfThem) {
  const LinkLimits limits = Derived();
  EXPECT_EQ(limits.receives_per_link, 32u);
  EXPECT_EQ(limits.max_links, 256u);
  EXPECT_EQ(limits.srq_depth, 8192u) << "as much memory as with a shared queue";
  EXPECT_EQ(limits.initial_credits, 22u);
  EXPECT_EQ(limits.max_credits, 22u);
}

TEST_F(OwnReceivesTest, CreditsTheReserveAndABatchThatWaitsFitTheQueue) {
  for (uint32_t depth = kMinReceivesPerLink; depth <= 1000; ++depth) {
    EXPECT_LE(WindowOf(depth) + kReserveCredits + RepostBatchOf(depth), depth);
    EXPECT_GE(WindowOf(depth), 1u);
    EXPECT_GE(RepostBatchOf(depth), 1u);
    wanted_.receives_per_link = depth;
    const LinkLimits limits = Derived();
    EXPECT_LE(limits.initial_credits, WindowOf(depth));
    EXPECT_LE(limits.max_links * depth, wanted_.srq_depth);
    EXPECT_EQ(limits.srq_depth, limits.max_links * depth);
  }
}

TEST_F(OwnReceivesTest, FewerCreditsThanTheQueueAllowsMayBeAskedFor) {
  wanted_.max_credits = 5;
  EXPECT_EQ(Derived().initial_credits, 5u);
  EXPECT_EQ(Derived().max_credits, 5u);
}

TEST_F(OwnReceivesTest, EveryCompletionFitsASmallCompletionQueue) {
  device_.limits.max_cqe = 8192;
  const LinkLimits limits = Derived();
  EXPECT_LE(CompletionQueueEntries(limits), 8192u);
  EXPECT_EQ(limits.max_links, 8192u / (32 + 64 + 1));
}

TEST_F(OwnReceivesTest, TheQueueOfALinkFitsTheDevice) {
  device_.limits.max_qp_wr = 128;
  wanted_.receives_per_link = 1000;
  EXPECT_EQ(Derived().receives_per_link, 128u);
}

TEST_F(OwnReceivesTest, ADeviceTooSmallForOneLinkIsRefusedWithItsNumbers) {
  device_.limits.max_cqe = 90;
  const absl::Status status = DeriveLimits(wanted_, device_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("max_cqe 90"));
}

TEST_F(OwnReceivesTest, AQueueOutOfRangeIsRefusedByNumber) {
  for (const uint32_t receives : {7u, 32769u}) {
    wanted_.receives_per_link = receives;
    const absl::Status refused = DeriveLimits(wanted_, device_).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr("receives_per_link is"), HasSubstr("[8, 32768]")));
  }
  wanted_.receives_per_link = 8;
  EXPECT_EQ(Derived().receives_per_link, 8u);
}

TEST_F(LimitsTest, AQueueForEachLinkChangesNothingWhereReceivesAreShared) {
  wanted_.receives_per_link = 1024;
  const LinkLimits limits = Derived();
  EXPECT_EQ(limits.max_links, wanted_.max_links);
  EXPECT_EQ(limits.initial_credits, wanted_.initial_credits);
  EXPECT_EQ(limits.max_credits, wanted_.max_credits);
}

TEST_F(LimitsTest, TheSendQueueFitsTheDeviceWithTheMarkerOfItsTeardown) {
  device_.limits.max_qp_wr = 64;
  EXPECT_LE(Derived().send_queue_depth + kDrainMarkers, 64u);
}

TEST_F(LimitsTest, EveryCompletionFitsASmallCompletionQueue) {
  device_.limits.max_cqe = 8192;
  const LinkLimits limits = Derived();
  EXPECT_LE(CompletionQueueEntries(limits), 8192u);
  EXPECT_LT(limits.max_links, wanted_.max_links);
}

TEST_F(LimitsTest, AThousandLinksFitTheDefaults) {
  const LinkLimits limits = Derived();
  EXPECT_GE(limits.max_links, 1000u);
  // With room for busy links beyond what each link owns.
  EXPECT_GE(limits.srq_depth, limits.max_links * (limits.initial_credits + kReserveCredits) + 1024);
}

TEST_F(LimitsTest, ADeviceWithASmallQueueTakesAsManyLinksAsFit) {
  device_.limits.max_cqe = 32767;  // rxe
  const LinkLimits limits = Derived();
  EXPECT_EQ(limits.max_links, (32767 - limits.srq_depth) / (limits.send_queue_depth + 1));
}

TEST_F(LimitsTest, EveryLinksOwnReceivesFitASmallSharedReceiveQueue) {
  device_.limits.max_srq_wr = 256;
  const LinkLimits limits = Derived();
  EXPECT_EQ(limits.srq_depth, 256u);
  EXPECT_LE(limits.max_links * (limits.initial_credits + kReserveCredits) + kRepostBatch, 256u);
}

// RLIMIT_MEMLOCK's usual 8 MiB, which the kernel, systemd and container runtimes give.
TEST_F(LimitsTest, SmallFitsEightMebibytesAndTheDefaultsDoNot) {
  constexpr uint64_t kMemlock = uint64_t{8} << 20;
  for (const bool emulated : {false, true}) {
    const PinnedMemory small = PinnedMemoryOf(LinkLimits::Small(), emulated);
    EXPECT_LT(small.at_start, uint64_t{4} << 20) << "half is left for links and payloads";
    EXPECT_LE(small.all(), kMemlock);
    EXPECT_GT(PinnedMemoryOf(LinkLimits(), emulated).at_start, kMemlock);
  }
}

TEST_F(LimitsTest, EachLinkOfSmallHasItsCreditsAndASendBuffer) {
  wanted_ = LinkLimits::Small();
  const LinkLimits limits = Derived();
  EXPECT_EQ(limits.max_links, wanted_.max_links) << "the receives suffice";
  EXPECT_EQ(limits.eager_bytes, LinkLimits().eager_bytes) << "small calls keep their frames";
  EXPECT_GE(limits.send_buffers, 4 * limits.max_links);
  EXPECT_FALSE(HasDefaultSizes(wanted_));
  EXPECT_TRUE(HasDefaultSizes(LinkLimits()));
}

TEST_F(LimitsTest, FewReceivesHaveFewSpareOnes) {
  EXPECT_EQ(SpareReceivesOf(LinkLimits()), kSpareReceives);
  EXPECT_EQ(SpareReceivesOf(LinkLimits::Small()), LinkLimits::Small().srq_depth / 2);
}

TEST_F(LimitsTest, ADeviceTooSmallForOneLinkIsRefusedWithItsNumbers) {
  device_.limits.max_cqe = 100;
  const absl::Status status = DeriveLimits(wanted_, device_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("max_cqe 100"));
}

}  // namespace limits_test
}  // namespace verbena::internal
