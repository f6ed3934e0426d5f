// A SEND of a small call waits for few bytes of payload, however many are on their way.
//
// Both ends run in the test's turns, over a device that copies in the thread that posts or polls.
// So the device's count of copied bytes says what happened before what, and no clock is needed. In
// which order a turn posts is seen in the work requests themselves.

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "tests/transport/link/kept_sends.h"
#include "tests/transport/link/transfers_fixture.h"
#include "verbena/transport/soft/copies.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal {
namespace bulk_beside_sends_test {

constexpr size_t kLargeBytes = size_t{16} << 20;

class BulkBesideSendsTest : public TransfersFixture {
 protected:
  void SetUp() override { StartWith({}); }
  // The engine's thread would copy ahead while the test's thread stands still.
  SoftDeviceOptions device_options() const override { return {.engine_thread = false}; }

  // By one-sided operations, so far.
  uint64_t Copied() {
    const CopiedBytes copied = device().copied_bytes();
    return copied.direct_write_bytes + copied.direct_read_bytes;
  }

  Receiver ignored_;
  Receiver received_;
  std::deque<Receiver> listeners_;
};

INSTANTIATE_TEST_SUITE_P(Both, BulkBesideSendsTest, BothDirections(), DirectionName);

TEST_P(BulkBesideSendsTest, ASendAmongLongTransfersArrivesBehindFewOfTheirBytes) {
  Link* link = Connect(ignored_, received_);
  ASSERT_NE(link, nullptr);
  std::deque<TransferOutcome> outcomes(4);
  for (TransferOutcome& outcome : outcomes) StartTransfer(*link, kLargeBytes, outcome);
  const uint64_t start = Copied();
  for (uint32_t i = 0; i < 20; ++i) {
    PollUntil([&] { return Copied() >= start + i * (kLargeBytes / 8); });
    FrameHeader frame;
    frame.kind = FrameKind::kRequest;
    frame.call_generation = i;
    ASSERT_NE(link->Append(frame, 0), nullptr);
    const uint64_t appended = Copied();
    PollUntil([&] { return received_.received() == i + 1; });
    EXPECT_LE(Copied() - appended, client().limits().bulk.bytes_ahead) << "SEND " << i;
    EXPECT_FALSE(outcomes.back().done());
  }
  PollUntil([&] { return outcomes.back().done() && outcomes.front().done(); });
  for (const TransferOutcome& outcome : outcomes) EXPECT_TRUE(outcome.ok());
  EXPECT_EQ(Copied() - start, outcomes.size() * kLargeBytes);
}

TEST_P(BulkBesideSendsTest, TheSendsOfATurnLeaveAheadOfItsSlice) {
  KeptSends wrs(context());
  Link* link = Connect(ignored_, received_);
  ASSERT_NE(link, nullptr);
  wrs.KeepThoseOf(link->qpn());
  TransferOutcome outcome;
  StartTransfer(*link, kLargeBytes, outcome);
  FrameHeader frame;
  frame.kind = FrameKind::kRequest;
  ASSERT_NE(link->Append(frame, 0), nullptr);
  PollUntil([&] { return wrs.size() >= 2; });
  EXPECT_EQ(wrs.opcode(0), IBV_WR_SEND);
  EXPECT_EQ(wrs.opcode(1),
            GetParam() == Transfer::Direction::kWrite ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ);
  wrs.KeepThoseOf(0);
  wrs.Post(wrs.size());
  PollUntil([&] { return received_.received() == 1 && outcome.done(); });
  EXPECT_TRUE(outcome.ok());
}

// The executor polls between slices, however many links move payloads, and none of them waits for
// all of another's.
TEST_P(BulkBesideSendsTest, ATurnMovesOneSliceThoughManyLinksHaveOneAndEachHasItsShare) {
  constexpr size_t kLinks = 5;
  constexpr size_t kBytes = size_t{4} << 20;
  listeners_.resize(2 * kLinks);
  std::deque<TransferOutcome> outcomes(kLinks);
  std::vector<Link*> links;
  for (size_t i = 0; i < kLinks; ++i) {
    links.push_back(Connect(listeners_[2 * i], listeners_[2 * i + 1]));
    ASSERT_NE(links.back(), nullptr);
  }
  for (size_t i = 0; i < kLinks; ++i) StartTransfer(*links[i], kBytes, outcomes[i]);
  const uint64_t slice = client().limits().bulk.slice_bytes;
  uint64_t copied = Copied();
  uint64_t first_end = 0;
  PollUntil(
      [&] {
        return std::all_of(outcomes.begin(), outcomes.end(),
                           [](const TransferOutcome& outcome) { return outcome.done(); });
      },
      [&] {
        EXPECT_LE(Copied() - copied, slice);
        copied = Copied();
        const bool one_ended =
            std::any_of(outcomes.begin(), outcomes.end(),
                        [](const TransferOutcome& outcome) { return outcome.done(); });
        if (first_end == 0 && one_ended) first_end = copied;
      });
  // When the first one ends, the others are a slice or two behind it.
  EXPECT_GE(first_end, copied - 2 * kLinks * slice);
}

// On a link that is lost, its starter was told by OnLinkDown().
TEST_P(BulkBesideSendsTest, ATransferOnALinkThatIsClosedAborts) {
  // Devices have threads, which a fork leaves behind with their locks.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Link* link = Connect(ignored_, received_);
  ASSERT_NE(link, nullptr);
  link->Close(absl::CancelledError("the test closes it"));
  TransferOutcome outcome;
  EXPECT_DEATH(StartTransfer(*link, 4096, outcome), "open\\(\\)");
  EXPECT_DEATH(link->OpenLease({}, LeaseAccess::kRead).IgnoreError(), "open\\(\\)");
}

}  // namespace bulk_beside_sends_test
}  // namespace verbena::internal
