// Send and receive queues signal what was asked for, refuse the first WR beyond their depth and
// name it, and take inline data as soon as they return. A completion queue keeps its promised
// depth.

#include <cerrno>

#include "tests/conformance/fixture.h"

namespace verbena::internal::conformance {
namespace {

class Queues : public ConformanceTest {
 protected:
  static EndOptions WithDepth(uint32_t depth) {
    EndOptions options;
    options.cap.max_send_wr = depth;
    options.cap.max_recv_wr = depth;
    return options;
  }

  static std::vector<SendWr> Writes(const QpPair& c, uint32_t count, bool signalled) {
    std::vector<SendWr> chain;
    for (uint64_t i = 0; i < count; ++i) {
      SendWr wr = Write(i, {c.near.memory.Piece(0, 8)}, c.far.memory, 8 * i);
      chain.push_back(signalled ? wr : Unsignalled(wr));
    }
    return chain;
  }

  // Waits until a WRITE at `offset` of the far memory has landed.
  static void AwaitWord(End& far, uint64_t offset, uint64_t value) {
    const TimeLimit deadline(kPatienceMs);
    while (far.PeekWord(offset) != value) {
      if (deadline.passed()) EndCase("a WRITE never landed", std::source_location::current());
    }
  }

  EndOptions WithInline(uint32_t bytes) const {
    EndOptions options;
    options.cap.max_inline_data = bytes;
    return options;
  }
};

TEST_P(Queues, AnUnsignalledWrLeavesNoCompletion) {
  QpPair c = Connect();
  ASSERT_THAT(c.near.TryPost(Writes(c, 3, false)), Accepted());
  c.near.Post(Write(99, {c.near.memory.Piece(0, 8)}, c.far.memory, 0));
  EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_RDMA_WRITE, 99));
  EXPECT_THAT(c.near.PollAll(), testing::IsEmpty());
}

TEST_P(Queues, UnsignalledReadsAndSendsLeaveNoneEither) {
  QpPair c = Connect();
  c.far.Post(Receive(7, {c.far.memory.Piece(0, 8)}));
  c.near.Post(Unsignalled(Send(1, {c.near.memory.Piece(0, 8)})));
  c.near.Post(Unsignalled(Read(2, {c.near.memory.Piece(0, 8)}, c.far.memory, 0)));
  if (capabilities().atomics) {
    c.near.Post(Unsignalled(FetchAdd(3, c.near.memory.Piece(0, 8), c.far.memory, 0, 1)));
  }
  c.near.Post(Write(99, {c.near.memory.Piece(0, 8)}, c.far.memory, 0));
  EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_RDMA_WRITE, 99));
  EXPECT_THAT(c.near.PollAll(), testing::IsEmpty());
}

TEST_P(Queues, AQpThatSignalsAllSignalsAll) {
  EndOptions options;
  options.all_signalled = true;
  QpPair c = Connect(options);
  ASSERT_THAT(c.near.TryPost(Writes(c, 5, false)), Accepted());
  const std::vector<ibv_wc> all = c.near.SendCompletions(5);
  for (uint64_t i = 0; i < 5; ++i) EXPECT_THAT(all[i], Succeeded(IBV_WC_RDMA_WRITE, i));
}

TEST_P(Queues, AnUnsignalledWrThatFailsIsReported) {
  QpPair c = Connect();
  ibv_sge bad = c.near.memory.Piece(0, 8);
  bad.lkey ^= 0x5a5a00;
  c.near.Post(Unsignalled(Send(1, {bad})));
  const ibv_wc wc = c.near.SendCompletion();
  EXPECT_THAT(wc, HasWrId(1));
  EXPECT_THAT(wc.status, FailsAtSource());
}

TEST_P(Queues, AFullSendQueueRefusesTheNextWrAndSaysWhich) {
  QpPair c = Connect(WithDepth(16));
  const uint32_t depth = c.near.qp.cap.max_send_wr;
  const PostResult posted = c.near.TryPost(Writes(c, depth + 5, true));
  if (posted.error == 0 && IsKnown(Departure::kRefusalInChainLost, near_info())) {
    const size_t done = Must(near().Await(c.near.send_cq, depth + 5, 500)).size();
    Demand(done == depth + 5, Departure::kRefusalInChainLost);
    return;
  }
  if (posted.error == 0 && near_info().kind == DeviceKind::kRdma) {
    GTEST_SKIP() << "the device completes WRs, and frees their slots, while others are posted";
  }
  EXPECT_THAT(posted, RefusedAfter(depth, ENOMEM));
  const std::vector<ibv_wc> all = c.near.SendCompletions(depth);
  for (uint64_t i = 0; i < depth; ++i) EXPECT_THAT(all[i], Succeeded(IBV_WC_RDMA_WRITE, i));
  EXPECT_THAT(c.near.TryPost(Writes(c, depth, true)), Accepted()) << "all slots are free again";
  c.near.SendCompletions(depth);
}

TEST_P(Queues, ASlotIsFreeOnlyWhenItsCompletionWasPolled) {
  QpPair c = Connect(WithDepth(16));
  const uint32_t depth = c.near.qp.cap.max_send_wr;
  for (uint32_t i = 0; i + 1 < depth; ++i) c.near.Post(Writes(c, 1, true)[0]);
  c.near.PutWord(0, 77);
  c.near.Post(Write(500, {c.near.memory.Piece(0, 8)}, c.far.memory, 4096));
  AwaitWord(c.far, 4096, 77);
  const PostResult posted = c.near.TryPost(Writes(c, 1, true));
  if (posted.error == 0 && near_info().kind == DeviceKind::kRdma) {
    GTEST_SKIP() << "the device frees slots before their completions are polled";
  }
  EXPECT_THAT(posted, RefusedAfter(0, ENOMEM));
  EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_RDMA_WRITE, 0));
  EXPECT_THAT(c.near.TryPost(Writes(c, 2, true)), RefusedAfter(1, ENOMEM)) << "one slot is free";
}

TEST_P(Queues, SlotsOfUnsignalledWrsAreFreedByASignalledOneBehindThemAlone) {
  QpPair c = Connect(WithDepth(16));
  const uint32_t depth = c.near.qp.cap.max_send_wr;
  c.near.PutWord(0, 78);
  ASSERT_THAT(c.near.TryPost(Writes(c, depth - 1, false)), Accepted());
  AwaitWord(c.far, 8 * (depth - 2), 78);
  EXPECT_THAT(c.near.PollAll(), testing::IsEmpty());
  const SendWr signalled = Write(500, {c.near.memory.Piece(0, 8)}, c.far.memory, 4096);
  const PostResult posted = c.near.TryPost({signalled, signalled});
  if (posted.error == 0 && near_info().kind == DeviceKind::kRdma) {
    GTEST_SKIP() << "the device frees the slots of unsignalled WRs by itself";
  }
  EXPECT_THAT(posted, RefusedAfter(1, ENOMEM)) << "slots were freed without a completion";
  EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_RDMA_WRITE, 500));
  EXPECT_THAT(c.near.TryPost(Writes(c, depth, false)), Accepted())
      << "one completion frees all before it";
}

TEST_P(Queues, AFullReceiveQueueRefusesTheNextReceiveAndSaysWhich) {
  QpPair c = Connect(WithDepth(16));
  const uint32_t depth = c.far.qp.cap.max_recv_wr;
  std::vector<RecvWr> chain;
  for (uint64_t i = 0; i < depth + 3; ++i) {
    chain.push_back(Receive(i, {c.far.memory.Piece(0, 8)}));
  }
  const PostResult posted = c.far.TryPost(chain);
  if (!Demand(posted.error != 0, Departure::kReceiveQueueDeeper)) return;
  EXPECT_THAT(posted, RefusedAfter(depth, ENOMEM));
  c.near.Post(Send(1, {c.near.memory.Piece(0, 8)}));
  EXPECT_THAT(c.far.ReceiveCompletion(), Succeeded(IBV_WC_RECV, 0));
  EXPECT_THAT(c.far.TryPost({chain[0]}), Accepted()) << "a polled receive leaves its slot free";
}

TEST_P(Queues, TheChainBeforeABadWrIsExecuted) {
  QpPair c = Connect();
  c.near.PutWord(0, 5);
  std::vector<SendWr> chain = Writes(c, 4, true);
  chain[2].opcode = static_cast<ibv_wr_opcode>(13);
  const PostResult posted = c.near.TryPost(chain);
  const Departure departure = IsKnown(Departure::kRefusalInChainLost, near_info())
                                  ? Departure::kRefusalInChainLost
                                  : Departure::kUnknownOpcodeTaken;
  if (Demand(posted.error != 0, departure)) {
    EXPECT_EQ(posted.accepted, 2u);
  }
  for (const ibv_wc& wc : c.near.SendCompletions(2)) {
    EXPECT_THAT(wc.status,
                DemandStatus(IBV_WC_SUCCESS, Departure::kExecutedFlushed, IBV_WC_WR_FLUSH_ERR));
  }
  AwaitWord(c.far, 8, 5);
  EXPECT_EQ(c.far.Word(24), 0u) << "a WR behind the bad one was executed";
}

TEST_P(Queues, AnInlineBufferCanBeReusedAsSoonAsPostReturns) {
  if (capabilities().max_inline_bytes < 32) GTEST_SKIP() << "the device does not inline 32 bytes";
  QpPair c = Connect(WithInline(32));
  for (uint64_t i = 0; i < 16; ++i) c.far.Post(Receive(i, {c.far.memory.Piece(i * 64, 64)}));
  for (uint32_t i = 0; i < 16; ++i) {
    c.near.Put(0, Pattern(i, 32));
    c.near.Post(Flagged(Send(i, {c.near.memory.Piece(0, 32)}), IBV_SEND_INLINE));
  }
  c.near.Put(0, Pattern(1000, 32));
  c.near.SendCompletions(16);
  c.far.ReceiveCompletions(16);
  for (uint32_t i = 0; i < 16; ++i) EXPECT_EQ(c.far.Bytes(i * 64, 32), Pattern(i, 32));
}

TEST_P(Queues, InlineDataNeedsNoKey) {
  if (capabilities().max_inline_bytes < 32) GTEST_SKIP() << "the device does not inline 32 bytes";
  QpPair c = Connect(WithInline(32));
  c.near.Put(0, Pattern(1, 24));
  ibv_sge first = c.near.memory.Piece(0, 8);
  ibv_sge second = c.near.memory.Piece(8, 16);
  first.lkey = second.lkey = 0xdead;
  c.near.Post(Flagged(Write(1, {first, second}, c.far.memory, 4096), IBV_SEND_INLINE));
  EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_RDMA_WRITE, 1));
  EXPECT_EQ(c.far.Written(4096, Pattern(1, 24)), Pattern(1, 24));
}

TEST_P(Queues, AsMuchAsWasGrantedGoesInlineAndOneByteMoreIsRefused) {
  const uint32_t most = capabilities().max_inline_bytes;
  if (most == 0) GTEST_SKIP() << "the device does not inline";
  QpPair c = Connect(WithInline(most));
  const uint32_t granted = c.near.qp.cap.max_inline_data;
  ASSERT_GE(granted, most);
  ASSERT_LT(granted, c.near.memory.bytes);
  c.near.Put(0, Pattern(1, granted));
  c.far.Post(Receive(7, {c.far.memory.Piece(0, granted)}));
  c.near.Post(Flagged(Send(1, {c.near.memory.Piece(0, granted)}), IBV_SEND_INLINE));
  c.near.Put(0, std::string(granted, '\0'));
  EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_SEND, 1));
  EXPECT_THAT(c.far.ReceiveCompletion(), Succeeded(IBV_WC_RECV, 7));
  EXPECT_EQ(c.far.Bytes(0, granted), Pattern(1, granted));
  const PostResult posted =
      c.near.TryPost({Flagged(Send(2, {c.near.memory.Piece(0, granted + 1)}), IBV_SEND_INLINE)});
  if (!Demand(posted.error != 0, Departure::kInlineBeyondGrant)) return;
  EXPECT_EQ(posted.accepted, 0u);
  ExpectWorks(c);
}

TEST_P(Queues, PollingTakesNoMoreThanWasAskedFor) {
  QpPair c = Connect();
  ASSERT_THAT(c.near.TryPost(Writes(c, 8, true)), Accepted());
  c.near.PutWord(0, 3);
  c.near.Post(Write(8, {c.near.memory.Piece(0, 8)}, c.far.memory, 4096));
  AwaitWord(c.far, 4096, 3);
  std::vector<ibv_wc> some = Must(near().Await(c.near.send_cq, 3, kPatienceMs));
  ASSERT_EQ(some.size(), 3u);
  EXPECT_THAT(some[2], HasWrId(2));
  EXPECT_THAT(c.near.SendCompletion(), HasWrId(3));
  EXPECT_THAT(c.near.SendCompletions(5).back(), HasWrId(8));
  EXPECT_THAT(Must(near().Poll(c.near.send_cq, 16)), testing::IsEmpty());
}

TEST_P(Queues, WrIdsKeepAll64Bits) {
  QpPair c = Connect();
  const uint64_t wr_id = 0xfedcba9876543210;
  c.far.Post(Receive(wr_id + 1, {c.far.memory.Piece(0, 8)}));
  c.near.Post(Send(wr_id, {c.near.memory.Piece(0, 8)}));
  EXPECT_THAT(c.near.SendCompletion(), HasWrId(wr_id));
  EXPECT_THAT(c.far.ReceiveCompletion(), HasWrId(wr_id + 1));
}

TEST_P(Queues, OneCqServesSendsAndReceivesOfSeveralQps) {
  EndOptions options;
  options.one_cq = true;
  QpPair first = Connect(options);
  QpPair second = ConnectAgain(first, options);
  for (QpPair* c : {&first, &second}) {
    c->near.Post(Receive(7, {c->near.memory.Piece(0, 8)}));
    c->far.Post(Receive(7, {c->far.memory.Piece(0, 8)}));
    c->near.Post(Send(1, {c->near.memory.Piece(64, 8)}));
    c->far.Post(Send(1, {c->far.memory.Piece(64, 8)}));
  }
  std::map<uint32_t, int> completions;
  for (const ibv_wc& wc : first.near.SendCompletions(4)) {
    EXPECT_THAT(wc, HasStatus(IBV_WC_SUCCESS));
    ++completions[wc.qp_num];
  }
  EXPECT_EQ(completions[first.near.qp.number], 2);
  EXPECT_EQ(completions[second.near.qp.number], 2);
}

TEST_P(Queues, ACqThatOverflowsRaisesAnError) {
  EndOptions options = WithDepth(64);
  options.send_cq_entries = 4;
  QpPair c = Connect(options);
  const uint32_t capacity = c.near.send_cq.capacity;
  if (capacity >= c.near.qp.cap.max_send_wr) {
    GTEST_SKIP() << "the smallest CQ of the device holds " << capacity;
  }
  ASSERT_THAT(c.near.TryPost(Writes(c, capacity + 1, true)), Accepted());
  Must(near().AwaitAsyncEvent(IBV_EVENT_CQ_ERR, c.near.send_cq.id, kPatienceMs));
}

TEST_P(Queues, ACqHoldsAsManyCompletionsAsItPromised) {
  EndOptions options = WithDepth(64);
  options.send_cq_entries = 8;
  QpPair c = Connect(options);
  const uint32_t capacity = c.near.send_cq.capacity;
  ASSERT_GE(capacity, 8u);
  if (capacity > c.near.qp.cap.max_send_wr) {
    GTEST_SKIP() << "the smallest CQ of the device holds " << capacity;
  }
  // In several turns, so that the queue wraps around.
  for (uint64_t turn = 1; turn <= 5; ++turn) {
    c.near.PutWord(0, turn);
    ASSERT_THAT(c.near.TryPost(Writes(c, capacity, true)), Accepted());
    AwaitWord(c.far, 8 * (capacity - 1), turn);
    const std::vector<ibv_wc> all = c.near.SendCompletions(capacity);
    for (uint64_t i = 0; i < capacity; ++i) {
      ASSERT_THAT(all[i], Succeeded(IBV_WC_RDMA_WRITE, i)) << "turn " << turn;
    }
  }
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(near().AwaitAsyncEvent(IBV_EVENT_CQ_ERR, c.near.send_cq.id, 0)));
}

VERBENA_CONFORMANCE_SUITE(Queues);

}  // namespace
}  // namespace verbena::internal::conformance
