// A link closes when one-sided operations on its peer's memory do not end in time, and stays when
// they do. Only the test moves the clock.
//
// The tests hold back the WRs of one side and post them later, as if the peer's NIC were slow.

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "tests/transport/link/kept_sends.h"
#include "tests/transport/link/transfers_fixture.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {
namespace unfinished_transfer_test {

constexpr size_t kBytes = size_t{512} << 10;

class UnfinishedTransferTest : public TransfersFixture {
 protected:
  void SetUp() override {
    StartWith({.initial_credits = 256});
    clock().Stop();
    wrs_.emplace(context());
    link_ = Connect(client_listener_, server_listener_);
    ASSERT_NE(link_, nullptr);
    // The slices leave when the test says so.
    wrs_->KeepThoseOf(link_->qpn());
    StartTransfer(*link_, kBytes, outcome_);
  }
  void TearDown() override {
    wrs_->KeepThoseOf(0);
    TransfersFixture::TearDown();
    wrs_.reset();
  }

  // Steps of the endpoint's checks. The peer says something meanwhile: its silence alone would end
  // the link.
  void Pass(uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      if (client_listener_.reason().ok()) {
        const uint32_t number = client_listener_.received();
        Flood(number + 1, 16, number).Run(***accepted());
        PollUntil([&] { return client_listener_.received() > number; });
      }
      clock().Advance(LinkLimits{}.ping_interval / 2);
      for (int turn = 0; turn < 10; ++turn) executor().Poll();
    }
  }

  Receiver client_listener_;
  Receiver server_listener_;
  Link* link_ = nullptr;
  TransferOutcome outcome_;
  std::optional<KeptSends> wrs_;
};

INSTANTIATE_TEST_SUITE_P(Both, UnfinishedTransferTest, BothDirections(), DirectionName);

TEST_P(UnfinishedTransferTest, APeerWhoseMemoryIsNeverReadToTheEndLosesItsLink) {
  Pass(kMaxUnacknowledgedChecks - 1);
  EXPECT_EQ(client_listener_.reason(), absl::OkStatus());
  Pass(3);
  EXPECT_TRUE(absl::IsUnavailable(client_listener_.reason())) << client_listener_.reason();
  EXPECT_NE(client_listener_.reason().message().find("no READ, WRITE or atomic"), std::string::npos)
      << client_listener_.reason();
}

TEST_P(UnfinishedTransferTest, ALinkWhoseSlicesEndInTimeStaysHoweverLongAllOfThemTake) {
  for (int passes = 0; !outcome_.done(); ++passes) {
    ASSERT_LT(passes, 1000);
    Pass(kMaxUnacknowledgedChecks / 2);
    wrs_->Post(1);
  }
  EXPECT_EQ(outcome_.status(), absl::OkStatus());
  EXPECT_EQ(client_listener_.reason(), absl::OkStatus());
}

}  // namespace unfinished_transfer_test
}  // namespace verbena::internal
