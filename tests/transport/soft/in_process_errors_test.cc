// Each failure between two QPs ends in the right status on both sides, and flushes what is behind
// it, in order. In one process, stepped by hand.

#include <sys/mman.h>

#include <array>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "tests/transport/soft/in_process_fixture.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/soft/user_memory.h"

namespace verbena::internal::soft {
namespace in_process_errors_test {

TEST_F(InProcessTest, OversizedSendFailsBothSidesWithTheirOwnStatus) {
  MakeConnected();
  ASSERT_EQ(b_->PostReceive(5, b_->ReceiveSge(0, 4)), 0);
  ASSERT_EQ(b_->PostReceive(6, b_->ReceiveSge(0, 4)), 0);
  ASSERT_EQ(a_->SendText(1, "too long"), 0);
  auto received = Poll(b_->cq());
  ASSERT_EQ(received.size(), 2u);
  EXPECT_EQ(received[0].status, IBV_WC_LOC_LEN_ERR);
  EXPECT_EQ(received[0].wr_id, 5u);
  EXPECT_EQ(received[1].status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(received[1].wr_id, 6u);
  auto sent = Poll(a_->cq());
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].status, IBV_WC_REM_INV_REQ_ERR);
}

TEST_F(InProcessTest, ReceiveIntoForeignMemoryFailsBothSides) {
  MakeConnected();
  ibv_sge sge = b_->ReceiveSge(0, 100);
  sge.lkey ^= 1;
  ASSERT_EQ(b_->PostReceive(5, sge), 0);
  ASSERT_EQ(a_->SendText(1, "hello"), 0);
  auto received = Poll(b_->cq());
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(received[0].status, IBV_WC_LOC_PROT_ERR);
  auto sent = Poll(a_->cq());
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].status, IBV_WC_REM_OP_ERR);
}

TEST_F(InProcessTest, SendFromForeignMemoryFailsAfterTheSendsBeforeIt) {
  VERBENA_SKIP_OVER_TCP("the engine of the target consumes the first one");
  MakeConnected();
  for (uint64_t i = 0; i < 2; ++i) ASSERT_EQ(b_->PostReceive(i, b_->ReceiveSge(0, 100)), 0);
  ASSERT_EQ(a_->SendText(1, "good", 0), 0);
  ibv_sge sge = a_->SendSge(0, 4);
  sge.addr += a_->options().bytes;
  ASSERT_EQ(a_->PostSend(2, sge, 0), 0);
  ASSERT_EQ(a_->SendText(3, "late", 0), 0);
  EXPECT_TRUE(Poll(a_->cq()).empty());
  EXPECT_EQ(Poll(b_->cq()).size(), 1u);
  EXPECT_TRUE(Poll(b_->cq()).empty());
  auto sent = Poll(a_->cq());
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].wr_id, 2u);
  EXPECT_EQ(sent[0].status, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(sent[1].wr_id, 3u);
  EXPECT_EQ(sent[1].status, IBV_WC_WR_FLUSH_ERR);
}

TEST_F(InProcessTest, MemoryOfAnotherDomainIsRefused) {
  MakeConnected();
  QpEnd stranger(*device_a_, {});
  ibv_sge sge = stranger.SendSge(0, 4);
  ASSERT_EQ(a_->PostSend(1, sge), 0);
  auto sent = Poll(a_->cq());
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].status, IBV_WC_LOC_PROT_ERR);
}

// The first part of the data finds no memory. The target goes on with the others, which are there
// when the queue pairs are connected anew, with the same PSNs.
TEST_F(InProcessTest, AReadThatCannotBeStoredLeavesNoDataToTheNextConnection) {
  VERBENA_SKIP_OVER_TCP("the connection ends instead");
  GuardUserMemory();
  direct_copies_ = false;
  constexpr uint32_t kBytes = 1 << 20;  // several times the ring
  MakeConnected({.bytes = 2 * kBytes}, {.bytes = 2 * kBytes});
  void* const memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  MrHandle region(*device_a_,
                  device_a_->RegMr(a_->pd(), memory, kBytes, IBV_ACCESS_LOCAL_WRITE).value());
  ASSERT_EQ(mprotect(memory, kBytes, PROT_NONE), 0);
  const auto read = [&](uint64_t wr_id, const ibv_sge& into) {
    return a_->PostOneSided(IBV_WR_RDMA_READ, wr_id, into,
                            reinterpret_cast<uint64_t>(b_->receive_buffer()), b_->mr()->rkey);
  };
  std::memset(b_->receive_buffer(), 'o', kBytes);
  ASSERT_EQ(
      read(1, {.addr = reinterpret_cast<uint64_t>(memory), .length = kBytes, .lkey = region->lkey}),
      0);
  Poll(b_->cq());
  std::vector<ibv_wc> done = Poll(a_->cq());
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, IBV_WC_LOC_PROT_ERR);
  Poll(b_->cq());
  a_->ToState(IBV_QPS_RESET);
  b_->ToState(IBV_QPS_RESET);
  std::memset(b_->receive_buffer(), 'n', kBytes);
  Connect(*a_, *b_);
  ASSERT_EQ(read(2, a_->ReceiveSge(0, kBytes)), 0);
  done.clear();
  for (int turn = 0; turn < 1000 && done.empty(); ++turn) {
    Poll(b_->cq());
    done = Poll(a_->cq());
  }
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].wr_id, 2u);
  EXPECT_EQ(done[0].status, IBV_WC_SUCCESS);
  EXPECT_EQ(std::memcmp(a_->receive_buffer(), b_->receive_buffer(), kBytes), 0);
  region.Reset();
  munmap(memory, kBytes);
}

// The half that receives has failed the queue pair, and the other half has not heard of it.
TEST_F(InProcessTest, AReadThatIsRefusedBeforeItIsFlushedTakesNoDataFromTheNextConnection) {
  VERBENA_SKIP_OVER_TCP("a poll flushes the queue pair before it takes the refusal");
  direct_copies_ = false;
  MakeConnected({.separate_cqs = true});
  const auto read = [&](uint64_t wr_id) {
    return a_->PostOneSided(IBV_WR_RDMA_READ, wr_id, a_->ReceiveSge(0, 100),
                            reinterpret_cast<uint64_t>(b_->receive_buffer()), b_->mr()->rkey);
  };
  ASSERT_EQ(a_->PostReceive(1, a_->ReceiveSge(0, 1)), 0);
  ASSERT_EQ(b_->SendText(2, "too long"), 0);
  ASSERT_EQ(read(3), 0);
  b_->ToState(IBV_QPS_ERR);
  Poll(b_->cq());
  std::vector<ibv_wc> done = Poll(a_->cq());
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, IBV_WC_LOC_LEN_ERR);
  a_->ToState(IBV_QPS_ERR);
  a_->ToState(IBV_QPS_RESET);
  b_->ToState(IBV_QPS_RESET);
  Connect(*a_, *b_);
  ASSERT_EQ(read(4), 0);
  Poll(b_->cq());
  done = Poll(a_->send_cq());
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].wr_id, 4u);
  EXPECT_EQ(done[0].status, IBV_WC_SUCCESS);
}

TEST_F(InProcessTest, ASendThatIsRefusedBeforeItIsFlushedDoesNotSucceed) {
  VERBENA_SKIP_OVER_TCP("a poll flushes the queue pair before it takes the refusal");
  MakeConnected({.separate_cqs = true});
  ASSERT_EQ(a_->PostReceive(1, a_->ReceiveSge(0, 1)), 0);
  ASSERT_EQ(b_->SendText(2, "too long"), 0);
  ASSERT_EQ(a_->SendText(3, "x"), 0);
  b_->ToState(IBV_QPS_ERR);
  Poll(b_->cq());
  std::vector<ibv_wc> done = Poll(a_->cq());
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, IBV_WC_LOC_LEN_ERR);
  a_->ToState(IBV_QPS_ERR);
  done = Poll(a_->send_cq());
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].wr_id, 3u);
  EXPECT_EQ(done[0].status, IBV_WC_WR_FLUSH_ERR);
}

TEST_F(InProcessTest, ErrorStateFlushesBothQueuesInOrder) {
  MakeConnected();
  for (uint64_t i = 10; i < 13; ++i) ASSERT_EQ(a_->PostReceive(i, a_->ReceiveSge(0, 100)), 0);
  ASSERT_EQ(a_->SendText(1, "x", 0), 0);
  ASSERT_EQ(a_->SendText(2, "x", 0), 0);
  a_->ToState(IBV_QPS_ERR);
  auto flushed = Poll(a_->cq());
  ASSERT_EQ(flushed.size(), 5u);
  for (const ibv_wc& wc : flushed) EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(flushed[0].wr_id, 1u);
  EXPECT_EQ(flushed[1].wr_id, 2u);
  EXPECT_EQ(flushed[2].wr_id, 10u);
  EXPECT_EQ(a_->SendText(3, "x", 0), 0);
  EXPECT_EQ(a_->PostReceive(13, a_->ReceiveSge(0, 100)), 0);
  EXPECT_EQ(Poll(a_->cq()).size(), 2u);
}

TEST_F(InProcessTest, PeerInErrorStateEndsSendsWithRetryExceeded) {
  MakeConnected();
  b_->ToState(IBV_QPS_ERR);
  ASSERT_EQ(a_->SendText(1, "x"), 0);
  Poll(b_->cq());
  auto sent = Poll(a_->cq());
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].status, IBV_WC_RETRY_EXC_ERR);
}

TEST_F(InProcessTest, PeerWhoseQueuesAreGoneEndsSendsWithRetryExceeded) {
  MakeConnected();
  b_.reset();
  ASSERT_EQ(a_->SendText(1, "x"), 0);
  auto sent = Poll(a_->cq());
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].status, IBV_WC_RETRY_EXC_ERR);
}

TEST_F(InProcessTest, ASendThatWasReceivedSucceedsThoughItsTargetEnds) {
  MakeConnected();
  ASSERT_EQ(b_->PostReceive(5, b_->ReceiveSge(0, 64)), 0);
  ASSERT_EQ(a_->SendText(1, "the last one"), 0);
  const auto received = Poll(b_->cq());
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(received[0].status, IBV_WC_SUCCESS);
  b_.reset();
  device_b_.reset();
  std::array<ibv_wc, 2> sent{};
  int count = 0;
  for (int i = 0; i < 100 && count == 0; ++i) {
    device_a_->Step();
    count = ibv_poll_cq(a_->cq(), 2, sent.data());
  }
  ASSERT_EQ(count, 1);
  EXPECT_EQ(sent[0].wr_id, 1u);
  EXPECT_EQ(sent[0].status, IBV_WC_SUCCESS);
}

TEST_F(InProcessTest, WrThatFailsHereBehindOneThatIsDoneIsReportedOnce) {
  MakeConnected();
  ASSERT_EQ(a_->PostOneSided(IBV_WR_RDMA_WRITE, 1, a_->SendSge(0, 100),
                             reinterpret_cast<uint64_t>(b_->receive_buffer()), b_->mr()->rkey),
            0);
  ibv_sge bad = a_->SendSge(0, 8);
  bad.lkey ^= 0x100;
  ASSERT_EQ(a_->PostSend(2, bad), 0);
  const auto ended = Poll(a_->cq());
  ASSERT_EQ(ended.size(), 2u);
  EXPECT_EQ(ended[0].status, IBV_WC_SUCCESS);
  EXPECT_EQ(ended[1].wr_id, 2u);
  EXPECT_EQ(ended[1].status, IBV_WC_LOC_PROT_ERR);
  EXPECT_TRUE(Poll(a_->cq()).empty());
}

}  // namespace in_process_errors_test
}  // namespace verbena::internal::soft
