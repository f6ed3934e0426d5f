// A link closes when one-sided operations on its peer's memory do not end in time, and stays when
// they do. Only the test moves the clock.
//
// The tests hold back the WRs of one side and post them later, as if the peer's NIC were slow.

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/transport/link/kept_sends.h"
#include "tests/transport/link/links_fixture.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/memory/buffer_pool.h"
#include "verbena/transport/onesided/transfer.h"

namespace verbena {
namespace {

using Direction = Transfer::Direction;

constexpr size_t kBytes = size_t{512} << 10;

class Outcome final : public TransferListener {
 public:
  void OnTransferDone(const absl::Status& status) override { status_ = status; }
  bool done() const { return status_.has_value(); }
  const absl::Status& status() const { return *status_; }

 private:
  std::optional<absl::Status> status_;
};

class UnfinishedTransferTest : public LinksFixture, public testing::WithParamInterface<Direction> {
 protected:
  void SetUp() override {
    const LinkLimits limits = {.initial_credits = 256};
    Start(limits, limits);
    absl::StatusOr<std::unique_ptr<BufferPool>> pool = BufferPool::Create(
        executor(), device_context().device(), device_context().pd(),
        {.name = "payloads",
         .access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
         .exposed = true});
    ASSERT_TRUE(pool.ok()) << pool.status();
    pool_ = *std::move(pool);
    wrs_.emplace(context());
    link_ = Connect(client_listener_, server_listener_);
    ASSERT_NE(link_, nullptr);
    StartTransfer();
  }
  void TearDown() override {
    wrs_->KeepThoseOf(0);
    LinksFixture::TearDown();
    wrs_.reset();
    buffers_.clear();
    pool_.reset();
  }

  // A payload whose slices leave when the test says so.
  void StartTransfer() {
    wrs_->KeepThoseOf(link_->qpn());
    for (int i = 0; i < 2; ++i) buffers_.push_back(*pool_->TryAllocate(kBytes));
    const BufferView local = buffers_[0].view();
    const Buffer& remote = buffers_[1];
    link_->StartTransfer(
        GetParam(), {&local, 1},
        {reinterpret_cast<uintptr_t>(remote.data()), kBytes, remote.region().rkey()}, &outcome_);
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
      clock().AdvanceBy(LinkLimits{}.ping_interval / 2);
      for (int turn = 0; turn < 10; ++turn) executor().Poll();
    }
  }

  Receiver client_listener_;
  Receiver server_listener_;
  Link* link_ = nullptr;
  Outcome outcome_;
  std::optional<KeptSends> wrs_;
  std::unique_ptr<BufferPool> pool_;
  std::vector<Buffer> buffers_;
};

INSTANTIATE_TEST_SUITE_P(Both, UnfinishedTransferTest,
                         testing::Values(Direction::kWrite, Direction::kRead),
                         [](const auto& direction) {
                           return direction.param == Direction::kWrite ? "Writes" : "Reads";
                         });

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

}  // namespace
}  // namespace verbena
