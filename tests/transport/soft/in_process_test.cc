// Two QPs in one process deliver every message once, whole and in order, and delay no other QP. The
// devices are stepped by hand: every test is one thread, and the order of events is its own.
// Threads and engines are in engine_test.cc, failures in in_process_errors_test.cc.

#include <sys/epoll.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "tests/support/forbidden_call.h"
#include "tests/transport/soft/in_process_fixture.h"

namespace verbena::internal::soft {
namespace in_process_test {

using testing::ElementsAre;

TEST_F(InProcessTest, SendArrivesOnceWithItsBytesAndBothSidesComplete) {
  MakeConnected();
  ASSERT_EQ(b_->PostReceive(7, b_->ReceiveSge(0, 100)), 0);
  ASSERT_EQ(a_->SendText(3, "hello"), 0);
  auto received = Poll(b_->cq());
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(received[0].status, IBV_WC_SUCCESS);
  EXPECT_EQ(received[0].opcode, IBV_WC_RECV);
  EXPECT_EQ(received[0].wr_id, 7u);
  EXPECT_EQ(received[0].byte_len, 5u);
  EXPECT_EQ(received[0].qp_num, b_->qp()->qp_num);
  EXPECT_EQ(received[0].src_qp, a_->qp()->qp_num);
  EXPECT_EQ(b_->ReceivedText(0, 5), "hello");
  auto sent = Poll(a_->cq());
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].wr_id, 3u);
  EXPECT_EQ(sent[0].opcode, IBV_WC_SEND);
  EXPECT_TRUE(Poll(a_->cq()).empty());
  EXPECT_TRUE(Poll(b_->cq()).empty());
}

TEST_F(InProcessTest, AReceiveWithoutPiecesNeedsNoListOfThem) {
  MakeConnected();
  ibv_recv_wr wr{.wr_id = 7, .next = nullptr, .sg_list = nullptr, .num_sge = 0};
  ibv_recv_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_recv(b_->qp(), &wr, &bad), 0);
  ASSERT_EQ(a_->PostSend(3, a_->SendSge(0, 0)), 0);
  const auto received = Poll(b_->cq());
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(received[0].status, IBV_WC_SUCCESS);
}

// With room for none, what arrives may go to the CQ's own queue.
TEST_F(InProcessTest, APollForNoCompletionsTakesNoEventAway) {
  VERBENA_SKIP_OVER_TCP("the engine takes what arrives");
  MakeConnected({}, {.with_channel = true});
  ibv_wc none{};
  for (ibv_wc* out : {static_cast<ibv_wc*>(nullptr), &none}) {
    ASSERT_EQ(b_->PostReceive(7, b_->ReceiveSge(0, 100)), 0);
    ASSERT_EQ(ibv_req_notify_cq(b_->cq(), 0), 0);
    ASSERT_EQ(a_->SendText(3, "hello"), 0);
    EXPECT_EQ(ibv_poll_cq(b_->cq(), 0, out), 0);
    Settle();
    EXPECT_TRUE(device_b_->GetCqEvent(b_->channel()).ok());
    device_b_->AckCqEvents(b_->cq(), 1);
    EXPECT_EQ(Poll(b_->cq()).size(), 1u);
    Poll(a_->cq());
  }
}

TEST_F(InProcessTest, TheFirstMessageTellsAQpThatIsReadyToReceive) {
  Make({}, {});
  ASSERT_TRUE(a_->ToInit(a_->qp()).ok());
  ASSERT_TRUE(b_->ToInit(b_->qp()).ok());
  ASSERT_TRUE(b_->ToRtr(b_->qp(), a_->gid(), a_->qp()->qp_num, a_->lid()).ok());
  ASSERT_TRUE(a_->ToRtr(a_->qp(), b_->gid(), b_->qp()->qp_num, b_->lid()).ok());
  ASSERT_TRUE(a_->ToRts(a_->qp()).ok());
  if (OverTcp()) Settle();
  for (uint64_t i = 0; i < 2; ++i) {
    ASSERT_EQ(b_->PostReceive(i, b_->ReceiveSge(0, 100)), 0);
    ASSERT_EQ(a_->SendText(i, "hello"), 0);
    ASSERT_EQ(Poll(b_->cq()).size(), 1u);
  }
  EXPECT_THAT(AsyncEvents(*device_b_), ElementsAre(IBV_EVENT_COMM_EST));
  // One that was in RTS has nothing to learn.
  ASSERT_TRUE(b_->ToRts(b_->qp()).ok());
  ASSERT_EQ(a_->PostReceive(9, a_->ReceiveSge(0, 100)), 0);
  ASSERT_EQ(b_->SendText(9, "hello"), 0);
  ASSERT_FALSE(Poll(a_->cq()).empty());
  EXPECT_THAT(AsyncEvents(*device_a_), testing::IsEmpty());
}

TEST_F(InProcessTest, SendDoesNotCompleteBeforeTheTargetConsumedIt) {
  VERBENA_SKIP_OVER_TCP("the engine of the target consumes it");
  MakeConnected();
  ASSERT_EQ(b_->PostReceive(7, b_->ReceiveSge(0, 100)), 0);
  ASSERT_EQ(a_->SendText(3, "hello"), 0);
  EXPECT_TRUE(Poll(a_->cq()).empty());
  ASSERT_EQ(Poll(b_->cq()).size(), 1u);
  EXPECT_EQ(Poll(a_->cq()).size(), 1u);
}

TEST_F(InProcessTest, MessagesOfEverySizeUpToManyRingsArriveWhole) {
  QpEndOptions options{.bytes = 8 << 20};
  MakeConnected(options, options);
  for (uint32_t bytes :
       {0u, 1u, 47u, 48u, 49u, 112u, 113u, 4096u, 16383u, 16384u, 16385u, 100000u, 4u << 20}) {
    SCOPED_TRACE(bytes);
    for (uint32_t i = 0; i < bytes; ++i) a_->send_buffer()[i] = std::byte(i * 7 + bytes);
    ASSERT_EQ(b_->PostReceive(bytes, b_->ReceiveSge(0, 4 << 20)), 0);
    ASSERT_EQ(a_->PostSend(bytes, a_->SendSge(0, bytes)), 0);
    std::vector<ibv_wc> received;
    std::vector<ibv_wc> sent;
    // A message larger than the ring needs both sides to go on.
    for (int turn = 0; turn < 1000 && (received.empty() || sent.empty()); ++turn) {
      if (received.empty()) received = Poll(b_->cq());
      if (sent.empty()) sent = Poll(a_->cq());
    }
    ASSERT_EQ(received.size(), 1u);
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_EQ(received[0].byte_len, bytes);
    EXPECT_EQ(std::memcmp(a_->send_buffer(), b_->receive_buffer(), bytes), 0);
  }
}

TEST_F(InProcessTest, RingWrapsManyTimesWithoutLosingOrReorderingMessages) {
  MakeConnected();
  uint32_t next = 0;
  uint32_t expected = 0;
  for (int turn = 0; turn < 4000; ++turn) {
    for (uint32_t i = 0; i < 8; ++i) {
      const uint32_t bytes = 4 + (next * 37) % 500;
      ASSERT_EQ(b_->PostReceive(next, b_->ReceiveSge(i * 512, 512)), 0);
      std::memcpy(a_->send_buffer(), &next, 4);
      ASSERT_EQ(a_->PostSend(next, a_->SendSge(0, bytes)), 0);
      ++next;
    }
    for (const ibv_wc& wc : Poll(b_->cq())) {
      ASSERT_EQ(wc.wr_id, expected);
      ASSERT_EQ(wc.byte_len, 4 + (expected * 37) % 500);
      uint32_t value;
      std::memcpy(&value, b_->receive_buffer() + (expected % 8) * 512, 4);
      ASSERT_EQ(value, expected);
      ++expected;
    }
    ASSERT_EQ(Poll(a_->cq()).size(), 8u);
  }
  EXPECT_EQ(expected, next);
}

TEST_F(InProcessTest, ScatterAndGatherFollowEverySge) {
  MakeConnected();
  const std::string text = "abcdefghijklmnopqrstuvwxyz";
  std::memcpy(a_->send_buffer(), text.data(), text.size());
  ibv_sge from[3] = {a_->SendSge(20, 6), a_->SendSge(0, 0), a_->SendSge(0, 20)};
  ibv_sge to[4] = {b_->ReceiveSge(0, 1), b_->ReceiveSge(100, 0), b_->ReceiveSge(200, 10),
                   b_->ReceiveSge(300, 100)};
  ibv_recv_wr receive{.wr_id = 1, .next = nullptr, .sg_list = to, .num_sge = 4};
  ibv_recv_wr* bad_receive = nullptr;
  ASSERT_EQ(ibv_post_recv(b_->qp(), &receive, &bad_receive), 0);
  ibv_send_wr send{};
  send.sg_list = from;
  send.num_sge = 3;
  send.opcode = IBV_WR_SEND_WITH_IMM;
  send.imm_data = 0x12345678;
  ibv_send_wr* bad_send = nullptr;
  ASSERT_EQ(ibv_post_send(a_->qp(), &send, &bad_send), 0);
  auto received = Poll(b_->cq());
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(received[0].wc_flags, static_cast<unsigned>(IBV_WC_WITH_IMM));
  EXPECT_EQ(received[0].imm_data, 0x12345678u);
  EXPECT_EQ(b_->ReceivedText(0, 1) + b_->ReceivedText(200, 10) + b_->ReceivedText(300, 15),
            "uvwxyzabcdefghijklmnopqrst");
}

TEST_F(InProcessTest, InlineDataMayBeOverwrittenAsSoonAsItIsPosted) {
  MakeConnected();
  ASSERT_EQ(b_->PostReceive(0, b_->ReceiveSge(0, 100)), 0);
  char text[] = "first";
  ibv_sge sge{.addr = reinterpret_cast<uint64_t>(text), .length = 5, .lkey = 0};
  ASSERT_EQ(a_->PostSend(1, sge, IBV_SEND_INLINE), 0);
  std::memset(text, 'X', 5);
  ASSERT_EQ(Poll(b_->cq()).size(), 1u);
  EXPECT_EQ(b_->ReceivedText(0, 5), "first");
}

TEST_F(InProcessTest, UnsignalledSendsMakeNoCompletionAndOnlyASignalledOneFreesTheirSlots) {
  MakeConnected({.send_wr = 4});
  for (uint64_t i = 0; i < 8; ++i) ASSERT_EQ(b_->PostReceive(i, b_->ReceiveSge(0, 100)), 0);
  for (uint64_t i = 0; i < 3; ++i) ASSERT_EQ(a_->SendText(i, "x", 0), 0);
  EXPECT_EQ(Poll(b_->cq()).size(), 3u);
  EXPECT_TRUE(Poll(a_->cq()).empty());
  ASSERT_EQ(a_->SendText(3, "x"), 0);
  EXPECT_EQ(a_->SendText(4, "x"), ENOMEM);
  EXPECT_EQ(Poll(b_->cq()).size(), 1u);
  // Executed, but nobody has polled the completion that frees the slots.
  EXPECT_EQ(a_->SendText(4, "x"), ENOMEM);
  auto sent = Poll(a_->cq());
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].wr_id, 3u);
  for (uint64_t i = 4; i < 8; ++i) EXPECT_EQ(a_->SendText(i, "x", 0), 0);
  EXPECT_EQ(a_->SendText(8, "x", 0), ENOMEM);
}

TEST_F(InProcessTest, PostingReportsTheBadRequestAndKeepsTheOnesBeforeIt) {
  MakeConnected();
  ASSERT_EQ(b_->PostReceive(0, b_->ReceiveSge(0, 100)), 0);
  ibv_sge good = a_->SendSge(0, 4);
  ibv_sge many[5] = {good, good, good, good, good};
  ibv_send_wr second{};
  second.sg_list = many;
  second.num_sge = 5;
  second.opcode = IBV_WR_SEND;
  ibv_send_wr first{};
  first.next = &second;
  first.sg_list = &good;
  first.num_sge = 1;
  first.opcode = IBV_WR_SEND;
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_send(a_->qp(), &first, &bad), EINVAL);
  EXPECT_EQ(bad, &second);
  EXPECT_EQ(Poll(b_->cq()).size(), 1u);
  EXPECT_EQ(a_->PostSend(0, a_->SendSge(0, 257), IBV_SEND_INLINE), EINVAL);
}

TEST_F(InProcessTest, SendWithoutReceiveIsRetriedAfterTheTimerAndKeepsItsOrderAndInlineData) {
  MakeConnected({.rnr_retry = 7}, {.min_rnr_timer = 14});  // 1.28 ms
  for (char c = 'a'; c <= 'c'; ++c) {
    ibv_sge sge{.addr = reinterpret_cast<uint64_t>(&c), .length = 1, .lkey = 0};
    ASSERT_EQ(a_->PostSend(c, sge, IBV_SEND_INLINE | IBV_SEND_SIGNALED), 0);
  }
  EXPECT_TRUE(Poll(b_->cq()).empty());
  EXPECT_TRUE(Poll(a_->cq()).empty());
  for (uint64_t i = 0; i < 3; ++i) ASSERT_EQ(b_->PostReceive(i, b_->ReceiveSge(i, 1)), 0);
  Settle();
  EXPECT_TRUE(Poll(b_->cq()).empty()) << "retried before the timer";
  clock_.Advance(std::chrono::microseconds(1280));
  Settle();
  auto received = Poll(b_->cq());
  ASSERT_EQ(received.size(), 3u);
  EXPECT_EQ(b_->ReceivedText(0, 3), "abc");
  Settle();
  EXPECT_EQ(Poll(a_->cq()).size(), 3u);
}

TEST_F(InProcessTest, RnrRetriesRunOutAndThenTheQueuePairFails) {
  MakeConnected({.rnr_retry = 2}, {.min_rnr_timer = 1});
  ASSERT_EQ(a_->SendText(1, "x", 0), 0);
  ASSERT_EQ(a_->SendText(2, "y", 0), 0);
  std::vector<ibv_wc> sent;
  int attempts = 0;
  for (; attempts < 10 && sent.empty(); ++attempts) {
    Poll(b_->cq());
    sent = Poll(a_->cq());
    clock_.Advance(std::chrono::microseconds(10));
    Settle();
  }
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(attempts, 3) << "the first attempt and two retries";
  EXPECT_EQ(sent[0].status, IBV_WC_RNR_RETRY_EXC_ERR);
  EXPECT_EQ(sent[0].wr_id, 1u);
  EXPECT_EQ(sent[1].status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(a_->device().QueryQp(a_->qp(), IBV_QP_STATE)->qp_state, IBV_QPS_ERR);
}

TEST_F(InProcessTest, QueuePairWithoutReceivesDoesNotHoldUpAnotherOnTheSameCqs) {
  MakeConnected();
  QpHandle other_a = a_->AddQp();
  QpHandle other_b = b_->AddQp();
  ConnectQps(*a_, other_a.get(), *b_, other_b.get());
  ASSERT_EQ(a_->SendText(1, "blocked"), 0);
  ibv_sge sge = b_->ReceiveSge(0, 100);
  ibv_recv_wr wr{.wr_id = 2, .next = nullptr, .sg_list = &sge, .num_sge = 1};
  ibv_recv_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_recv(other_b.get(), &wr, &bad), 0);
  ASSERT_EQ(a_->PostSend(2, a_->SendSge(0, 3), IBV_SEND_SIGNALED, other_a.get()), 0);
  auto received = Poll(b_->cq());
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(received[0].qp_num, other_b->qp_num);
  auto sent = Poll(a_->cq());
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].wr_id, 2u);
}

// Two queue pairs to one completion queue share a ring, which is full as long as nobody polls
// there.
class FullRingTest : public InProcessTest {
 protected:
  static constexpr uint32_t kLarge = 16 << 10;
  static constexpr uint32_t kMedium = 1 << 10;
  static constexpr uint32_t kSmall = 64;
  static constexpr size_t kLargeInRing = 15;

  void Begin() {
    const QpEndOptions options{
        .cqe = 2048, .send_wr = 512, .receive_wr = 1024, .shared_receives = true};
    MakeConnected(options, options);
    other_a_ = a_->AddQp();
    other_b_ = b_->AddQp();
    ConnectQps(*a_, other_a_.get(), *b_, other_b_.get());
    for (int i = 0; i < 1024; ++i) ASSERT_EQ(b_->PostReceive(i, b_->ReceiveSge(0, kLarge)), 0);
  }
  void Send(ibv_qp* qp, int count, uint32_t bytes) {
    for (int i = 0; i < count; ++i) {
      ASSERT_EQ(a_->PostSend(0, a_->SendSge(0, bytes), /*flags=*/0, qp), 0);
    }
  }
  // The queue pair that each message is for, in the order of their arrival: '0', or '1' for the
  // other.
  std::string Arrivals() {
    std::string order;
    while (true) {
      const auto received = Poll(b_->cq(), 1);
      if (received.empty()) return order;
      order += received[0].qp_num == b_->qp()->qp_num ? '0' : '1';
      (void)Poll(a_->cq());
    }
  }

  QpHandle other_a_;
  QpHandle other_b_;
};

TEST_F(FullRingTest, QueuePairsThatWaitGetRoomInTurn) {
  VERBENA_SKIP_OVER_TCP("the engine of the target frees room for several messages at once");
  Begin();
  Send(a_->qp(), 40, kLarge);
  Send(other_a_.get(), 8, kLarge);
  const std::string order = Arrivals();
  ASSERT_EQ(order.size(), 48u);
  EXPECT_EQ(order.substr(order.find('1'), 16), "1010101010101010");
}

TEST_F(FullRingTest, ASmallMessageDoesNotPassAQueuePairThatWaits) {
  Begin();
  // The ring has room for a small message then, and none for a large one.
  Send(a_->qp(), 40, kLarge);
  Send(other_a_.get(), 1, kSmall);
  const std::string order = Arrivals();
  ASSERT_EQ(order.size(), 41u);
  EXPECT_GT(order.find('1'), kLargeInRing);
}

TEST_F(FullRingTest, ALargeMessageIsNotPassedByAllThatAreSmaller) {
  Begin();
  Send(other_a_.get(), 500, kMedium);
  Send(a_->qp(), 1, kLarge);
  const std::string order = Arrivals();
  ASSERT_EQ(order.size(), 501u);
  EXPECT_LT(order.find('0'), 300u);
}

TEST_F(FullRingTest, AQueuePairThatWaitsForItsOwnSendHoldsUpNoOther) {
  VERBENA_SKIP_OVER_TCP("the initiator copies nothing");
  Begin();
  Send(a_->qp(), 1, kSmall);
  // A WRITE is a copy that the initiator makes once the SEND before it is consumed.
  ASSERT_EQ(a_->PostOneSided(IBV_WR_RDMA_WRITE, 1, a_->SendSge(0, kLarge),
                             reinterpret_cast<uint64_t>(b_->receive_buffer()), b_->mr()->rkey),
            0);
  Send(other_a_.get(), 1, kSmall);
  EXPECT_EQ(Poll(b_->cq()).size(), 2u);
}

TEST_F(InProcessTest, SendBeforeTheOtherSideIsReadyIsHeldAndArrives) {
  Make({}, {});
  ASSERT_TRUE(a_->ToInit(a_->qp()).ok());
  ASSERT_TRUE(b_->ToInit(b_->qp()).ok());
  ASSERT_EQ(b_->PostReceive(0, b_->ReceiveSge(0, 100)), 0);
  ASSERT_TRUE(a_->ToRtr(a_->qp(), b_->gid(), b_->qp()->qp_num, b_->lid()).ok());
  ASSERT_TRUE(a_->ToRts(a_->qp()).ok());
  ASSERT_EQ(a_->SendText(1, "early"), 0);
  ASSERT_EQ(a_->SendText(2, "early"), 0);
  EXPECT_TRUE(Poll(b_->cq()).empty());
  EXPECT_TRUE(Poll(a_->cq()).empty());
  ASSERT_TRUE(b_->ToRtr(b_->qp(), a_->gid(), a_->qp()->qp_num, a_->lid()).ok());
  clock_.Advance(std::chrono::milliseconds(2));
  Settle();
  ASSERT_EQ(Poll(b_->cq()).size(), 1u);
  EXPECT_EQ(b_->ReceivedText(0, 5), "early");
}

TEST_F(InProcessTest, LastWqeEventTellsThatAnSrqLosesNothingMoreToThisQueuePair) {
  MakeConnected({}, {.shared_receives = true});
  b_->ToState(IBV_QPS_ERR);
  EXPECT_THAT(AsyncEvents(*device_b_), ElementsAre(IBV_EVENT_QP_LAST_WQE_REACHED));
}

TEST_F(InProcessTest, AnSrqTakesItsNewestReceiveFirstWhereItsUserAskedForThat) {
  MakeConnected({}, {.shared_receives = true});
  device_b_->TakeNewestReceivesFirst(b_->srq());
  for (uint64_t i = 0; i < 3; ++i) ASSERT_EQ(b_->PostReceive(i, b_->ReceiveSge(100 * i, 100)), 0);
  for (uint64_t i = 0; i < 3; ++i) ASSERT_EQ(a_->SendText(i, "x"), 0);
  const auto received = Poll(b_->cq());
  ASSERT_EQ(received.size(), 3u);
  for (uint64_t i = 0; i < 3; ++i) EXPECT_EQ(received[i].wr_id, 2 - i);
}

TEST_F(InProcessTest, SrqLimitEventIsRaisedOnceAndRearmed) {
  MakeConnected({}, {.shared_receives = true});
  for (uint64_t i = 0; i < 4; ++i) ASSERT_EQ(b_->PostReceive(i, b_->ReceiveSge(0, 100)), 0);
  ASSERT_TRUE(
      device_b_->ModifySrq(b_->srq(), {.max_wr = 0, .max_sge = 0, .srq_limit = 3}, IBV_SRQ_LIMIT)
          .ok());
  ASSERT_EQ(a_->SendText(1, "x"), 0);
  Poll(b_->cq());
  EXPECT_THAT(AsyncEvents(*device_b_), ElementsAre());
  ASSERT_EQ(a_->SendText(1, "x"), 0);
  ASSERT_EQ(a_->SendText(1, "x"), 0);
  Poll(b_->cq());
  EXPECT_THAT(AsyncEvents(*device_b_), ElementsAre(IBV_EVENT_SRQ_LIMIT_REACHED));
}

TEST_F(InProcessTest, CompletionQueueThatOverrunsRaisesAnEventAndFailsItsQueuePair) {
  MakeConnected({}, {.cqe = 2});
  for (uint64_t i = 0; i < 3; ++i) ASSERT_EQ(b_->PostReceive(i, b_->ReceiveSge(0, 100)), 0);
  for (uint64_t i = 0; i < 3; ++i) ASSERT_EQ(a_->SendText(i, "x"), 0);
  Settle();
  EXPECT_THAT(AsyncEvents(*device_b_), testing::Contains(IBV_EVENT_CQ_ERR));
  EXPECT_EQ(device_b_->QueryQp(b_->qp(), IBV_QP_STATE)->qp_state, IBV_QPS_ERR);
  EXPECT_EQ(Poll(b_->cq()).size(), 2u);
}

TEST_F(InProcessTest, ArmedQueueRaisesOneEventForWhatComesAfterTheArming) {
  MakeConnected({}, {.with_channel = true});
  for (uint64_t i = 0; i < 4; ++i) ASSERT_EQ(b_->PostReceive(i, b_->ReceiveSge(0, 100)), 0);
  ASSERT_EQ(a_->SendText(1, "before"), 0);
  ASSERT_EQ(ibv_req_notify_cq(b_->cq(), 0), 0);
  Settle();
  EXPECT_FALSE(device_b_->GetCqEvent(b_->channel()).ok());
  EXPECT_EQ(Poll(b_->cq()).size(), 1u);
  ASSERT_EQ(a_->SendText(2, "after"), 0);
  ASSERT_EQ(a_->SendText(3, "after"), 0);
  Settle();
  auto event = device_b_->GetCqEvent(b_->channel());
  ASSERT_TRUE(event.ok());
  EXPECT_EQ(*event, b_->cq());
  EXPECT_EQ((*event)->cq_context, b_.get());
  EXPECT_FALSE(device_b_->GetCqEvent(b_->channel()).ok());
  device_b_->AckCqEvents(b_->cq(), 1);
  EXPECT_EQ(Poll(b_->cq()).size(), 2u);
}

// Over TCP whatever the test's wire is: over shared memory nobody watches descriptors.
class UnwatchedQueueTest : public InProcessTest {
 protected:
  UnwatchedQueueTest() { setenv("VERBENA_TEST_WIRE", "tcp4", /*overwrite=*/0); }
  ~UnwatchedQueueTest() override {
    if (!over_tcp_) unsetenv("VERBENA_TEST_WIRE");
  }

 private:
  const bool over_tcp_ = OverTcp();  // before the constructor's body
};

TEST_F(UnwatchedQueueTest, AnArmedQueueIsLookedAtNowAndThen) {
  MakeConnected({}, {.with_channel = true});
  for (uint64_t i = 0; i < 4; ++i) ASSERT_EQ(b_->PostReceive(i, b_->ReceiveSge(0, 100)), 0);
  // While somebody polls, the engine watches nothing.
  ibv_wc none;
  ASSERT_EQ(ibv_poll_cq(b_->cq(), 1, &none), 0);
  WithForbiddenCommand(SYS_epoll_ctl, EPOLL_CTL_ADD, ENOSPC, [this] {
    EXPECT_EQ(ibv_req_notify_cq(b_->cq(), 0), 0);
    ASSERT_EQ(a_->SendText(1, "unwatched"), 0);
    clock_.Advance(std::chrono::seconds(1));
    Settle();
  });
  if (IsSkipped()) return;
  EXPECT_TRUE(device_b_->GetCqEvent(b_->channel()).ok());
  device_b_->AckCqEvents(b_->cq(), 1);
  EXPECT_EQ(Poll(b_->cq()).size(), 1u);
}

TEST_F(InProcessTest, ArmingForSolicitedIgnoresPlainSends) {
  MakeConnected({}, {.with_channel = true});
  for (uint64_t i = 0; i < 4; ++i) ASSERT_EQ(b_->PostReceive(i, b_->ReceiveSge(0, 100)), 0);
  ASSERT_EQ(ibv_req_notify_cq(b_->cq(), 1), 0);
  ASSERT_EQ(a_->SendText(1, "plain"), 0);
  Settle();
  EXPECT_FALSE(device_b_->GetCqEvent(b_->channel()).ok());
  ASSERT_EQ(a_->SendText(2, "solicited", IBV_SEND_SOLICITED), 0);
  Settle();
  EXPECT_TRUE(device_b_->GetCqEvent(b_->channel()).ok());
  device_b_->AckCqEvents(b_->cq(), 1);
}

TEST_F(InProcessTest, ObjectsInUseCannotBeDestroyed) {
  MakeConnected({}, {.shared_receives = true, .with_channel = true});
  EXPECT_EQ(device_b_->DestroyCq(b_->cq()).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(device_b_->DestroySrq(b_->srq()).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(device_b_->DeallocPd(b_->pd()).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(device_b_->DestroyCompChannel(b_->channel()).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(InProcessTest, EveryPeerOfACrowdIsHeardHoweverFewAreWatchedClosely) {
  Make({}, {.cqe = 4096, .receive_wr = 1024, .shared_receives = true});
  // Each sender has a CQ of its own, and so a lane of its own to the one receiver.
  constexpr size_t kSenders = 40;
  std::vector<std::unique_ptr<QpEnd>> senders;
  std::vector<QpHandle> receivers;
  for (size_t i = 0; i < kSenders; ++i) {
    senders.push_back(std::make_unique<QpEnd>(*device_a_, QpEndOptions{.bytes = 4096}));
    receivers.push_back(b_->AddQp());
    ConnectQps(*senders[i], senders[i]->qp(), *b_, receivers[i].get());
  }
  std::vector<int> sent(kSenders);
  std::vector<int> received(kSenders);
  uint32_t random = 1;
  for (int round = 0; round < 400; ++round) {
    // A few talk at a time, and which ones changes slowly.
    for (int i = 0; i < 3; ++i) {
      random = random * 1664525 + 1013904223;
      const size_t from = (static_cast<size_t>(round) / 8 + (random >> 16) % 5) % kSenders;
      ASSERT_EQ(b_->PostReceive(0, b_->ReceiveSge(0, 64)), 0);
      ASSERT_EQ(senders[from]->PostSend(0, senders[from]->SendSge(0, 16)), 0);
      ++sent[from];
    }
    // With a short array too, which leaves some for the next poll.
    for (const ibv_wc& wc : Poll(b_->cq(), round % 2 == 0 ? 2 : 16)) {
      ++received[wc.src_qp - senders[0]->qp()->qp_num];
    }
    for (auto& sender : senders) Poll(sender->cq());
  }
  for (const ibv_wc& wc : Poll(b_->cq(), 4096)) {
    ++received[wc.src_qp - senders[0]->qp()->qp_num];
  }
  EXPECT_EQ(received, sent);
  receivers.clear();
}

// A poll with room for one completion reports all that a queue pair has sent, and lets others into
// the ring: more messages wait to be reported than the ring has lines.
TEST_F(InProcessTest, EachQueuePairOfACrowdCompletesForACallerWithAShortArray) {
  constexpr size_t kPairs = 12;
  constexpr uint32_t kEach = 1024;
  Make({.cqe = 16384, .send_wr = kEach},
       {.cqe = 16384, .receive_wr = 16384, .shared_receives = true});
  std::vector<QpHandle> senders;
  std::vector<QpHandle> receivers;
  for (size_t i = 0; i < kPairs; ++i) {
    senders.push_back(a_->AddQp());
    receivers.push_back(b_->AddQp());
    ConnectQps(*a_, senders[i].get(), *b_, receivers[i].get());
  }
  if (OverTcp()) Settle();
  for (size_t i = 0; i < kPairs * kEach; ++i) {
    ASSERT_EQ(b_->PostReceive(i, b_->ReceiveSge(0, 64)), 0);
  }
  for (const QpHandle& sender : senders) {
    for (uint32_t i = 0; i < kEach; ++i) {
      ibv_send_wr wr{};
      wr.opcode = IBV_WR_SEND;
      wr.send_flags = IBV_SEND_SIGNALED;
      ibv_send_wr* bad = nullptr;
      ASSERT_EQ(ibv_post_send(sender.get(), &wr, &bad), 0);
    }
  }
  size_t completed = 0;
  // No end by itself if messages are forgotten.
  for (size_t idle = 0; completed < kPairs * kEach && idle < 100'000;) {
    while (!Poll(b_->cq()).empty()) {
    }
    const std::vector<ibv_wc> done = Poll(a_->cq(), 1);
    for (const ibv_wc& wc : done) EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    completed += done.size();
    idle = done.empty() ? idle + 1 : 0;
  }
  EXPECT_EQ(completed, kPairs * kEach);
  senders.clear();
  receivers.clear();
}

TEST_F(InProcessTest, ATimerOfAFormerConnectionDoesNotHideTheOneThatCounts) {
  // 1.28 ms and 10 us.
  MakeConnected({.rnr_retry = 7}, {.min_rnr_timer = 14});
  ASSERT_EQ(a_->SendText(1, "former", 0), 0);
  EXPECT_TRUE(Poll(b_->cq()).empty());
  EXPECT_TRUE(Poll(a_->cq()).empty());
  a_->ToState(IBV_QPS_RESET);
  b_->ToState(IBV_QPS_RESET);
  b_->set_min_rnr_timer(1);
  Connect(*a_, *b_);
  if (OverTcp()) Settle();
  ASSERT_EQ(a_->SendText(2, "next", 0), 0);
  EXPECT_TRUE(Poll(b_->cq()).empty());
  EXPECT_TRUE(Poll(a_->cq()).empty());
  ASSERT_EQ(b_->PostReceive(3, b_->ReceiveSge(0, 100)), 0);
  // Both are due before anybody polls.
  clock_.Advance(std::chrono::milliseconds(2));
  Settle();
  std::vector<ibv_wc> received;
  for (int turn = 0; turn < 100 && received.empty(); ++turn) {
    Poll(a_->cq());
    received = Poll(b_->cq());
  }
  EXPECT_EQ(received.size(), 1u);
}

// The timer was due when the queue pair had failed, and nobody has taken note of it since.
TEST_F(InProcessTest, ATimerOfAFormerConnectionDoesNotEndAPauseOfTheNext) {
  MakeConnected({.rnr_retry = 7}, {.min_rnr_timer = 1});
  ASSERT_EQ(a_->SendText(1, "former", 0), 0);
  EXPECT_TRUE(Poll(b_->cq()).empty());
  EXPECT_TRUE(Poll(a_->cq()).empty());
  a_->ToState(IBV_QPS_ERR);
  clock_.Advance(std::chrono::milliseconds(1));
  Settle();
  Poll(a_->cq());
  a_->ToState(IBV_QPS_RESET);
  b_->ToState(IBV_QPS_RESET);
  b_->set_min_rnr_timer(14);  // 1.28 ms
  Connect(*a_, *b_);
  if (OverTcp()) Settle();
  ASSERT_EQ(a_->SendText(2, "next", 0), 0);
  EXPECT_TRUE(Poll(b_->cq()).empty());
  EXPECT_TRUE(Poll(a_->cq()).empty());
  ASSERT_EQ(b_->PostReceive(3, b_->ReceiveSge(0, 100)), 0);
  a_->ToState(IBV_QPS_SQD);  // asks for a turn
  Poll(a_->cq());
  EXPECT_TRUE(Poll(b_->cq()).empty()) << "sent again before its time";
  clock_.Advance(std::chrono::milliseconds(2));
  Settle();
  Poll(a_->cq());
  EXPECT_EQ(Poll(b_->cq()).size(), 1u);
}

TEST_F(InProcessTest, QueuePairNumbersAreNotReusedSoon) {
  Make({}, {});
  uint32_t last = a_->qp()->qp_num;
  for (int i = 0; i < 1000; ++i) {
    QpHandle qp = a_->AddQp();
    EXPECT_GT(qp->qp_num, last);
    last = qp->qp_num;
  }
}

TEST_F(InProcessTest, QueuePairThatWasResetConnectsAgain) {
  MakeConnected();
  ASSERT_EQ(b_->PostReceive(0, b_->ReceiveSge(0, 100)), 0);
  ASSERT_EQ(a_->SendText(1, "x"), 0);
  a_->ToState(IBV_QPS_ERR);
  a_->ToState(IBV_QPS_RESET);
  b_->ToState(IBV_QPS_RESET);
  EXPECT_TRUE(Poll(a_->cq()).empty());
  EXPECT_TRUE(Poll(b_->cq()).empty());
  Connect(*a_, *b_);
  ASSERT_EQ(b_->PostReceive(0, b_->ReceiveSge(0, 100)), 0);
  ASSERT_EQ(a_->SendText(2, "again"), 0);
  EXPECT_EQ(Poll(b_->cq()).size(), 1u);
  EXPECT_EQ(b_->ReceivedText(0, 5), "again");
  auto sent = Poll(a_->cq());
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].wr_id, 2u);
}

TEST_F(InProcessTest, QueuePairCanBeConnectedToItself) {
  Make({}, {});
  ASSERT_TRUE(a_->ToInit(a_->qp()).ok());
  ASSERT_TRUE(a_->ToRtr(a_->qp(), a_->gid(), a_->qp()->qp_num, a_->lid()).ok());
  ASSERT_TRUE(a_->ToRts(a_->qp()).ok());
  ASSERT_EQ(a_->PostReceive(0, a_->ReceiveSge(0, 100)), 0);
  ASSERT_EQ(a_->SendText(1, "self"), 0);
  auto received = Poll(a_->cq());
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(received[0].opcode, IBV_WC_RECV);
  EXPECT_EQ(a_->ReceivedText(0, 4), "self");
  auto sent = Poll(a_->cq());
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].opcode, IBV_WC_SEND);
}

}  // namespace in_process_test
}  // namespace verbena::internal::soft
