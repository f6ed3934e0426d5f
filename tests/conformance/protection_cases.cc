// Every local and remote key is checked: range, access, protection domain, and that it still lives.

#include <functional>

#include "tests/conformance/fixture.h"

namespace verbena::internal::conformance {
namespace {

// Our own side's keys.
class LocalProtection : public ConformanceTest {
 protected:
  // `piece` as the source of a SEND and of a WRITE, on QPs of their own, fails each with
  // LOC_PROT_ERR, moves nothing and takes the QP to ERR.
  void ExpectSourceRefused(const QpPair& c, const ibv_sge& piece) {
    for (const bool send : {true, false}) {
      SCOPED_TRACE(send ? "SEND" : "WRITE");
      QpPair fresh = ConnectAgain(c);
      fresh.far.Post(Receive(7, {fresh.far.memory.Piece(0, 4096)}));
      fresh.near.Post(send ? Send(1, {piece}) : Write(1, {piece}, fresh.far.memory, 0));
      const ibv_wc sent = fresh.near.SendCompletion();
      EXPECT_THAT(sent, HasWrId(1));
      EXPECT_THAT(sent.status, FailsAtSource());
      fresh.near.ExpectInError();
      EXPECT_EQ(fresh.far.Bytes(0, 4096), std::string(4096, '\0'));
    }
  }

  // `piece` as the target of a READ fails it, and stays as it is.
  void ExpectReadTargetRefused(QpPair& c, const ibv_sge& piece) {
    c.far.Put(0, Pattern(1, 4096));
    c.near.Post(Read(1, {piece}, c.far.memory, 0));
    EXPECT_THAT(c.near.SendCompletion(), Failed(IBV_WC_LOC_PROT_ERR, 1));
    c.near.ExpectInError();
  }

  // `piece` as the buffer of a receive fails both sides.
  void ExpectReceiveRefused(QpPair& c, const ibv_sge& piece) {
    c.far.Post(Receive(7, {piece}));
    c.near.Put(0, Pattern(1, 64));
    c.near.Post(Send(1, {c.near.memory.Piece(0, 64)}));
    const ibv_wc sent = c.near.SendCompletion();
    EXPECT_THAT(sent, HasWrId(1));
    EXPECT_THAT(sent.status, FailsAtTarget(IBV_WC_REM_OP_ERR));
    const ibv_wc received = c.far.ReceiveCompletion();
    EXPECT_THAT(received, HasWrId(7));
    EXPECT_THAT(
        received.status,
        DemandStatus(IBV_WC_LOC_PROT_ERR, {{Departure::kReceiveKeyStatus, IBV_WC_LOC_QP_OP_ERR},
                                           {Departure::kReceiveKeyGeneral, IBV_WC_GENERAL_ERR}}));
    c.far.AwaitState(IBV_QPS_ERR);
  }
};

ibv_sge WithKey(ibv_sge piece, uint32_t lkey) {
  piece.lkey = lkey;
  return piece;
}

TEST_P(LocalProtection, AKeyThatWasNeverGivenOut) {
  QpPair c = Connect();
  ExpectSourceRefused(c, WithKey(c.near.memory.Piece(0, 64), c.near.memory.lkey ^ 0x5a5a00));
}

TEST_P(LocalProtection, AKeyThatIsWrongInItsLastByte) {
  QpPair c = Connect();
  ExpectSourceRefused(c, WithKey(c.near.memory.Piece(0, 64), c.near.memory.lkey ^ 0x41));
}

TEST_P(LocalProtection, OneByteBeyondTheEnd) {
  QpPair c = Connect();
  ExpectSourceRefused(c, c.near.memory.Piece(c.near.memory.bytes - 63, 64));
}

TEST_P(LocalProtection, OneByteBeforeTheStart) {
  QpPair c = Connect();
  ExpectSourceRefused(c, c.near.memory.Piece(~uint64_t{0}, 64));
}

TEST_P(LocalProtection, ARangeThatWrapsAroundTheAddressSpace) {
  QpPair c = Connect();
  ibv_sge piece = c.near.memory.Piece(0, 4096);
  piece.addr = ~uint64_t{0} - 100;
  ExpectSourceRefused(c, piece);
}

TEST_P(LocalProtection, TheSecondPieceIsCheckedLikeTheFirst) {
  QpPair c = Connect();
  c.far.Post(Receive(7, {c.far.memory.Piece(0, 4096)}));
  c.near.Post(Send(1, {c.near.memory.Piece(0, 64),
                       WithKey(c.near.memory.Piece(64, 64), c.near.memory.lkey ^ 0x5a5a00)}));
  EXPECT_THAT(c.near.SendCompletion().status, FailsAtSource());
}

TEST_P(LocalProtection, TheLastByteIsStillInside) {
  QpPair c = Connect();
  const uint64_t end = c.near.memory.bytes - 64;
  c.near.Put(end, Pattern(1, 64));
  c.far.Post(Receive(7, {c.far.memory.Piece(c.far.memory.bytes - 64, 64)}));
  c.near.Post(Send(1, {c.near.memory.Piece(end, 64)}));
  EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_SEND, 1));
  EXPECT_THAT(c.far.ReceiveCompletion(), Succeeded(IBV_WC_RECV, 7));
  EXPECT_EQ(c.far.Bytes(c.far.memory.bytes - 64, 64), Pattern(1, 64));
}

TEST_P(LocalProtection, AKeyOfAnotherProtectionDomain) {
  QpPair c = Connect();
  const Pd other = Must(near().AllocPd());
  const Memory memory = Must(near().Register(other, 4096, kAllAccess));
  ExpectSourceRefused(c, memory.Piece(0, 64));
}

TEST_P(LocalProtection, AKeyWhoseRegionIsGone) {
  QpPair c = Connect();
  const Memory memory = Must(near().Register(c.near.pd, 4096, kAllAccess));
  Must(near().Deregister(memory));
  ExpectSourceRefused(c, memory.Piece(0, 64));
}

TEST_P(LocalProtection, AKeyOfThePastDoesNotOpenTheRegionThatCameAfterIt) {
  QpPair c = Connect();
  const Memory old = Must(near().Register(c.near.pd, 4096, kAllAccess));
  Must(near().Deregister(old));
  Must(near().RegisterAgain(old, c.near.pd, kAllAccess));
  ExpectSourceRefused(c, old.Piece(0, 64));
}

TEST_P(LocalProtection, AReadMayNotWriteToMemoryThatAllowsNoLocalWrite) {
  QpPair c = Connect();
  const Memory memory = Must(near().Register(c.near.pd, 4096, 0));
  ExpectReadTargetRefused(c, memory.Piece(0, 64));
  EXPECT_EQ(Must(near().ReadBytes(memory, 0, 64)), std::string(64, '\0'));
}

TEST_P(LocalProtection, MemoryWithoutLocalWriteMayBeSentFrom) {
  QpPair c = Connect();
  const Memory memory = Must(near().Register(c.near.pd, 4096, 0));
  c.far.Post(Receive(7, {c.far.memory.Piece(0, 64)}));
  c.near.Post(Send(1, {memory.Piece(0, 64)}));
  EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_SEND, 1));
}

TEST_P(LocalProtection, AReadMayNotReachOneByteBeyondItsTarget) {
  QpPair c = Connect();
  ExpectReadTargetRefused(c, c.near.memory.Piece(c.near.memory.bytes - 63, 64));
}

TEST_P(LocalProtection, AReceiveWithAKeyThatWasNeverGivenOut) {
  QpPair c = Connect();
  ExpectReceiveRefused(c, WithKey(c.far.memory.Piece(0, 64), c.far.memory.lkey ^ 0x5a5a00));
  EXPECT_EQ(c.far.Bytes(0, 64), std::string(64, '\0'));
}

TEST_P(LocalProtection, AReceiveIntoMemoryThatAllowsNoLocalWrite) {
  QpPair c = Connect();
  const Memory memory = Must(far().Register(c.far.pd, 4096, 0));
  ExpectReceiveRefused(c, memory.Piece(0, 64));
  EXPECT_EQ(Must(far().ReadBytes(memory, 0, 64)), std::string(64, '\0'));
}

TEST_P(LocalProtection, AReceiveIntoMemoryOfAnotherProtectionDomain) {
  QpPair c = Connect();
  const Pd other = Must(far().AllocPd());
  const Memory memory = Must(far().Register(other, 4096, kAllAccess));
  ExpectReceiveRefused(c, memory.Piece(0, 64));
  EXPECT_EQ(Must(far().ReadBytes(memory, 0, 64)), std::string(64, '\0'));
}

TEST_P(LocalProtection, AReceiveThatIsTooSmallFailsBothSides) {
  QpPair c = Connect();
  c.far.Post(Receive(7, {c.far.memory.Piece(0, 63)}));
  c.near.Put(0, Pattern(1, 64));
  c.near.Post(Send(1, {c.near.memory.Piece(0, 64)}));
  const ibv_wc sent = c.near.SendCompletion();
  EXPECT_THAT(sent, HasWrId(1));
  EXPECT_THAT(sent.status,
              FailsAtTarget(DemandStatus(IBV_WC_REM_INV_REQ_ERR, Departure::kShortReceivePeerStatus,
                                         IBV_WC_REM_OP_ERR)));
  const ibv_wc received = c.far.ReceiveCompletion();
  EXPECT_THAT(received, HasWrId(7));
  EXPECT_THAT(received.status, DemandStatus(IBV_WC_LOC_LEN_ERR, Departure::kShortReceiveStatus,
                                            IBV_WC_LOC_QP_OP_ERR));
  EXPECT_EQ(c.far.Bytes(63, 8), std::string(8, '\0')) << "bytes behind the receive changed";
}

TEST_P(LocalProtection, ALargeMessageIntoAReceiveThatIsTooSmallStopsAtItsEnd) {
  QpPair c = Connect();
  c.far.Post(Receive(7, {c.far.memory.Piece(0, 20000)}));
  c.near.Put(0, Pattern(1, 60000));
  c.near.Post(Send(1, {c.near.memory.Piece(0, 60000)}));
  EXPECT_THAT(c.near.SendCompletion().status,
              FailsAtTarget(DemandStatus(IBV_WC_REM_INV_REQ_ERR, Departure::kShortReceivePeerStatus,
                                         IBV_WC_REM_OP_ERR)));
  EXPECT_THAT(
      c.far.ReceiveCompletion().status,
      DemandStatus(IBV_WC_LOC_LEN_ERR, Departure::kShortReceiveStatus, IBV_WC_LOC_QP_OP_ERR));
  EXPECT_EQ(c.far.Bytes(20000, 45536), std::string(45536, '\0'));
}

TEST_P(LocalProtection, RemoteWriteNeedsLocalWriteWhenMemoryIsRegistered) {
  const Pd pd = Must(near().AllocPd());
  EXPECT_FALSE(near().Register(pd, 4096, IBV_ACCESS_REMOTE_WRITE).ok());
  EXPECT_FALSE(near().Register(pd, 4096, IBV_ACCESS_REMOTE_ATOMIC).ok());
  EXPECT_TRUE(near().Register(pd, 4096, IBV_ACCESS_REMOTE_READ).ok());
}

VERBENA_CONFORMANCE_SUITE(LocalProtection);

// The peer's keys, for each of the one-sided opcodes.
class RemoteProtection : public ConformanceTest {
 protected:
  struct Attempt {
    std::string name;
    std::function<SendWr(const End& near, const Memory& target, uint64_t offset)> wr;
    int access;  // what it needs
  };

  std::vector<Attempt> Attempts() const {
    std::vector<Attempt> attempts{{"WRITE",
                                   [](const End& near, const Memory& target, uint64_t offset) {
                                     return Write(1, {near.memory.Piece(0, 8)}, target, offset);
                                   },
                                   IBV_ACCESS_REMOTE_WRITE},
                                  {"READ",
                                   [](const End& near, const Memory& target, uint64_t offset) {
                                     return Read(1, {near.memory.Piece(1024, 8)}, target, offset);
                                   },
                                   IBV_ACCESS_REMOTE_READ}};
    if (!capabilities().atomics) return attempts;
    attempts.push_back({"FETCH_ADD",
                        [](const End& near, const Memory& target, uint64_t offset) {
                          return FetchAdd(1, near.memory.Piece(1024, 8), target, offset, 1);
                        },
                        IBV_ACCESS_REMOTE_ATOMIC});
    attempts.push_back({"CMP_SWAP",
                        [](const End& near, const Memory& target, uint64_t offset) {
                          return CompareSwap(1, near.memory.Piece(1024, 8), target, offset, 0, 9);
                        },
                        IBV_ACCESS_REMOTE_ATOMIC});
    return attempts;
  }

  // The attempt, on a fresh connection beside `c`, is refused by the target: nothing is moved, and
  // both QPs leave service.
  void ExpectRefused(const QpPair& c, const Attempt& attempt, const Memory& target,
                     uint64_t offset) {
    SCOPED_TRACE(attempt.name);
    QpPair fresh = ConnectAgain(c);
    fresh.near.Put(0, Pattern(1, 8));
    fresh.near.Put(1024, Pattern(2, 8));
    const std::string before = Must(far().ReadBytes(target, 0, target.bytes));
    const SendWr wr = attempt.wr(fresh.near, target, offset);
    fresh.near.Post(wr);
    const ibv_wc wc = fresh.near.SendCompletion();
    EXPECT_THAT(wc, HasWrId(1));
    EXPECT_THAT(wc.status, FailsAtTarget(IBV_WC_REM_ACCESS_ERR));
    if (wr.opcode != IBV_WR_RDMA_WRITE) {
      EXPECT_NE(wc.status, IBV_WC_SUCCESS);
    }
    if (wc.status != IBV_WC_SUCCESS) fresh.near.ExpectInError();
    fresh.near.AwaitState(IBV_QPS_ERR);
    fresh.far.AwaitState(IBV_QPS_ERR);
    EXPECT_TRUE(Must(far().ReadBytes(target, 0, target.bytes)) == before) << "memory changed";
    EXPECT_EQ(fresh.near.Bytes(1024, 8), Pattern(2, 8)) << "something was fetched";
  }

  // For a device that departs so: a READ of unreadable memory fails, or is noted.
  void ExpectUnreadableIsRead(const QpPair& c) {
    QpPair fresh = ConnectAgain(c);
    const Memory target =
        Must(far().Register(c.far.pd, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
    fresh.near.Post(Read(1, {fresh.near.memory.Piece(0, 8)}, target, 0));
    Demand(fresh.near.SendCompletion().status != IBV_WC_SUCCESS, Departure::kUnreadableRead);
  }

  void ExpectAllRefused(const QpPair& c, const Memory& target, uint64_t offset) {
    for (const Attempt& attempt : Attempts()) ExpectRefused(c, attempt, target, offset);
  }
};

TEST_P(RemoteProtection, AKeyThatWasNeverGivenOut) {
  QpPair c = Connect();
  Memory target = c.far.memory;
  target.rkey ^= 0x5a5a00;
  ExpectAllRefused(c, target, 0);
}

TEST_P(RemoteProtection, AKeyThatIsWrongInItsLastByte) {
  QpPair c = Connect();
  Memory target = c.far.memory;
  target.rkey ^= 0x41;
  ExpectAllRefused(c, target, 0);
}

TEST_P(RemoteProtection, TheKeyZeroOpensNothing) {
  QpPair c = Connect();
  Memory target = c.far.memory;
  target.rkey = 0;
  ExpectAllRefused(c, target, 0);
}

TEST_P(RemoteProtection, OneByteBeyondTheEnd) {
  QpPair c = Connect();
  for (const Attempt& attempt : Attempts()) {
    // An atomic's address is aligned, so it is beyond the end as a whole or not at all.
    const bool atomic = attempt.access == IBV_ACCESS_REMOTE_ATOMIC;
    ExpectRefused(c, attempt, c.far.memory, c.far.memory.bytes - (atomic ? 0 : 7));
  }
}

TEST_P(RemoteProtection, OneByteBeforeTheStart) {
  QpPair c = Connect();
  for (const Attempt& attempt : Attempts()) {
    const bool atomic = attempt.access == IBV_ACCESS_REMOTE_ATOMIC;
    ExpectRefused(c, attempt, c.far.memory, ~uint64_t{0} - (atomic ? 7 : 0));
  }
}

TEST_P(RemoteProtection, ALargeTransferThatEndsOneByteTooFarMovesNothing) {
  QpPair c = Connect();
  End near = c.near;
  near.memory = Must(this->near().Register(near.pd, c.far.memory.bytes + 4096, kAllAccess));
  near.Put(0, Pattern(1, c.far.memory.bytes + 1));
  near.Post(Write(1, {near.memory.Piece(0, c.far.memory.bytes + 1)}, c.far.memory, 0));
  EXPECT_THAT(near.SendCompletion().status, FailsAtTarget(IBV_WC_REM_ACCESS_ERR));
  // iWARP cuts a WRITE into segments, each placed and checked by itself.
  if (near_info().iwarp) return c.far.AwaitState(IBV_QPS_ERR);
  EXPECT_TRUE(c.far.Bytes(0, c.far.memory.bytes) == std::string(c.far.memory.bytes, '\0'));
}

TEST_P(RemoteProtection, TheWholeRegionMayBeWrittenAndRead) {
  QpPair c = Connect();
  c.near.Put(0, Pattern(1, c.near.memory.bytes));
  c.near.Post(Write(1, {c.near.memory.Piece(0, c.near.memory.bytes)}, c.far.memory, 0));
  EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_RDMA_WRITE, 1));
  c.near.Put(0, std::string(c.near.memory.bytes, '\0'));
  c.near.Post(Read(2, {c.near.memory.Piece(0, c.near.memory.bytes)}, c.far.memory, 0));
  EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_RDMA_READ, 2));
  EXPECT_TRUE(c.near.Bytes(0, c.near.memory.bytes) == Pattern(1, c.near.memory.bytes));
}

TEST_P(RemoteProtection, ARegionGivesOnlyTheAccessItWasRegisteredWith) {
  QpPair c = Connect();
  for (const Attempt& attempt : Attempts()) {
    if (attempt.access == IBV_ACCESS_REMOTE_READ &&
        IsKnown(Departure::kUnreadableRead, near_info())) {
      ExpectUnreadableIsRead(c);
      continue;
    }
    const Memory target = Must(far().Register(c.far.pd, 4096, kAllAccess & ~attempt.access));
    ExpectRefused(c, attempt, target, 0);
  }
}

TEST_P(RemoteProtection, ARegionGivesTheAccessItWasRegisteredWithAlone) {
  QpPair c = Connect();
  for (const Attempt& attempt : Attempts()) {
    SCOPED_TRACE(attempt.name);
    const Memory target =
        Must(far().Register(c.far.pd, 4096, IBV_ACCESS_LOCAL_WRITE | attempt.access));
    c.near.Post(attempt.wr(c.near, target, 8));
    EXPECT_THAT(c.near.SendCompletion(), HasStatus(IBV_WC_SUCCESS));
  }
}

TEST_P(RemoteProtection, AQpGivesOnlyTheAccessItWasSetUpWith) {
  for (const Attempt& attempt : Attempts()) {
    SCOPED_TRACE(attempt.name);
    LinkOptions link;
    link.qp_access = kAllAccess & ~attempt.access;
    QpPair c = Connect({}, link);
    c.near.Post(attempt.wr(c.near, c.far.memory, 0));
    EXPECT_THAT(c.near.SendCompletion().status,
                FailsAtTarget(testing::AnyOf(IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_ACCESS_ERR)));
    if (IsKnown(Departure::kQpAccessIgnored, near_info())) {
      // Behind it, so that it has come by then.
      c.far.Post(Receive(7, {c.far.memory.Piece(64, 8)}));
      c.near.Post(Send(2, {c.near.memory.Piece(0, 8)}));
      const bool refused = c.far.ReceiveCompletion().status != IBV_WC_SUCCESS;
      Demand(refused, Departure::kQpAccessIgnored);
      continue;
    }
    if (near_info().iwarp) c.far.AwaitState(IBV_QPS_ERR);
    EXPECT_EQ(c.far.Word(0), 0u);
  }
}

TEST_P(RemoteProtection, ARegionOfAnotherProtectionDomain) {
  QpPair c = Connect();
  const Pd other = Must(far().AllocPd());
  ExpectAllRefused(c, Must(far().Register(other, 4096, kAllAccess)), 0);
}

TEST_P(RemoteProtection, ARegionThatIsGone) {
  QpPair c = Connect();
  const Memory target = Must(far().Register(c.far.pd, 4096, kAllAccess));
  c.near.Post(Write(1, {c.near.memory.Piece(0, 8)}, target, 0));
  ASSERT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_RDMA_WRITE, 1)) << "while it lives";
  Must(far().Deregister(target));
  ExpectAllRefused(c, target, 0);
}

TEST_P(RemoteProtection, AKeyOfThePastDoesNotOpenTheRegionThatCameAfterIt) {
  QpPair c = Connect();
  const Memory old = Must(far().Register(c.far.pd, 4096, kAllAccess));
  Must(far().Deregister(old));
  Must(far().RegisterAgain(old, c.far.pd, kAllAccess));
  ExpectAllRefused(c, old, 0);
}

TEST_P(RemoteProtection, ARefusalHarmsNoOtherQp) {
  QpPair c = Connect();
  Memory target = c.far.memory;
  target.rkey ^= 0x5a5a00;
  ExpectAllRefused(c, target, 0);
  ExpectWorks(c);
}

TEST_P(RemoteProtection, WrsBehindARefusedWriteAreFlushedAndHaveNoEffect) {
  QpPair c = Connect();
  Memory target = c.far.memory;
  target.rkey ^= 0x5a5a00;
  c.near.Put(0, Pattern(1, 64));
  c.far.Post(Receive(7, {c.far.memory.Piece(0, 64)}));
  ASSERT_THAT(c.near.TryPost({Write(1, {c.near.memory.Piece(0, 8)}, target, 0),
                              Write(2, {c.near.memory.Piece(0, 64)}, c.far.memory, 4096),
                              Send(3, {c.near.memory.Piece(0, 64)})}),
              Accepted());
  const std::vector<ibv_wc> sent = c.near.SendCompletions(3);
  for (uint64_t i = 0; i < 3; ++i) {
    EXPECT_THAT(sent[i], HasWrId(i + 1));
    EXPECT_THAT(sent[i].status,
                FailsAtTarget(i == 0 ? IBV_WC_REM_ACCESS_ERR : IBV_WC_WR_FLUSH_ERR));
  }
  EXPECT_THAT(c.far.ReceiveCompletion(), Failed(IBV_WC_WR_FLUSH_ERR, 7));
  EXPECT_EQ(c.far.Bytes(4096, 64), std::string(64, '\0'));
  EXPECT_EQ(c.far.Bytes(0, 64), std::string(64, '\0'));
}

VERBENA_CONFORMANCE_SUITE(RemoteProtection);

}  // namespace
}  // namespace verbena::internal::conformance
