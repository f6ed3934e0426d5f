// A SEND that finds no receive is retried, in order, as often as its QP allows. Then it fails,
// without harm to the receiver.

#include <thread>

#include "tests/conformance/fixture.h"

namespace verbena::internal::conformance {
namespace {

class ReceiverNotReady : public ConformanceTest {
 protected:
  std::string ReasonToSkip() const override {
    return capabilities().rnr_nak ? "" : "a SEND without a receive ends the connection";
  }
};

TEST_P(ReceiverNotReady, ASendWaitsUntilTheReceiveIsPosted) {
  QpPair c = Connect();
  c.near.Put(0, Pattern(1, 5000));
  c.near.Post(Send(1, {c.near.memory.Piece(0, 5000)}));
  EXPECT_THAT(Must(near().Await(c.near.send_cq, 1, 20)), testing::IsEmpty());
  c.far.Post(Receive(7, {c.far.memory.Piece(0, 5000)}));
  EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_SEND, 1));
  EXPECT_THAT(c.far.ReceiveCompletion(), Succeeded(IBV_WC_RECV, 7));
  EXPECT_EQ(c.far.Bytes(0, 5000), Pattern(1, 5000));
}

TEST_P(ReceiverNotReady, SeveralSendsWaitAndArriveInOrderAsReceivesTrickleIn) {
  constexpr uint64_t kMessages = 8;
  QpPair c = Connect();
  for (uint64_t i = 0; i < kMessages; ++i) {
    c.near.PutWord(i * 64, i + 500);
    c.near.Post(Send(i, {c.near.memory.Piece(i * 64, 64)}));
  }
  for (uint64_t i = 0; i < kMessages; ++i) {
    c.far.Post(Receive(i, {c.far.memory.Piece(i * 64, 64)}));
    EXPECT_THAT(c.far.ReceiveCompletion(), Succeeded(IBV_WC_RECV, i));
    EXPECT_EQ(c.far.Word(i * 64), i + 500);
    EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_SEND, i));
  }
}

TEST_P(ReceiverNotReady, AWriteWithImmediateWaitsToo) {
  if (!capabilities().write_with_immediate) GTEST_SKIP() << "the device has no immediates";
  QpPair c = Connect();
  c.near.Put(0, Pattern(2, 20000));
  c.near.Post(WriteImmediate(1, {c.near.memory.Piece(0, 20000)}, c.far.memory, 4096, 9));
  EXPECT_THAT(Must(near().Await(c.near.send_cq, 1, 20)), testing::IsEmpty());
  c.far.Post(Receive(7, {}));
  EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_RDMA_WRITE, 1));
  EXPECT_THAT(c.far.ReceiveCompletion(), Succeeded(IBV_WC_RECV_RDMA_WITH_IMM, 7));
  EXPECT_EQ(c.far.Bytes(4096, 20000), Pattern(2, 20000));
}

TEST_P(ReceiverNotReady, WithoutRetriesASendFailsAtOnceAndTheRestIsFlushed) {
  LinkOptions link;
  link.rnr_retry = 0;
  QpPair c = Connect({}, link);
  c.near.Post(Send(1, {c.near.memory.Piece(0, 8)}));
  EXPECT_THAT(c.near.SendCompletion(), Failed(IBV_WC_RNR_RETRY_EXC_ERR, 1));
  c.near.AwaitState(IBV_QPS_ERR);
  c.near.Post(Send(2, {c.near.memory.Piece(0, 8)}));
  EXPECT_THAT(c.near.SendCompletion(), Failed(IBV_WC_WR_FLUSH_ERR, 2));
}

TEST_P(ReceiverNotReady, FiniteRetriesRunOutAndTheReceiverIsUnharmed) {
  LinkOptions link;
  link.rnr_retry = 2;
  link.min_rnr_timer = 14;  // 1.28 ms
  QpPair c = Connect({}, link);
  ASSERT_THAT(c.near.TryPost({Send(1, {c.near.memory.Piece(0, 8)}),
                              Unsignalled(Send(2, {c.near.memory.Piece(0, 8)})),
                              Write(3, {c.near.memory.Piece(0, 8)}, c.far.memory, 8192)}),
              Accepted());
  EXPECT_THAT(c.near.SendCompletion(), Failed(IBV_WC_RNR_RETRY_EXC_ERR, 1));
  EXPECT_THAT(c.near.SendCompletion(), Failed(IBV_WC_WR_FLUSH_ERR, 2));
  EXPECT_THAT(c.near.SendCompletion(), Failed(IBV_WC_WR_FLUSH_ERR, 3));
  c.near.ExpectInError();
  EXPECT_EQ(c.far.State(), IBV_QPS_RTS) << "the receiver has done nothing wrong";
  // A receive that comes late gets nothing of the failed SEND.
  c.far.Post(Receive(7, {c.far.memory.Piece(0, 8)}));
  QpPair other = ConnectAgain(c);
  ExpectWorks(other);
  EXPECT_EQ(c.far.Bytes(8192, 8), std::string(8, '\0'));
}

TEST_P(ReceiverNotReady, AnInlineSendThatWaitsKeepsTheBytesThatWerePosted) {
  if (capabilities().max_inline_bytes < 32) GTEST_SKIP() << "the device does not inline 32 bytes";
  EndOptions options;
  options.cap.max_inline_data = 32;
  QpPair c = Connect(options);
  c.near.Put(0, Pattern(1, 32));
  c.near.Post(Flagged(Send(1, {c.near.memory.Piece(0, 32)}), IBV_SEND_INLINE));
  c.near.Put(0, Pattern(2, 32));
  c.far.Post(Receive(7, {c.far.memory.Piece(0, 32)}));
  EXPECT_THAT(c.far.ReceiveCompletion(), Succeeded(IBV_WC_RECV, 7));
  EXPECT_EQ(c.far.Bytes(0, 32), Pattern(1, 32));
  EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_SEND, 1));
}

TEST_P(ReceiverNotReady, SendsOfManyQpsWaitingAtOnceAllGetThrough) {
  constexpr uint32_t kQps = 6;
  std::vector<QpPair> all{Connect()};
  while (all.size() < kQps) all.push_back(ConnectAgain(all.front()));
  for (uint32_t q = 0; q < kQps; ++q) all[q].near.Post(Send(q, {all[q].near.memory.Piece(0, 8)}));
  for (uint32_t q = kQps; q-- > 0;) {
    all[q].far.Post(Receive(q, {all[q].far.memory.Piece(0, 8)}));
    EXPECT_THAT(all[q].near.SendCompletion(), Succeeded(IBV_WC_SEND, q));
    EXPECT_THAT(all[q].far.ReceiveCompletion(), Succeeded(IBV_WC_RECV, q));
  }
}

VERBENA_CONFORMANCE_SUITE(ReceiverNotReady);

}  // namespace
}  // namespace verbena::internal::conformance
