// LOCAL_INV and SEND_WITH_INV end exactly the binding of the type-2 memory window that they name.
// Nothing lands in the window's memory afterwards.

#include "tests/conformance/windows.h"

namespace verbena::internal::conformance {
namespace {

class Invalidation : public WindowsTest {};

TEST_P(Invalidation, AnInvalidatedWindowIsClosed) {
  for (const uint64_t bytes : {uint64_t{8}, kBytes}) {
    SCOPED_TRACE(bytes);
    QpPair c = Connect();
    const Memory region = Region(c.far);
    Mw window = Window(c.far);
    const Memory target = Bind(c.far, window, region);
    ExpectWriteLands(c, region, target, 6);
    Invalidate(c.far, window.rkey);
    ExpectWriteRefused(c, region, target, bytes);
  }
}

TEST_P(Invalidation, ASendInvalidatesAtItsReceiverAndSaysWhat) {
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{40}, uint64_t{40000}}) {
    SCOPED_TRACE(bytes);
    QpPair c = Connect();
    const Memory region = Region(c.far);
    Mw window = Window(c.far);
    const Memory target = Bind(c.far, window, region);
    c.near.Put(0, Pattern(8, 40000));
    c.far.Post(Receive(7, {c.far.memory.Piece(0, 40000)}));
    c.near.Post(SendInvalidate(1, {c.near.memory.Piece(0, bytes)}, window.rkey));
    const ibv_wc received = c.far.ReceiveCompletion();
    EXPECT_THAT(received, Succeeded(IBV_WC_RECV, 7));
    EXPECT_EQ(received.byte_len, bytes);
    Demand((received.wc_flags & IBV_WC_WITH_INV) != 0, Departure::kInvalidationFlag);
    EXPECT_EQ(received.wc_flags & IBV_WC_WITH_IMM, 0u);
    EXPECT_EQ(received.invalidated_rkey, window.rkey);
    EXPECT_TRUE(c.far.Bytes(0, bytes) == Pattern(8, 40000).substr(0, bytes));
    EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_SEND, 1));
    ExpectWorks(c);
    ExpectWriteRefused(c, region, target);
  }
}

TEST_P(Invalidation, AnOrdinarySendInvalidatesNothing) {
  QpPair c = Connect();
  const Memory region = Region(c.far);
  Mw window = Window(c.far);
  const Memory target = Bind(c.far, window, region);
  c.far.Post(Receive(7, {c.far.memory.Piece(0, 64)}));
  c.near.Post(Send(1, {c.near.memory.Piece(0, 8)}));
  EXPECT_EQ(c.far.ReceiveCompletion().wc_flags & IBV_WC_WITH_INV, 0u);
  EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_SEND, 1));
  ExpectWriteLands(c, region, target, 6);
}

TEST_P(Invalidation, BytesWrittenBeforeTheInvalidatingSendAreThereWhenItArrives) {
  EndOptions options;
  options.memory_bytes = 2 << 20;
  constexpr uint64_t kLarge = 1 << 20;
  for (const uint64_t bytes : {uint64_t{8}, uint64_t{20000}, kLarge}) {
    SCOPED_TRACE(bytes);
    QpPair c = Connect(options);
    const Memory region = Region(c.far, kUnderWindows, kLarge);
    Mw window = Window(c.far);
    const Memory target = Bind(c.far, window, region, 0, kLarge);
    c.near.Put(0, Pattern(9, bytes));
    c.far.Post(Receive(7, {c.far.memory.Piece(0, 64)}));
    EXPECT_THAT(c.near.TryPost({Unsignalled(Write(1, {c.near.memory.Piece(0, bytes)}, target, 0)),
                                SendInvalidate(2, {c.near.memory.Piece(0, 8)}, window.rkey)}),
                Accepted());
    EXPECT_EQ(c.far.ReceiveCompletion().invalidated_rkey, window.rkey);
    EXPECT_TRUE(Must(far().ReadBytes(region, 0, bytes)) == Pattern(9, bytes));
    EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_SEND, 2));
  }
}

TEST_P(Invalidation, AWriteBehindTheSendThatClosesItsWindowIsRefused) {
  for (const uint64_t bytes : {uint64_t{8}, uint64_t{8000}}) {
    SCOPED_TRACE(bytes);
    QpPair c = Connect();
    const Memory region = Region(c.far);
    Mw window = Window(c.far);
    const Memory target = Bind(c.far, window, region);
    c.near.Put(0, Pattern(9, bytes));
    c.far.Post(Receive(7, {c.far.memory.Piece(0, 64)}));
    EXPECT_THAT(c.near.TryPost({SendInvalidate(1, {c.near.memory.Piece(0, 8)}, window.rkey),
                                Write(2, {c.near.memory.Piece(0, bytes)}, target, 0)}),
                Accepted());
    EXPECT_EQ(c.far.ReceiveCompletion().invalidated_rkey, window.rkey);
    const std::vector<ibv_wc> sent = c.near.SendCompletions(2);
    EXPECT_THAT(sent[0], Succeeded(IBV_WC_SEND, 1));
    EXPECT_THAT(sent[1], Failed(IBV_WC_REM_ACCESS_ERR, 2));
    EXPECT_TRUE(BytesOf(c.far, region) == std::string(kRegionBytes, '\0'));
  }
}

TEST_P(Invalidation, ASecondLocalInvalidationFails) {
  if (auto why = ReasonToSpare(Departure::kFreeWindowInvalidated); !why.empty()) {
    GTEST_SKIP() << why;
  }
  QpPair c = Connect();
  const Memory region = Region(c.far);
  Mw window = Window(c.far);
  Bind(c.far, window, region);
  Invalidate(c.far, window.rkey);
  c.far.Post(LocalInvalidate(2, window.rkey));
  const ibv_wc wc = c.far.SendCompletion();
  EXPECT_THAT(wc, HasWrId(2));
  EXPECT_THAT(wc.status, testing::AnyOf(IBV_WC_MW_BIND_ERR, IBV_WC_LOC_QP_OP_ERR));
  EXPECT_EQ(c.far.State(), IBV_QPS_ERR);
}

TEST_P(Invalidation, AWindowThatThePeerHasInvalidatedCannotBeInvalidatedAgain) {
  if (auto why = ReasonToSpare(Departure::kFreeWindowInvalidated); !why.empty()) {
    GTEST_SKIP() << why;
  }
  for (const bool by_peer : {true, false}) {
    QpPair c = Connect();
    const Memory region = Region(c.far);
    Mw window = Window(c.far);
    Bind(c.far, window, region);
    c.far.Post(Receive(7, {c.far.memory.Piece(0, 64)}));
    c.near.Post(SendInvalidate(1, {c.near.memory.Piece(0, 8)}, window.rkey));
    EXPECT_THAT(c.far.ReceiveCompletion(), Succeeded(IBV_WC_RECV, 7));
    EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_SEND, 1));
    if (by_peer) {
      ExpectSendInvalidateFails(c, window.rkey);
    } else {
      c.far.Post(LocalInvalidate(2, window.rkey));
      EXPECT_THAT(c.far.SendCompletion(), testing::Not(HasStatus(IBV_WC_SUCCESS)));
    }
  }
}

TEST_P(Invalidation, AKeyOfNoBindingCannotBeInvalidatedByAPeer) {
  if (auto why = ReasonToSpare(Departure::kFreeWindowInvalidated); !why.empty()) {
    GTEST_SKIP() << why;
  }
  QpPair c = Connect();
  const Memory region = Region(c.far);
  Mw bound = Window(c.far);
  const Memory target = Bind(c.far, bound, region);
  const Mw free = Window(c.far);
  for (const uint32_t rkey :
       {free.rkey, free.NextKey(), bound.NextKey(), uint32_t{0}, ~uint32_t{0}, c.far.memory.rkey}) {
    SCOPED_TRACE(rkey);
    QpPair other = ConnectAgain(c);
    ExpectSendInvalidateFails(other, rkey);
  }
  ExpectWriteLands(c, region, target, 6);
}

TEST_P(Invalidation, APeerCannotInvalidateTheWindowOfAnotherLink) {
  QpPair c = Connect();
  const Memory region = Region(c.far);
  Mw window = Window(c.far);
  const Memory target = Bind(c.far, window, region);
  QpPair other = ConnectAgain(c);
  other.far.Post(Receive(7, {c.far.memory.Piece(0, 64)}));
  other.near.Post(SendInvalidate(1, {c.near.memory.Piece(0, 8)}, window.rkey));
  const bool refused = other.near.SendCompletion().status != IBV_WC_SUCCESS;
  if (!Demand(refused, Departure::kForeignWindowInvalidated)) return;
  other.far.AwaitState(IBV_QPS_ERR);
  ExpectWriteLands(c, region, target, 6);
}

TEST_P(Invalidation, AQpCannotInvalidateTheWindowOfAnother) {
  if (auto why = ReasonToSpare(Departure::kForeignWindowInvalidated); !why.empty()) {
    GTEST_SKIP() << why;
  }
  QpPair c = Connect();
  const Memory region = Region(c.far);
  Mw window = Window(c.far);
  const Memory target = Bind(c.far, window, region);
  QpPair other = ConnectAgain(c);
  other.far.Post(LocalInvalidate(2, window.rkey));
  EXPECT_THAT(other.far.SendCompletion(), testing::Not(HasStatus(IBV_WC_SUCCESS)));
  ExpectWriteLands(c, region, target, 6);
}

TEST_P(Invalidation, AFlushedInvalidationLeavesTheWindowBound) {
  QpPair c = Connect();
  const Memory region = Region(c.far);
  Mw window = Window(c.far);
  Bind(c.far, window, region);
  c.far.ToError();
  c.far.Post(LocalInvalidate(2, window.rkey));
  EXPECT_THAT(c.far.SendCompletion(), Failed(IBV_WC_WR_FLUSH_ERR, 2));
  EXPECT_FALSE(far().Deregister(region).ok());
  Must(far().DeallocMw(window));
  Must(far().Deregister(region));
}

VERBENA_CONFORMANCE_SUITE(Invalidation);

// The near side owns the window, the far process is stopped in the middle of what it writes there.
class InvalidationAgainstAPeerProcess : public WindowsTest {};

TEST_P(InvalidationAgainstAPeerProcess,
       StoppedInTheMiddleOfAWriteItWritesNothingOnceTheWindowIsInvalid) {
  constexpr uint64_t kLarge = 1 << 20;
  EndOptions options;
  options.memory_bytes = kLarge + kWorksBytes;
  int frozen_inside = 0;
  for (uint32_t round = 0; round < 12; ++round) {
    QpPair c = Connect(options);
    const Memory region = Region(c.near, kUnderWindows, kLarge);
    Mw window = Window(c.near);
    const Memory target = Bind(c.near, window, region, 0, kLarge);
    c.far.Put(0, Pattern(round, kLarge));
    Must(far().StartStream({.qp = c.far.qp,
                            .cq = c.far.send_cq,
                            .wr = Write(0, {c.far.memory.Piece(0, kLarge)}, target, 0),
                            .depth = 4}));
    AwaitStreamed(far(), 2 + round);
    Must(far_process()->Stop());
    c.near.Post(LocalInvalidate(5, window.rkey));
    std::vector<ibv_wc> done = Must(near().Await(c.near.send_cq, 1, 20));
    if (done.empty()) {
      ++frozen_inside;
      far_process()->Continue();
      done = c.near.SendCompletions(1);
    }
    EXPECT_THAT(done[0], Succeeded(IBV_WC_LOCAL_INV, 5));
    // Ours again, whether the writer runs by now or does so later.
    Must(near().WriteBytes(region, 0, std::string(kLarge, '\0')));
    far_process()->Continue();
    AwaitStreamFailure(c.far);
    EXPECT_TRUE(Must(near().ReadBytes(region, 0, kLarge)) == std::string(kLarge, '\0'))
        << "a late WRITE landed, round " << round;
    Must(near().DeallocMw(window));
    Must(near().DestroyQp(c.near.qp));
    Must(far().DestroyQp(c.far.qp));
  }
  RecordProperty("stopped_inside_a_copy", frozen_inside);
}

VERBENA_CONFORMANCE_PROCESS_SUITE(InvalidationAgainstAPeerProcess);

}  // namespace
}  // namespace verbena::internal::conformance
