// A QP can be destroyed with any work outstanding: its memory is free, its peer's work ends in
// errors, and no other QP notices.

#include <algorithm>

#include "tests/conformance/fixture.h"

namespace verbena::internal::conformance {
namespace {

class Teardown : public ConformanceTest {
 protected:
  // A real device gives a silent peer up after about 20 ms.
  static LinkOptions Impatient() {
    LinkOptions link;
    link.timeout = 10;
    link.retry_count = 2;
    return link;
  }

  // `count` completions come; once one has failed all behind it are flushed; the last has failed.
  void ExpectFailureThenFlush(End& end, uint32_t count) const {
    const bool iwarp = end.info().iwarp;
    bool failed = false;
    for (const ibv_wc& wc : CompletionsOf(end, count)) {
      if (failed) {
        EXPECT_THAT(wc, HasStatus(IBV_WC_WR_FLUSH_ERR));
      } else if (wc.status != IBV_WC_SUCCESS) {
        failed = true;
        // iWARP retries nothing: when the connection has ended all is flushed.
        if (iwarp && wc.status == IBV_WC_WR_FLUSH_ERR) continue;
        EXPECT_THAT(wc.status, testing::AnyOf(IBV_WC_RETRY_EXC_ERR, IBV_WC_REM_OP_ERR));
      }
    }
    if (iwarp) return end.AwaitState(IBV_QPS_ERR);
    EXPECT_TRUE(failed) << "every WR to a peer that has gone succeeded";
    end.ExpectInError();
  }

  // A device that waits for a write under way may give up when the writer stands still for long.
  void DeregisterUnderWrites(const Memory& memory) {
    const TimeLimit deadline(kPatienceMs);
    absl::Status gone = near().Deregister(memory);
    while (absl::IsFailedPrecondition(gone) && !deadline.passed()) {
      gone = near().Deregister(memory);
    }
    Must(gone);
  }

  // `count` send completions, or fewer if the device is known to drop WRs that are posted in ERR.
  std::vector<ibv_wc> CompletionsOf(End& end, uint32_t count) const {
    if (!IsKnown(Departure::kSendInErrorKept, end.info())) return end.SendCompletions(count);
    end.AwaitState(IBV_QPS_ERR);
    std::vector<ibv_wc> all = Must(end.host().Await(end.send_cq, count, 200));
    Demand(all.size() == count, Departure::kSendInErrorKept);
    return all;
  }
};

TEST_P(Teardown, AQpWithSendsOutstandingIsDestroyedAndItsMemoryIsFree) {
  if (!capabilities().rnr_nak) GTEST_SKIP() << "a SEND without a receive ends the connection";
  QpPair c = Connect();
  for (uint64_t i = 0; i < 10; ++i) c.near.Post(Send(i, {c.near.memory.Piece(0, 4096)}));
  Must(near().DestroyQp(c.near.qp));
  Must(near().Deregister(c.near.memory));
  // The peer's later receive gets nothing of it, and its device goes on.
  c.far.Post(Receive(7, {c.far.memory.Piece(0, 4096)}));
  c.near.memory = Must(near().RegisterAgain(c.near.memory, c.near.pd, kAllAccess));
  QpPair other = ConnectAgain(c);
  ExpectWorks(other);
}

TEST_P(Teardown, AQpWithReceivesOutstandingIsDestroyedAndLeavesTheOthersAlone) {
  QpPair c = Connect();
  for (uint64_t i = 0; i < 10; ++i) c.near.Post(Receive(i, {c.near.memory.Piece(0, 64)}));
  QpPair other = ConnectAgain(c);
  Must(near().DestroyQp(c.near.qp));
  for (const ibv_wc& wc : other.near.PollAll()) EXPECT_NE(wc.qp_num, other.near.qp.number);
  ExpectWorks(other);
  std::swap(other.near, other.far);
  ExpectWorks(other);
}

TEST_P(Teardown, AQpWithLargeTransfersUnderWayIsDestroyed) {
  EndOptions options;
  options.memory_bytes = 4 << 20;
  QpPair c = Connect(options);
  QpPair other = ConnectAgain(c);
  for (uint64_t i = 0; i < 8; ++i) {
    c.near.Post(Write(i, {c.near.memory.Piece(0, 2 << 20)}, c.far.memory, 0));
    c.near.Post(Read(i, {c.near.memory.Piece(2 << 20, 1 << 20)}, c.far.memory, 0));
  }
  Must(near().DestroyQp(c.near.qp));
  // Completions from before may still be in the CQ.
  for (const ibv_wc& wc : c.near.PollAll()) EXPECT_NE(wc.qp_num, other.near.qp.number);
  ExpectWorks(other);
}

TEST_P(Teardown, CompletionsOfADestroyedQpAreGoneOrItsOwn) {
  QpPair c = Connect();
  for (uint64_t i = 0; i < 4; ++i) {
    c.near.Post(Write(i, {c.near.memory.Piece(0, 8)}, c.far.memory, 0));
  }
  const uint32_t number = c.near.qp.number;
  Must(near().DestroyQp(c.near.qp));
  for (const ibv_wc& wc : c.near.PollAll()) EXPECT_EQ(wc.qp_num, number);
  QpPair fresh = ConnectAgain(c);
  ExpectWorks(fresh);
  EXPECT_THAT(c.near.PollAll(), testing::IsEmpty());
}

TEST_P(Teardown, SendsToAQpThatWasDestroyedEndInErrorsWithinTheRetryTime) {
  QpPair c = Connect({}, Impatient());
  ExpectWorks(c);
  Must(far().DestroyQp(c.far.qp));
  for (uint64_t i = 0; i < 5; ++i) c.near.Post(Send(i, {c.near.memory.Piece(0, 8)}));
  ExpectFailureThenFlush(c.near, 5);
}

TEST_P(Teardown, WritesToAQpThatWasDestroyedEndInErrorsAndDoNotLand) {
  QpPair c = Connect({}, Impatient());
  Must(far().DestroyQp(c.far.qp));
  c.near.Put(0, Pattern(1, 64));
  for (uint64_t i = 0; i < 5; ++i) {
    c.near.Post(Write(i, {c.near.memory.Piece(0, 64)}, c.far.memory, 0));
  }
  ExpectFailureThenFlush(c.near, 5);
  EXPECT_EQ(c.far.Bytes(0, 64), std::string(64, '\0'));
}

TEST_P(Teardown, ReadsFromAQpInErrorEndInErrors) {
  QpPair c = Connect({}, Impatient());
  c.far.ToError();
  for (uint64_t i = 0; i < 3; ++i) {
    c.near.Post(Read(i, {c.near.memory.Piece(0, 64)}, c.far.memory, 0));
  }
  ExpectFailureThenFlush(c.near, 3);
}

TEST_P(Teardown, ASendThatWaitedForAReceiveFailsWhenThePeerGoesToError) {
  if (!capabilities().rnr_nak) GTEST_SKIP() << "a SEND without a receive ends the connection";
  QpPair c = Connect({}, Impatient());
  c.near.Post(Send(1, {c.near.memory.Piece(0, 8)}));
  c.near.Post(Write(2, {c.near.memory.Piece(0, 8)}, c.far.memory, 0));
  c.far.ToError();
  ExpectFailureThenFlush(c.near, 2);
}

TEST_P(Teardown, AQpInErrorReceivesNothingMore) {
  QpPair c = Connect({}, Impatient());
  c.far.Post(Receive(7, {c.far.memory.Piece(0, 64)}));
  c.far.ToError();
  c.near.Put(0, Pattern(1, 64));
  c.near.Post(Send(1, {c.near.memory.Piece(0, 64)}));
  ExpectFailureThenFlush(c.near, 1);
  EXPECT_THAT(c.far.ReceiveCompletion(), Failed(IBV_WC_WR_FLUSH_ERR, 7));
  EXPECT_EQ(c.far.Bytes(0, 64), std::string(64, '\0'));
}

TEST_P(Teardown, AWriteThatBeganBeforeTheTargetLeftServiceEndsBeforeItIsQuiesced) {
  // The far side streams WRITEs into our memory; we end the connection and wait until it is
  // quiesced. From then on not a byte may change.
  EndOptions options;
  options.memory_bytes = 1 << 20;
  for (uint32_t round = 0; round < 8; ++round) {
    QpPair c = Connect(options, Impatient());
    c.far.Put(0, Pattern(round, options.memory_bytes));
    Must(far().StartStream(
        {.qp = c.far.qp,
         .cq = c.far.send_cq,
         .wr = Write(0, {c.far.memory.Piece(0, options.memory_bytes)}, c.near.memory, 0),
         .depth = 4}));
    AwaitStreamed(far(), round + 1);
    const TimeLimit deadline(kPatienceMs);
    const Qp qp = c.near.qp;
    c.near.ToError();
    // A real device may still be at a packet that came before; not once its QP is gone.
    if (near_info().kind == DeviceKind::kRdma) Must(near().DestroyQp(c.near.qp));
    while (!Must(near().Quiesced(qp))) {
      ASSERT_FALSE(deadline.passed()) << "never quiesced although the writer runs";
    }
    c.near.Put(0, std::string(options.memory_bytes, '\0'));
    AwaitStreamFailure(c.far);
    EXPECT_TRUE(c.near.Bytes(0, options.memory_bytes) == std::string(options.memory_bytes, '\0'))
        << "a late WRITE landed, round " << round;
  }
}

TEST_P(Teardown, MemoryIsNotTouchedOnceItsRegistrationIsGone) {
  EndOptions options;
  options.memory_bytes = 1 << 20;
  for (uint32_t round = 0; round < 8; ++round) {
    QpPair c = Connect(options, Impatient());
    c.far.Put(0, Pattern(round, options.memory_bytes));
    Must(far().StartStream(
        {.qp = c.far.qp,
         .cq = c.far.send_cq,
         .wr = Write(0, {c.far.memory.Piece(0, options.memory_bytes)}, c.near.memory, 0),
         .depth = 4}));
    AwaitStreamed(far(), round + 1);
    DeregisterUnderWrites(c.near.memory);
    c.near.Put(0, std::string(options.memory_bytes, '\0'));
    EXPECT_THAT(AwaitStreamFailure(c.far).last_status, FailsAtTarget(IBV_WC_REM_ACCESS_ERR));
    SCOPED_TRACE(testing::Message() << "round " << round);
    Demand(c.near.Bytes(0, options.memory_bytes) == std::string(options.memory_bytes, '\0'),
           Departure::kWriteAfterDeregistration);
  }
}

TEST_P(Teardown, QuiescedIsTrueOfQpsThatAreGoneAndFalseOfThoseInService) {
  QpPair c = Connect();
  EXPECT_FALSE(Must(near().Quiesced(c.near.qp)));
  const Qp qp = c.near.qp;
  Must(near().DestroyQp(c.near.qp));
  const TimeLimit deadline(kPatienceMs);
  while (!Must(near().Quiesced(qp))) ASSERT_FALSE(deadline.passed());
}

VERBENA_CONFORMANCE_SUITE(Teardown);

}  // namespace
}  // namespace verbena::internal::conformance
