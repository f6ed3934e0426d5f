// A QP's state machine allows the specified transitions only, each with all of its attributes. Each
// state sends, receives or flushes as specified.

#include <cerrno>

#include "tests/conformance/fixture.h"

namespace verbena::internal::conformance {
namespace {

struct NamedBit {
  const char* name;
  int bit;
};

class States : public ConformanceTest {
 protected:
  // Both ends, with QPs in RESET.
  QpPair Unconnected(const EndOptions& options = {}) {
    QpPair c{.near = End(near(), near_info(), "near", options),
             .far = End(far(), far_info(), "far", options)};
    c.near.MakeQp(options);
    c.far.MakeQp(options);
    return c;
  }

  absl::Status Move(End& end, const Transition& step) {
    return end.host().ModifyQp(end.qp, step.attributes, step.mask);
  }
  absl::Status MoveTo(End& end, ibv_qp_state state) {
    Transition step;
    step.attributes.qp_state = state;
    step.mask = IBV_QP_STATE;
    return Move(end, step);
  }

  // Takes `end` from RESET to `state`.
  void Bring(End& end, const End& peer, ibv_qp_state state) {
    const LinkOptions link;
    if (state == IBV_QPS_RESET) return;
    Transition init = ToInit(link);
    if (end.info().iwarp) init.mask &= ~IBV_QP_PKEY_INDEX;
    Must(Move(end, init));
    if (state == IBV_QPS_INIT) return;
    Must(Move(end, ToReadyToReceive(end, peer, link)));
    if (state == IBV_QPS_RTR) return;
    Must(Move(end, ToReadyToSend(link)));
    if (state == IBV_QPS_ERR) Must(MoveTo(end, IBV_QPS_ERR));
  }

  // Each attribute is left out once, and then none: only the full set makes the step.
  void ExpectEachNeeded(End& end, const Transition& step, std::initializer_list<NamedBit> needed) {
    const ibv_qp_state before = end.State();
    for (const NamedBit& attribute : needed) {
      Transition spoilt = step;
      spoilt.mask &= ~attribute.bit;
      EXPECT_FALSE(Move(end, spoilt).ok()) << "without " << attribute.name;
      EXPECT_EQ(end.State(), before) << "without " << attribute.name;
    }
    EXPECT_TRUE(Move(end, step).ok());
    EXPECT_EQ(end.State(), step.attributes.qp_state);
  }
};

// Step by step, where rdma_cm does not make the steps.
class Transitions : public States {
 protected:
  std::string ReasonToSkip() const override {
    return near_info().iwarp ? "rdma_cm takes an iWARP device's QPs to RTS" : "";
  }
};

TEST_P(Transitions, AFreshQpIsInReset) {
  QpPair c = Unconnected();
  EXPECT_EQ(c.near.State(), IBV_QPS_RESET);
}

TEST_P(Transitions, InitNeedsEachOfItsAttributes) {
  QpPair c = Unconnected();
  ExpectEachNeeded(c.near, ToInit({}),
                   {{"PKEY_INDEX", IBV_QP_PKEY_INDEX},
                    {"PORT", IBV_QP_PORT},
                    {"ACCESS_FLAGS", IBV_QP_ACCESS_FLAGS}});
}

TEST_P(Transitions, ReadyToReceiveNeedsEachOfItsAttributes) {
  QpPair c = Unconnected();
  Bring(c.near, c.far, IBV_QPS_INIT);
  ExpectEachNeeded(c.near, ToReadyToReceive(c.near, c.far, {}),
                   {{"AV", IBV_QP_AV},
                    {"PATH_MTU", IBV_QP_PATH_MTU},
                    {"DEST_QPN", IBV_QP_DEST_QPN},
                    {"RQ_PSN", IBV_QP_RQ_PSN},
                    {"MAX_DEST_RD_ATOMIC", IBV_QP_MAX_DEST_RD_ATOMIC},
                    {"MIN_RNR_TIMER", IBV_QP_MIN_RNR_TIMER}});
}

TEST_P(Transitions, ReadyToSendNeedsEachOfItsAttributes) {
  QpPair c = Unconnected();
  Bring(c.near, c.far, IBV_QPS_RTR);
  ExpectEachNeeded(c.near, ToReadyToSend({}),
                   {{"TIMEOUT", IBV_QP_TIMEOUT},
                    {"RETRY_CNT", IBV_QP_RETRY_CNT},
                    {"RNR_RETRY", IBV_QP_RNR_RETRY},
                    {"SQ_PSN", IBV_QP_SQ_PSN},
                    {"MAX_QP_RD_ATOMIC", IBV_QP_MAX_QP_RD_ATOMIC}});
}

TEST_P(Transitions, AnAttributeThatDoesNotBelongToAStepIsRefused) {
  QpPair c = Unconnected();
  Transition step = ToInit({});
  step.mask |= IBV_QP_SQ_PSN;
  EXPECT_FALSE(Move(c.near, step).ok());
  EXPECT_EQ(c.near.State(), IBV_QPS_RESET);
  step = ToInit({});
  step.mask |= IBV_QP_QKEY;
  EXPECT_FALSE(Move(c.near, step).ok()) << "QKEY belongs to UD";
  EXPECT_EQ(c.near.State(), IBV_QPS_RESET);
}

TEST_P(Transitions, StepsMayNotBeSkippedNorTakenBack) {
  struct Jump {
    ibv_qp_state from;
    ibv_qp_state to;
  };
  for (const Jump& jump : {Jump{IBV_QPS_RESET, IBV_QPS_RTR}, Jump{IBV_QPS_RESET, IBV_QPS_RTS},
                           Jump{IBV_QPS_INIT, IBV_QPS_RTS}, Jump{IBV_QPS_RTR, IBV_QPS_INIT},
                           Jump{IBV_QPS_RTS, IBV_QPS_INIT}, Jump{IBV_QPS_RTS, IBV_QPS_RTR},
                           Jump{IBV_QPS_ERR, IBV_QPS_INIT}, Jump{IBV_QPS_ERR, IBV_QPS_RTR},
                           Jump{IBV_QPS_ERR, IBV_QPS_RTS}}) {
    SCOPED_TRACE(testing::Message() << "from " << jump.from << " to " << jump.to);
    QpPair c = Unconnected();
    Bring(c.near, c.far, jump.from);
    const Transition step = jump.to == IBV_QPS_INIT  ? ToInit({})
                            : jump.to == IBV_QPS_RTR ? ToReadyToReceive(c.near, c.far, {})
                                                     : ToReadyToSend({});
    EXPECT_FALSE(Move(c.near, step).ok());
    EXPECT_EQ(c.near.State(), jump.from);
  }
}

TEST_P(Transitions, ErrorAndResetCanBeReachedFromEverywhere) {
  for (ibv_qp_state to : {IBV_QPS_ERR, IBV_QPS_RESET}) {
    for (ibv_qp_state from : {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_ERR}) {
      // The specification leaves open whether RESET can go to ERR.
      if (from == IBV_QPS_RESET && to == IBV_QPS_ERR) continue;
      SCOPED_TRACE(testing::Message() << "from " << from << " to " << to);
      QpPair c = Unconnected();
      Bring(c.near, c.far, from);
      EXPECT_TRUE(MoveTo(c.near, to).ok());
      EXPECT_EQ(c.near.State(), to);
    }
  }
}

TEST_P(Transitions, ValuesOutOfRangeAreRefused) {
  QpPair c = Unconnected();
  Transition init = ToInit({});
  init.attributes.port_num = static_cast<uint8_t>(near_info().attributes.phys_port_cnt + 1);
  EXPECT_FALSE(Move(c.near, init).ok()) << "a port that does not exist";
  init = ToInit({});
  init.attributes.port_num = 0;
  EXPECT_FALSE(Move(c.near, init).ok()) << "port 0";
  EXPECT_EQ(c.near.State(), IBV_QPS_RESET);

  Bring(c.near, c.far, IBV_QPS_RTR);
  Transition send = ToReadyToSend({});
  const int initiator = near_info().attributes.max_qp_init_rd_atom;
  if (initiator < 255) {
    send.attributes.max_rd_atomic = static_cast<uint8_t>(initiator + 1);
    EXPECT_FALSE(Move(c.near, send).ok()) << "a deeper initiator than the device has";
  }
  EXPECT_EQ(c.near.State(), IBV_QPS_RTR);
}

TEST_P(Transitions, APkeyIndexBeyondTheTableIsRefused) {
  QpPair c = Unconnected();
  Transition init = ToInit({});
  init.attributes.pkey_index = near_info().attributes.max_pkeys;
  if (!Demand(!Move(c.near, init).ok(), Departure::kPkeyIndexUnchecked)) return;
  EXPECT_EQ(c.near.State(), IBV_QPS_RESET);
}

TEST_P(Transitions, MoreResponderResourcesThanTheDeviceHasAreRefused) {
  const int most = near_info().attributes.max_qp_rd_atom;
  if (most >= 255) GTEST_SKIP() << "the device has as many as can be asked for";
  QpPair c = Unconnected();
  Bring(c.near, c.far, IBV_QPS_INIT);
  Transition receive = ToReadyToReceive(c.near, c.far, {});
  receive.attributes.max_dest_rd_atomic = static_cast<uint8_t>(most + 1);
  if (!Demand(!Move(c.near, receive).ok(), Departure::kResponderDepthUnchecked)) return;
  EXPECT_EQ(c.near.State(), IBV_QPS_INIT);
}

TEST_P(Transitions, QueryingGivesBackWhatWasSet) {
  QpPair c = Unconnected();
  LinkOptions link;
  link.rnr_retry = 5;
  link.min_rnr_timer = 9;
  link.timeout = 13;
  link.retry_count = 6;
  link.max_rd_atomic = 3;
  link.max_dest_rd_atomic = 2;
  ConnectQps(c.near, c.far, link);
  const ibv_qp_attr set = Must(near().QueryQp(
      c.near.qp, IBV_QP_STATE | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_SQ_PSN |
                     IBV_QP_ACCESS_FLAGS | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                     IBV_QP_MIN_RNR_TIMER | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC |
                     IBV_QP_PATH_MTU | IBV_QP_PORT | IBV_QP_CAP));
  const Transition send = ToReadyToSend(link);
  const Transition receive = ToReadyToReceive(c.near, c.far, link);
  EXPECT_EQ(set.qp_state, IBV_QPS_RTS);
  EXPECT_EQ(set.dest_qp_num, c.far.qp.number);
  EXPECT_EQ(set.rq_psn, receive.attributes.rq_psn);
  EXPECT_EQ(set.path_mtu, receive.attributes.path_mtu);
  EXPECT_EQ(set.qp_access_flags & kAllAccess & ~IBV_ACCESS_LOCAL_WRITE,
            static_cast<unsigned>(kAllAccess & ~IBV_ACCESS_LOCAL_WRITE));
  EXPECT_EQ(set.timeout, send.attributes.timeout);
  EXPECT_EQ(set.retry_cnt, 6);
  EXPECT_EQ(set.rnr_retry, 5);
  EXPECT_EQ(set.min_rnr_timer, 9);
  // Devices may round these up to what their hardware does.
  EXPECT_GE(set.max_rd_atomic, 3);
  EXPECT_GE(set.max_dest_rd_atomic, 2);
  EXPECT_EQ(set.port_num, 1);
  EXPECT_GE(set.cap.max_send_wr, 16u);
}

TEST_P(States, NothingCanBeSentBeforeReadyToSend) {
  for (ibv_qp_state state : {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR}) {
    SCOPED_TRACE(testing::Message() << "state " << state);
    if (state == IBV_QPS_RTR && near_info().iwarp) continue;  // it has no such state
    QpPair c = Unconnected();
    Bring(c.near, c.far, state);
    const PostResult posted = c.near.TryPost({Send(1, {c.near.memory.Piece(0, 8)})});
    if (posted.error == 0 && near_info().kind == DeviceKind::kRdma) {
      GTEST_SKIP() << "the provider does not look at the state when posting";
    }
    EXPECT_NE(posted.error, 0);
    if (!IsKnown(Departure::kNegativeErrno, near_info())) {
      EXPECT_EQ(posted.error, EINVAL);
    }
    Demand(posted.accepted == 0, Departure::kBadWrUnset);
  }
}

TEST_P(Transitions, ReceivesCanBePostedFromInitOnAndNotBefore) {
  QpPair c = Unconnected();
  const PostResult posted = c.near.TryPost({Receive(7, {c.near.memory.Piece(0, 8)})});
  if (posted.error == 0 && near_info().kind == DeviceKind::kRdma) {
    GTEST_SKIP() << "the provider does not look at the state when posting";
  }
  EXPECT_EQ(posted.error, EINVAL);
  Bring(c.near, c.far, IBV_QPS_INIT);
  EXPECT_THAT(c.near.TryPost({Receive(8, {c.near.memory.Piece(0, 8)})}), Accepted());
  Must(Move(c.near, ToReadyToReceive(c.near, c.far, {})));
  Must(Move(c.near, ToReadyToSend({})));
  Bring(c.far, c.near, IBV_QPS_RTS);
  c.far.Post(Send(1, {c.far.memory.Piece(0, 8)}));
  EXPECT_THAT(c.near.ReceiveCompletion(), Succeeded(IBV_WC_RECV, 8));
}

TEST_P(Transitions, AQpReceivesInReadyToReceiveAlready) {
  QpPair c = Unconnected();
  Bring(c.near, c.far, IBV_QPS_RTS);
  Bring(c.far, c.near, IBV_QPS_RTR);
  c.far.Post(Receive(7, {c.far.memory.Piece(0, 8)}));
  c.near.Post(Send(1, {c.near.memory.Piece(0, 8)}));
  EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_SEND, 1));
  EXPECT_THAT(c.far.ReceiveCompletion(), Succeeded(IBV_WC_RECV, 7));
}

TEST_P(Transitions, ASendToAPeerThatIsNotReadyYetArrivesOnceItIs) {
  QpPair c = Unconnected();
  Bring(c.near, c.far, IBV_QPS_RTR);
  LinkOptions patient;
  patient.timeout = 18;  // 8.6 s in all, with its retries
  Must(Move(c.near, ToReadyToSend(patient)));
  Bring(c.far, c.near, IBV_QPS_INIT);
  c.far.Post(Receive(7, {c.far.memory.Piece(0, 8)}));
  c.near.Post(Send(1, {c.near.memory.Piece(0, 8)}));
  Must(Move(c.far, ToReadyToReceive(c.far, c.near, {})));
  EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_SEND, 1));
  EXPECT_THAT(c.far.ReceiveCompletion(), Succeeded(IBV_WC_RECV, 7));
}

TEST_P(States, ErrorFlushesReceivesInOrder) {
  QpPair c = Connect();
  for (uint64_t i = 0; i < 5; ++i) c.near.Post(Receive(i, {c.near.memory.Piece(0, 8)}));
  c.near.ToError();
  const std::vector<ibv_wc> flushed = c.near.ReceiveCompletions(5);
  for (uint64_t i = 0; i < 5; ++i) {
    EXPECT_THAT(flushed[i], Failed(IBV_WC_WR_FLUSH_ERR, i));
    EXPECT_EQ(flushed[i].qp_num, c.near.qp.number);
  }
}

TEST_P(States, ErrorFlushesSendsInOrderAlsoThoseUnsignalled) {
  if (!capabilities().rnr_nak) GTEST_SKIP() << "a SEND without a receive ends the connection";
  QpPair c = Connect();
  for (uint64_t i = 0; i < 6; ++i) {
    SendWr wr = Send(i, {c.near.memory.Piece(0, 8)});
    c.near.Post(i % 2 == 0 ? wr : Unsignalled(wr));
  }
  c.near.ToError();
  const std::vector<ibv_wc> flushed = c.near.SendCompletions(6);
  for (uint64_t i = 0; i < 6; ++i) EXPECT_THAT(flushed[i], Failed(IBV_WC_WR_FLUSH_ERR, i));
}

TEST_P(States, ASendPostedInErrorIsFlushed) {
  QpPair c = Connect();
  c.near.ToError();
  c.near.Post(Send(1, {c.near.memory.Piece(0, 8)}));
  c.near.Post(Unsignalled(Send(2, {c.near.memory.Piece(0, 8)})));
  const bool known = IsKnown(Departure::kSendInErrorKept, near_info());
  const std::vector<ibv_wc> flushed =
      Must(near().Await(c.near.send_cq, 2, known ? 200 : kPatienceMs));
  if (!Demand(flushed.size() == 2, Departure::kSendInErrorKept)) return;
  EXPECT_THAT(flushed[0], Failed(IBV_WC_WR_FLUSH_ERR, 1));
  EXPECT_THAT(flushed[1], Failed(IBV_WC_WR_FLUSH_ERR, 2));
}

TEST_P(States, AReceivePostedInErrorIsFlushed) {
  QpPair c = Connect();
  c.near.ToError();
  c.near.Post(Receive(7, {c.near.memory.Piece(0, 8)}));
  // Waits less if the flush is known not to come.
  const bool known = IsKnown(Departure::kReceiveInErrorKept, near_info());
  const std::vector<ibv_wc> flushed =
      Must(near().Await(c.near.recv_cq, 1, known ? 200 : kPatienceMs));
  if (!Demand(flushed.size() == 1, Departure::kReceiveInErrorKept)) return;
  EXPECT_THAT(flushed[0], Failed(IBV_WC_WR_FLUSH_ERR, 7));
}

TEST_P(Transitions, ResetForgetsWhatWasPostedAndTheQpConnectsAnew) {
  QpPair c = Connect();
  for (uint64_t i = 0; i < 4; ++i) c.near.Post(Receive(i, {c.near.memory.Piece(0, 8)}));
  for (End* end : {&c.near, &c.far}) Must(MoveTo(*end, IBV_QPS_RESET));
  EXPECT_THAT(c.near.PollAll(), testing::IsEmpty()) << "RESET flushed";
  ConnectQps(c.near, c.far);
  ExpectWorks(c);
  std::swap(c.near, c.far);
  ExpectWorks(c);
}

TEST_P(Transitions, ANewPairOfPeersAfterResetDoesNotHearOfTheOldOne) {
  QpPair c = Connect();
  QpPair other = ConnectAgain(c);
  for (End* end : {&c.near, &c.far, &other.near, &other.far}) Must(MoveTo(*end, IBV_QPS_RESET));
  std::swap(c.far, other.far);
  ConnectQps(c.near, c.far);
  ConnectQps(other.near, other.far);
  ExpectWorks(c);
  ExpectWorks(other);
}

VERBENA_CONFORMANCE_SUITE(States);
VERBENA_CONFORMANCE_SUITE(Transitions);

}  // namespace
}  // namespace verbena::internal::conformance
