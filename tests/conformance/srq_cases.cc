// Receives of a shared receive queue are taken once and in the order posted, whichever QP takes
// them. The limit event comes once for each arming, and a QP in error is followed by its last WQE
// event.

#include <cerrno>
#include <set>

#include "tests/conformance/fixture.h"

namespace verbena::internal::conformance {
namespace {

class SharedReceives : public ConformanceTest {
 protected:
  std::string ReasonToSkip() const override {
    return capabilities().srq ? "" : "the device has no shared receive queues";
  }

  static EndOptions WithSrq(uint32_t depth) {
    EndOptions options;
    options.srq_depth = depth;
    return options;
  }

  // `count` connections whose far QPs share one SRQ and all other objects.
  std::vector<QpPair> ConnectMany(uint32_t count, const EndOptions& options) {
    std::vector<QpPair> all{Connect(options)};
    while (all.size() < count) all.push_back(ConnectAgain(all.front(), options));
    return all;
  }

  static void ArmLimit(End& end, uint32_t limit) {
    ibv_srq_attr attributes{};
    attributes.srq_limit = limit;
    Must(end.host().ModifySrq(end.srq, attributes, IBV_SRQ_LIMIT));
  }

  // Sends one message and awaits it on both sides.
  static void SendOne(QpPair& c) {
    c.near.Post(Send(1, {c.near.memory.Piece(0, 8)}));
    EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_SEND, 1));
    EXPECT_THAT(c.far.ReceiveCompletion(), HasStatus(IBV_WC_SUCCESS));
  }
};

TEST_P(SharedReceives, ReceivesAreTakenInTheOrderPostedWhicheverQpTakesThem) {
  constexpr uint32_t kQps = 8;
  constexpr uint64_t kMessages = 64;
  std::vector<QpPair> all = ConnectMany(kQps, WithSrq(kMessages));
  for (uint64_t i = 0; i < kMessages; ++i) {
    all[0].far.Post(Receive(i, {all[0].far.memory.Piece(i * 64, 64)}));
  }
  for (uint64_t i = 0; i < kMessages; ++i) {
    QpPair& c = all[(i * 5) % kQps];
    c.near.PutWord(0, i);
    c.near.Post(Send(i, {c.near.memory.Piece(0, 8)}));
    const ibv_wc received = c.far.ReceiveCompletion();
    ASSERT_THAT(received, Succeeded(IBV_WC_RECV, i));
    EXPECT_EQ(received.qp_num, c.far.qp.number);
    EXPECT_EQ(c.far.Word(i * 64), i);
    ASSERT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_SEND, i));
  }
}

TEST_P(SharedReceives, ManyQpsAtOnceTakeEachReceiveOnceAndKeepTheirOwnOrder) {
  constexpr uint32_t kQps = 8;
  constexpr uint64_t kEach = 8;
  constexpr uint64_t kMessages = kQps * kEach;
  std::vector<QpPair> all = ConnectMany(kQps, WithSrq(kMessages));
  End& far = all[0].far;
  for (uint64_t i = 0; i < kMessages; ++i) far.Post(Receive(i, {far.memory.Piece(i * 64, 64)}));
  for (uint64_t n = 0; n < kEach; ++n) {
    for (uint32_t q = 0; q < kQps; ++q) {
      const uint64_t slot = 16384 + (n * kQps + q) * 64;
      all[q].near.PutWord(slot, q * 1000 + n);
      all[q].near.Post(Send(n, {all[q].near.memory.Piece(slot, 16)}));
    }
  }
  std::set<uint64_t> taken;
  std::vector<uint64_t> next(kQps, 0);
  for (const ibv_wc& wc : far.ReceiveCompletions(kMessages)) {
    ASSERT_THAT(wc, HasStatus(IBV_WC_SUCCESS));
    EXPECT_TRUE(taken.insert(wc.wr_id).second) << "receive " << wc.wr_id << " was taken twice";
    const uint64_t value = far.Word(wc.wr_id * 64);
    const uint64_t q = value / 1000;
    ASSERT_LT(q, kQps);
    EXPECT_EQ(wc.qp_num, all[q].far.qp.number);
    EXPECT_EQ(value % 1000, next[q]++) << "QP " << q << " is out of order";
  }
  all[0].near.SendCompletions(kMessages);
}

TEST_P(SharedReceives, ASendWaitsForAReceiveOfTheSrqAndGetsIt) {
  if (!capabilities().rnr_nak) GTEST_SKIP() << "a SEND without a receive ends the connection";
  std::vector<QpPair> all = ConnectMany(2, WithSrq(4));
  all[0].near.Post(Send(1, {all[0].near.memory.Piece(0, 8)}));
  all[1].near.Post(Send(2, {all[1].near.memory.Piece(0, 8)}));
  all[0].far.Post(Receive(7, {all[0].far.memory.Piece(0, 8)}));
  all[0].far.Post(Receive(8, {all[0].far.memory.Piece(64, 8)}));
  all[0].near.SendCompletions(2);
  for (const ibv_wc& wc : all[0].far.ReceiveCompletions(2)) {
    EXPECT_THAT(wc, HasStatus(IBV_WC_SUCCESS));
  }
}

TEST_P(SharedReceives, TheLimitEventComesOnceUntilItIsArmedAgain) {
  if (!capabilities().srq_limit_event) GTEST_SKIP() << "the device raises no SRQ limit event";
  QpPair c = Connect(WithSrq(16));
  const auto post_receives = [&](int count) {
    for (int i = 0; i < count; ++i) c.far.Post(Receive(7, {c.far.memory.Piece(0, 8)}));
  };
  const auto limit_event = [&](uint32_t timeout_ms) {
    return c.far.host().AwaitAsyncEvent(IBV_EVENT_SRQ_LIMIT_REACHED, c.far.srq.id, timeout_ms);
  };
  post_receives(8);
  ArmLimit(c.far, 4);
  for (int left = 7; left >= 4; --left) SendOne(c);
  EXPECT_TRUE(absl::IsDeadlineExceeded(limit_event(0))) << "4 receives are left: no fewer than 4";
  SendOne(c);
  Must(limit_event(kPatienceMs));
  EXPECT_EQ(Must(c.far.host().QuerySrq(c.far.srq)).srq_limit, 0u) << "still armed";
  SendOne(c);
  SendOne(c);
  EXPECT_TRUE(absl::IsDeadlineExceeded(limit_event(0))) << "a second event for one arming";

  post_receives(7);
  ArmLimit(c.far, 8);
  SendOne(c);
  SendOne(c);
  Must(limit_event(kPatienceMs));
}

TEST_P(SharedReceives, QueryingGivesWhatWasCreatedAndArmed) {
  QpPair c = Connect(WithSrq(16));
  const bool told = c.far.host().QuerySrq(c.far.srq).ok();
  if (!Demand(told, Departure::kSrqUnknown)) return;
  EXPECT_GE(Must(c.far.host().QuerySrq(c.far.srq)).max_wr, 16u);
  EXPECT_GE(Must(c.far.host().QuerySrq(c.far.srq)).max_sge, 4u);
  if (!capabilities().srq_limit_event) return;
  // As many as the limit, or the event would come at once.
  for (int i = 0; i < 3; ++i) c.far.Post(Receive(7, {c.far.memory.Piece(0, 8)}));
  ArmLimit(c.far, 3);
  EXPECT_EQ(Must(c.far.host().QuerySrq(c.far.srq)).srq_limit, 3u);
}

TEST_P(SharedReceives, AFullSrqRefusesTheNextReceiveAndSaysWhich) {
  QpPair c = Connect(WithSrq(8));
  const absl::StatusOr<ibv_srq_attr> told = c.far.host().QuerySrq(c.far.srq);
  const uint32_t depth = Demand(told.ok(), Departure::kSrqUnknown) ? told->max_wr : 8;
  std::vector<RecvWr> chain;
  for (uint32_t i = 0; i < depth + 3; ++i) {
    chain.push_back(Receive(i, {c.far.memory.Piece(0, 8)}));
  }
  EXPECT_THAT(c.far.TryPost(chain), RefusedAfter(depth, ENOMEM));
  SendOne(c);
  EXPECT_THAT(c.far.TryPost({chain[0]}), Accepted()) << "a taken receive leaves its slot free";
}

TEST_P(SharedReceives, AQpOnAnSrqHasNoReceiveQueueOfItsOwn) {
  if (auto why = ReasonToSpare(Departure::kReceiveOnSrqQpCrashes); !why.empty()) {
    GTEST_SKIP() << why;
  }
  QpPair c = Connect(WithSrq(8));
  const PostResult posted =
      Must(c.far.host().PostReceives(c.far.qp, {Receive(7, {c.far.memory.Piece(0, 8)})}));
  EXPECT_NE(posted.error, 0);
  Demand(posted.accepted == 0, Departure::kReceiveOnSrqQpBadWrUnset);
}

TEST_P(SharedReceives, AQpInErrorLeavesTheReceivesToTheOthers) {
  std::vector<QpPair> all = ConnectMany(2, WithSrq(8));
  for (uint64_t i = 0; i < 4; ++i) {
    all[0].far.Post(Receive(i, {all[0].far.memory.Piece(i * 64, 64)}));
  }
  all[0].far.ToError();
  SendOne(all[1]);
  SendOne(all[1]);
  EXPECT_THAT(all[0].far.PollAll(), testing::IsEmpty()) << "receives of the SRQ were flushed";
  SendOne(all[1]);
  SendOne(all[1]);
}

TEST_P(SharedReceives, TheLastWqeOfAQpInErrorIsAnnounced) {
  if (!capabilities().last_wqe_event) GTEST_SKIP() << "the device raises no last-WQE event";
  QpPair c = Connect(WithSrq(8));
  c.far.Post(Receive(7, {c.far.memory.Piece(0, 8)}));
  SendOne(c);
  c.far.ToError();
  Must(c.far.host().AwaitAsyncEvent(IBV_EVENT_QP_LAST_WQE_REACHED, c.far.qp.id, kPatienceMs));
}

TEST_P(SharedReceives, TheLastWqeIsAnnouncedAlsoWhenTheQpFailsByItself) {
  if (!capabilities().last_wqe_event) GTEST_SKIP() << "the device raises no last-WQE event";
  if (!capabilities().remote_key_checked) GTEST_SKIP() << "a bad rkey does not fail the QP";
  QpPair c = Connect(WithSrq(8));
  Memory wrong = c.far.memory;
  wrong.rkey ^= 0x5a5a00;
  c.near.Post(Write(1, {c.near.memory.Piece(0, 8)}, wrong, 0));
  EXPECT_THAT(c.near.SendCompletion(), Failed(IBV_WC_REM_ACCESS_ERR, 1));
  // The initiator's QP went to ERR; both have an SRQ.
  Must(c.near.host().AwaitAsyncEvent(IBV_EVENT_QP_LAST_WQE_REACHED, c.near.qp.id, kPatienceMs));
}

TEST_P(SharedReceives, AReceiveWhoseKeyIsBadFailsTheQpThatTookItAlone) {
  std::vector<QpPair> all = ConnectMany(2, WithSrq(8));
  ibv_sge bad = all[0].far.memory.Piece(0, 64);
  bad.lkey ^= 0x5a5a00;
  all[0].far.Post(Receive(5, {bad}));
  all[0].far.Post(Receive(6, {all[0].far.memory.Piece(0, 64)}));
  all[0].near.Post(Send(1, {all[0].near.memory.Piece(0, 8)}));
  EXPECT_THAT(all[0].near.SendCompletion().status, FailsAtTarget(testing::Ne(IBV_WC_SUCCESS)));
  const ibv_wc received = all[0].far.ReceiveCompletion();
  EXPECT_THAT(received, HasWrId(5));
  EXPECT_THAT(received.status, DemandStatus(IBV_WC_LOC_PROT_ERR,
                                            {{Departure::kReceiveKeyStatus, IBV_WC_LOC_QP_OP_ERR},
                                             {Departure::kReceiveKeyGeneral, IBV_WC_GENERAL_ERR}}));
  SendOne(all[1]);
}

VERBENA_CONFORMANCE_SUITE(SharedReceives);

}  // namespace
}  // namespace verbena::internal::conformance
