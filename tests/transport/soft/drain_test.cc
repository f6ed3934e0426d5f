// A queue pair in SQD finishes the work requests that have begun, begins no other one, and tells
// when none is under way: by ibv_query_qp, and by an event if it is asked for. Two QPs in one
// process, whose devices are stepped by hand.

#include <chrono>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport/soft/in_process_fixture.h"

namespace verbena::internal::soft {
namespace drain_test {

using testing::ElementsAre;
using testing::IsEmpty;

class DrainTest : public InProcessTest {
 protected:
  void Drain(bool notify) {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_SQD;
    attributes.en_sqd_async_notify = notify ? 1 : 0;
    ASSERT_TRUE(
        device_a_->ModifyQp(a_->qp(), attributes, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY).ok());
  }
  bool Draining() { return device_a_->QueryQp(a_->qp(), IBV_QP_STATE)->sq_draining != 0; }
  absl::Status Change(const ibv_qp_attr& attributes, int mask) {
    return device_a_->ModifyQp(a_->qp(), attributes, mask);
  }
  // Polls both ends until what is under way has arrived.
  void PollBoth() {
    for (int turn = 0; turn < 4; ++turn) {
      for (const ibv_wc& wc : Poll(b_->cq())) received_.push_back(wc.wr_id);
      for (const ibv_wc& wc : Poll(a_->cq())) {
        EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
        sent_.push_back(wc.wr_id);
      }
    }
  }

  std::vector<uint64_t> sent_;
  std::vector<uint64_t> received_;
};

TEST_F(DrainTest, AnIdleQueueIsDrainedAtOnce) {
  MakeConnected();
  ASSERT_NO_FATAL_FAILURE(Drain(/*notify=*/true));
  EXPECT_FALSE(Draining());
  EXPECT_THAT(AsyncEvents(*device_a_), ElementsAre(IBV_EVENT_SQ_DRAINED));
}

TEST_F(DrainTest, TellsOnceTheLastThatHadBegunIsDone) {
  MakeConnected();
  for (uint64_t i = 10; i < 13; ++i) ASSERT_EQ(b_->PostReceive(i, b_->ReceiveSge(0, 64)), 0);
  // Nobody hears of the end of these otherwise.
  ASSERT_EQ(a_->SendText(1, "one", 0), 0);
  ASSERT_EQ(a_->SendText(2, "two", 0), 0);
  ASSERT_NO_FATAL_FAILURE(Drain(/*notify=*/true));
  EXPECT_TRUE(Draining());
  EXPECT_THAT(AsyncEvents(*device_a_), IsEmpty());
  ASSERT_EQ(a_->SendText(3, "three"), 0);
  PollBoth();
  EXPECT_FALSE(Draining());
  EXPECT_THAT(AsyncEvents(*device_a_), ElementsAre(IBV_EVENT_SQ_DRAINED));
  EXPECT_THAT(received_, ElementsAre(10, 11));
  EXPECT_THAT(sent_, IsEmpty());
  a_->ToState(IBV_QPS_RTS);
  PollBoth();
  EXPECT_THAT(received_, ElementsAre(10, 11, 12));
  EXPECT_THAT(sent_, ElementsAre(3));
  EXPECT_THAT(AsyncEvents(*device_a_), IsEmpty());
}

TEST_F(DrainTest, AReadIsUnderWayUntilItsDataAreThere) {
  direct_copies_ = false;
  MakeConnected();
  ASSERT_EQ(a_->PostOneSided(IBV_WR_RDMA_READ, 1, a_->ReceiveSge(0, 8),
                             reinterpret_cast<uint64_t>(b_->send_buffer()), b_->mr()->rkey),
            0);
  ASSERT_NO_FATAL_FAILURE(Drain(/*notify=*/true));
  EXPECT_TRUE(Draining());
  PollBoth();
  EXPECT_THAT(sent_, ElementsAre(1));
  EXPECT_FALSE(Draining());
  EXPECT_THAT(AsyncEvents(*device_a_), ElementsAre(IBV_EVENT_SQ_DRAINED));
}

TEST_F(DrainTest, WhatWasRefusedForWantOfAReceiveHasBegun) {
  MakeConnected({}, {.min_rnr_timer = 1});
  ASSERT_EQ(a_->SendText(1, "one"), 0);
  PollBoth();
  ASSERT_NO_FATAL_FAILURE(Drain(/*notify=*/true));
  ASSERT_EQ(a_->SendText(2, "two"), 0);
  EXPECT_TRUE(Draining());
  for (uint64_t i = 10; i < 12; ++i) ASSERT_EQ(b_->PostReceive(i, b_->ReceiveSge(0, 64)), 0);
  clock_.Advance(std::chrono::milliseconds(1));
  Settle();
  PollBoth();
  EXPECT_THAT(sent_, ElementsAre(1));
  EXPECT_THAT(received_, ElementsAre(10));
  EXPECT_FALSE(Draining());
  EXPECT_THAT(AsyncEvents(*device_a_), ElementsAre(IBV_EVENT_SQ_DRAINED));
}

TEST_F(DrainTest, OfThoseThatWaitForAReceiveOnlyThoseThatHadBegunAreFinished) {
  MakeConnected({}, {.min_rnr_timer = 1});
  for (uint64_t i = 1; i < 3; ++i) ASSERT_EQ(a_->SendText(i, "begun"), 0);
  PollBoth();
  ASSERT_EQ(a_->SendText(3, "later"), 0);
  ASSERT_NO_FATAL_FAILURE(Drain(/*notify=*/true));
  for (uint64_t i = 10; i < 13; ++i) ASSERT_EQ(b_->PostReceive(i, b_->ReceiveSge(0, 64)), 0);
  clock_.Advance(std::chrono::milliseconds(1));
  Settle();
  PollBoth();
  EXPECT_THAT(sent_, ElementsAre(1, 2));
  EXPECT_THAT(received_, ElementsAre(10, 11));
  EXPECT_THAT(AsyncEvents(*device_a_), ElementsAre(IBV_EVENT_SQ_DRAINED));
  a_->ToState(IBV_QPS_RTS);
  PollBoth();
  EXPECT_THAT(sent_, ElementsAre(1, 2, 3));
  EXPECT_THAT(received_, ElementsAre(10, 11, 12));
}

TEST_F(DrainTest, NobodyIsToldWhoDidNotAskOrWentOn) {
  MakeConnected();
  for (uint64_t i = 10; i < 12; ++i) ASSERT_EQ(b_->PostReceive(i, b_->ReceiveSge(0, 64)), 0);
  ASSERT_EQ(a_->SendText(1, "one"), 0);
  ASSERT_NO_FATAL_FAILURE(Drain(/*notify=*/false));
  EXPECT_TRUE(Draining());
  PollBoth();
  EXPECT_FALSE(Draining());
  a_->ToState(IBV_QPS_RTS);
  ASSERT_EQ(a_->SendText(2, "two"), 0);
  ASSERT_NO_FATAL_FAILURE(Drain(/*notify=*/true));
  a_->ToState(IBV_QPS_RTS);
  EXPECT_FALSE(Draining());
  PollBoth();
  EXPECT_THAT(sent_, ElementsAre(1, 2));
  EXPECT_THAT(AsyncEvents(*device_a_), IsEmpty());
}

TEST_F(DrainTest, ADrainedQueuePairTakesOtherAttributesButNoOtherPeer) {
  MakeConnected();
  ibv_qp_attr attributes{};
  attributes.timeout = 10;
  attributes.retry_cnt = 3;
  constexpr int kTimes = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT;
  EXPECT_FALSE(Change(attributes, kTimes).ok()) << "in RTS";
  ASSERT_NO_FATAL_FAILURE(Drain(/*notify=*/false));
  EXPECT_TRUE(Change(attributes, kTimes).ok());
  EXPECT_EQ(device_a_->QueryQp(a_->qp(), IBV_QP_TIMEOUT)->timeout, 10);
  attributes.ah_attr.is_global = 1;
  attributes.ah_attr.port_num = 1;
  attributes.ah_attr.grh.dgid = b_->gid();
  attributes.ah_attr.dlid = b_->lid();
  EXPECT_TRUE(Change(attributes, IBV_QP_AV).ok());
  attributes.ah_attr.grh.dgid.raw[15] ^= 1;
  EXPECT_FALSE(Change(attributes, IBV_QP_AV).ok());
  EXPECT_FALSE(Change(attributes, IBV_QP_DEST_QPN).ok());
  a_->ToState(IBV_QPS_RTS);
  ASSERT_EQ(b_->PostReceive(10, b_->ReceiveSge(0, 64)), 0);
  ASSERT_EQ(a_->SendText(1, "one"), 0);
  PollBoth();
  EXPECT_THAT(received_, ElementsAre(10));
}

}  // namespace drain_test
}  // namespace verbena::internal::soft
