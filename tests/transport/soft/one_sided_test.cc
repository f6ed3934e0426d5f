// One-sided operations move exactly their bytes, keep their order behind SENDs, and touch nothing
// that they may not. Two QPs in one process, whose devices are stepped by hand.

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/transport/soft/in_process_fixture.h"
#include "verbena/transport/soft/completions.h"
#include "verbena/transport/soft/user_memory.h"

namespace verbena::internal::soft {
namespace one_sided_test {

using testing::ElementsAre;

// The initiator executes a one-sided operation if it can reach the memory; otherwise the target
// does. Both ways must look the same.
class OneSidedTest : public InProcessTest, public testing::WithParamInterface<bool> {
 protected:
  OneSidedTest() { direct_copies_ = GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(Ways, OneSidedTest, testing::Bool(), [](const auto& info) {
  return info.param ? "ByTheInitiator" : "ByTheTarget";
});

TEST_P(OneSidedTest, WriteDoesNotOvertakeASendThatWaitsForAReceive) {
  // A small WRITE and one that is worth waiting for take different ways.
  for (uint32_t bytes : {8u, 20'000u}) {
    SCOPED_TRACE(bytes);
    MakeConnected({}, {.min_rnr_timer = 1});
    std::memset(a_->send_buffer() + 512, 'w', bytes);
    ASSERT_EQ(a_->SendText(1, "send"), 0);
    ASSERT_EQ(
        a_->PostOneSided(IBV_WR_RDMA_WRITE, 2, a_->SendSge(512, bytes),
                         reinterpret_cast<uint64_t>(b_->receive_buffer() + 1000), b_->mr()->rkey),
        0);
    Poll(b_->cq());
    Poll(a_->cq());
    Settle();
    EXPECT_EQ(b_->ReceivedText(1000, bytes), std::string(bytes, '\0'));
    ASSERT_EQ(b_->PostReceive(0, b_->ReceiveSge(0, 100)), 0);
    clock_.Advance(std::chrono::microseconds(10));
    std::vector<ibv_wc> sent;
    std::vector<ibv_wc> received;
    for (int turn = 0; turn < 10; ++turn) {
      Settle();
      for (const ibv_wc& wc : Poll(b_->cq())) received.push_back(wc);
      for (const ibv_wc& wc : Poll(a_->cq())) sent.push_back(wc);
    }
    ASSERT_EQ(received.size(), 1u);
    EXPECT_EQ(b_->ReceivedText(1000, bytes), std::string(bytes, 'w'));
    ASSERT_EQ(sent.size(), 2u);
    EXPECT_EQ(sent[0].wr_id, 1u);
    EXPECT_EQ(sent[1].wr_id, 2u);
  }
}

TEST_P(OneSidedTest, WriteWithImmediateThatFindsNoReceiveIsRetriedAndArrivesOnce) {
  MakeConnected({}, {.min_rnr_timer = 1});
  std::memcpy(a_->send_buffer(), "written", 7);
  ibv_sge sge = a_->SendSge(0, 7);
  ibv_send_wr wr{};
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  wr.imm_data = 77;
  wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
  wr.wr.rdma.remote_addr = reinterpret_cast<uint64_t>(b_->receive_buffer() + 1000);
  wr.wr.rdma.rkey = b_->mr()->rkey;
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(a_->qp(), &wr, &bad), 0);
  std::memcpy(a_->send_buffer(), "XXXXXXX", 7);
  EXPECT_TRUE(Poll(b_->cq()).empty());
  EXPECT_TRUE(Poll(a_->cq()).empty());
  ASSERT_EQ(b_->PostReceive(5, b_->ReceiveSge(0, 100)), 0);
  clock_.Advance(std::chrono::microseconds(10));
  Settle();
  auto received = Poll(b_->cq());
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(received[0].opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(received[0].wr_id, 5u);
  EXPECT_EQ(received[0].byte_len, 7u);
  EXPECT_EQ(received[0].imm_data, 77u);
  EXPECT_EQ(b_->ReceivedText(1000, 7), "written");
  Settle();
  EXPECT_EQ(Poll(a_->cq()).size(), 1u);
}

TEST_P(OneSidedTest, OperationsOnAQueuePairThatLeftServiceTouchNothing) {
  MakeConnected();
  std::memcpy(a_->send_buffer(), "written", 7);
  EXPECT_FALSE(device_b_->Quiesced(device_b_->IdentityOf(b_->qp())));
  b_->ToState(IBV_QPS_ERR);
  EXPECT_TRUE(device_b_->Quiesced(device_b_->IdentityOf(b_->qp())));
  ASSERT_EQ(a_->PostOneSided(IBV_WR_RDMA_WRITE, 1, a_->SendSge(0, 7),
                             reinterpret_cast<uint64_t>(b_->receive_buffer()), b_->mr()->rkey),
            0);
  Poll(b_->cq());
  auto sent = Poll(a_->cq());
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].status, IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(b_->ReceivedText(0, 7), std::string(7, '\0'));
}

TEST_P(OneSidedTest, RegistrationThatWasWithdrawnIsRefused) {
  MakeConnected();
  const uint32_t rkey = b_->mr()->rkey;
  b_->mr_handle().Reset();
  ASSERT_EQ(a_->PostOneSided(IBV_WR_RDMA_READ, 1, a_->ReceiveSge(0, 7),
                             reinterpret_cast<uint64_t>(b_->receive_buffer()), rkey),
            0);
  Poll(b_->cq());
  auto sent = Poll(a_->cq());
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].status, IBV_WC_REM_ACCESS_ERR);
}

TEST_P(OneSidedTest, QueuePairThatAllowsItsPeerNoWritesRefusesThem) {
  const int reads_only = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
  MakeConnected({}, {.access = reads_only});
  MrHandle mr(*device_b_, device_b_
                              ->RegMr(b_->pd(), b_->receive_buffer(), 4096,
                                      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)
                              .value());
  ASSERT_EQ(a_->PostOneSided(IBV_WR_RDMA_WRITE, 1, a_->SendSge(0, 7),
                             reinterpret_cast<uint64_t>(b_->receive_buffer()), mr->rkey),
            0);
  Poll(b_->cq());
  auto sent = Poll(a_->cq());
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].status, IBV_WC_REM_ACCESS_ERR);
}

TEST_P(OneSidedTest, RightThatWasTakenFromAQueuePairInServiceIsRefused) {
  MakeConnected();
  ibv_qp_attr reads{};
  reads.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
  ASSERT_TRUE(device_b_->ModifyQp(b_->qp(), reads, IBV_QP_ACCESS_FLAGS).ok());
  const uint64_t remote = reinterpret_cast<uint64_t>(b_->receive_buffer());
  std::vector<ibv_wc> sent;
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE}) {
    ASSERT_EQ(a_->PostOneSided(opcode, 1, a_->SendSge(0, 7), remote, b_->mr()->rkey), 0);
    Poll(b_->cq());
    for (const ibv_wc& wc : Poll(a_->cq())) sent.push_back(wc);
  }
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].status, IBV_WC_SUCCESS);
  EXPECT_EQ(sent[1].status, IBV_WC_REM_ACCESS_ERR);
}

TEST_P(OneSidedTest, FencedSendWaitsForTheReadBeforeIt) {
  MakeConnected();
  ASSERT_EQ(b_->PostReceive(0, b_->ReceiveSge(0, 100)), 0);
  ASSERT_EQ(a_->PostOneSided(IBV_WR_RDMA_READ, 1, a_->ReceiveSge(0, 8),
                             reinterpret_cast<uint64_t>(b_->receive_buffer()), b_->mr()->rkey),
            0);
  ASSERT_EQ(a_->PostSend(2, a_->SendSge(0, 8), IBV_SEND_SIGNALED | IBV_SEND_FENCE), 0);
  std::vector<ibv_wc> sent;
  for (int turn = 0; turn < 10; ++turn) {
    Settle();
    for (const ibv_wc& wc : Poll(a_->cq())) sent.push_back(wc);
  }
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].opcode, IBV_WC_RDMA_READ);
  EXPECT_EQ(sent[1].opcode, IBV_WC_SEND);
  EXPECT_EQ(Poll(b_->cq()).size(), 1u);
}

TEST_P(OneSidedTest, OneSidedOperationsMoveTheBytesAndNobodyElseNotices) {
  QpEndOptions options{.bytes = 2 << 20};
  MakeConnected(options, options);
  const uint32_t bytes = 1 << 20;
  for (uint32_t i = 0; i < bytes; ++i) a_->send_buffer()[i] = std::byte(i * 13);
  const uint64_t remote = reinterpret_cast<uint64_t>(b_->receive_buffer());
  ASSERT_EQ(a_->PostOneSided(IBV_WR_RDMA_WRITE, 1, a_->SendSge(0, bytes), remote, b_->mr()->rkey),
            0);
  ASSERT_EQ(a_->PostOneSided(IBV_WR_RDMA_READ, 2, a_->ReceiveSge(0, bytes), remote, b_->mr()->rkey),
            0);
  std::vector<ibv_wc> done;
  for (int turn = 0; turn < 1000 && done.size() < 2; ++turn) {
    EXPECT_TRUE(Poll(b_->cq()).empty());
    for (const ibv_wc& wc : Poll(a_->cq())) done.push_back(wc);
  }
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].opcode, IBV_WC_RDMA_WRITE);
  EXPECT_EQ(done[1].opcode, IBV_WC_RDMA_READ);
  EXPECT_EQ(done[1].status, IBV_WC_SUCCESS);
  EXPECT_EQ(std::memcmp(a_->send_buffer(), b_->receive_buffer(), bytes), 0);
  EXPECT_EQ(std::memcmp(a_->send_buffer(), a_->receive_buffer(), bytes), 0);
}

TEST_P(OneSidedTest, AtomicsReturnTheOldValueAndChangeTheNew) {
  MakeConnected();
  auto* counter = reinterpret_cast<uint64_t*>(b_->receive_buffer());
  *counter = 40;
  ibv_sge result = a_->ReceiveSge(0, 8);
  ibv_send_wr wr{};
  wr.sg_list = &result;
  wr.num_sge = 1;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
  wr.wr.atomic = {.remote_addr = reinterpret_cast<uint64_t>(counter),
                  .compare_add = 2,
                  .swap = 0,
                  .rkey = b_->mr()->rkey};
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(a_->qp(), &wr, &bad), 0);
  Poll(b_->cq());
  ASSERT_EQ(Poll(a_->cq()).size(), 1u);
  EXPECT_EQ(*counter, 42u);
  EXPECT_EQ(*reinterpret_cast<uint64_t*>(a_->receive_buffer()), 40u);
  wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
  wr.wr.atomic.compare_add = 42;
  wr.wr.atomic.swap = 7;
  ASSERT_EQ(ibv_post_send(a_->qp(), &wr, &bad), 0);
  Poll(b_->cq());
  ASSERT_EQ(Poll(a_->cq()).size(), 1u);
  EXPECT_EQ(*counter, 7u);
  EXPECT_EQ(*reinterpret_cast<uint64_t*>(a_->receive_buffer()), 42u);
}

TEST_P(OneSidedTest, WriteOutsideTheRegistrationFailsTheInitiatorAndRaisesAnEventAtTheTarget) {
  MakeConnected();
  const uint64_t past_end = reinterpret_cast<uint64_t>(b_->mr()->addr) + b_->mr()->length - 4;
  ASSERT_EQ(a_->PostOneSided(IBV_WR_RDMA_WRITE, 1, a_->SendSge(0, 8), past_end, b_->mr()->rkey), 0);
  Poll(b_->cq());
  auto sent = Poll(a_->cq());
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_THAT(AsyncEvents(*device_b_), ElementsAre(IBV_EVENT_QP_ACCESS_ERR));
}

// Nobody has taken the answer, or its first part, when the queue pairs are connected anew, with the
// same PSNs.
TEST_P(OneSidedTest, AnAnswerToAFormerConnectionEndsNoReadOfTheNext) {
  for (uint32_t bytes : {8u, 1u << 20}) {
    SCOPED_TRACE(bytes);
    MakeConnected({.bytes = 2 << 20}, {.bytes = 2 << 20});
    const auto read = [&](uint64_t wr_id) {
      return a_->PostOneSided(IBV_WR_RDMA_READ, wr_id, a_->ReceiveSge(0, bytes),
                              reinterpret_cast<uint64_t>(b_->receive_buffer()), b_->mr()->rkey);
    };
    std::memset(b_->receive_buffer(), 'o', bytes);
    ASSERT_EQ(read(1), 0);
    Poll(b_->cq());
    a_->ToState(IBV_QPS_RESET);
    b_->ToState(IBV_QPS_RESET);
    std::memset(b_->receive_buffer(), 'n', bytes);
    Connect(*a_, *b_);
    if (OverTcp()) Settle();
    ASSERT_EQ(read(2), 0);
    std::vector<ibv_wc> done;
    for (int turn = 0; turn < 1000 && done.empty(); ++turn) {
      Poll(b_->cq());
      done = Poll(a_->cq());
    }
    ASSERT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].wr_id, 2u);
    EXPECT_EQ(done[0].status, IBV_WC_SUCCESS);
    EXPECT_EQ(std::memcmp(a_->receive_buffer(), b_->receive_buffer(), bytes), 0);
  }
}

class DirectBoundTest : public InProcessTest {};

// The copying thread must soon return to its caller, who wants to see what has arrived.
TEST_F(DirectBoundTest, APostCopiesFewBytesHoweverManyArePosted) {
  VERBENA_SKIP_OVER_TCP("the initiator copies nothing");
  constexpr uint32_t kWrs = 32;
  constexpr uint32_t kWrBytes = 96 << 10;  // the bound lies within one of them
  QpEndOptions large;
  large.bytes = size_t{2} * kWrs * kWrBytes;
  MakeConnected(large, large);
  ASSERT_EQ(a_->PostReceive(77, a_->ReceiveSge(0, 100)), 0);
  std::vector<ibv_sge> sges;
  for (uint32_t i = 0; i < kWrs; ++i) sges.push_back(a_->SendSge(size_t{i} * kWrBytes, kWrBytes));
  std::vector<ibv_send_wr> wrs(kWrs);
  for (uint32_t i = 0; i < kWrs; ++i) {
    wrs[i].wr_id = i;
    wrs[i].next = i + 1 < kWrs ? &wrs[i + 1] : nullptr;
    wrs[i].sg_list = &sges[i];
    wrs[i].num_sge = 1;
    wrs[i].opcode = i % 2 == 0 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
    wrs[i].send_flags = IBV_SEND_SIGNALED;
    wrs[i].wr.rdma.remote_addr = reinterpret_cast<uint64_t>(b_->send_buffer()) + i * kWrBytes;
    wrs[i].wr.rdma.rkey = b_->mr()->rkey;
  }
  const auto copied = [this] {
    const CopiedBytes bytes = device_a_->copied_bytes();
    return bytes.direct_write_bytes + bytes.direct_read_bytes;
  };
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(a_->qp(), wrs.data(), &bad), 0);
  uint64_t before = copied();
  EXPECT_EQ(before, kDirectBytesPerTurn);
  ASSERT_EQ(b_->SendText(1, "small"), 0);
  std::vector<uint64_t> order;
  for (int turn = 0; turn < 100 && order.size() < kWrs + 1; ++turn) {
    for (const ibv_wc& wc : Poll(a_->cq())) {
      EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
      order.push_back(wc.wr_id);
    }
    EXPECT_LE(copied() - before, kDirectBytesPerTurn);
    before = copied();
  }
  // A message that arrives waits for what a post and a poll copied, not for all that was posted.
  ASSERT_EQ(order.size(), kWrs + 1);
  const auto arrived = std::find(order.begin(), order.end(), 77u);
  EXPECT_LE(arrived - order.begin(), 2 * kDirectBytesPerTurn / kWrBytes);
  order.erase(arrived);
  for (uint32_t i = 0; i < kWrs; ++i) EXPECT_EQ(order[i], i);
  EXPECT_EQ(copied(), uint64_t{kWrs} * kWrBytes);
}

// Each part of a long WRITE after the first needs a turn of its own.
TEST_F(DirectBoundTest, ATimerOfAFormerConnectionTakesNoTurnFromAWrite) {
  VERBENA_SKIP_OVER_TCP("the initiator copies nothing");
  constexpr uint32_t kBytes = 4 * kDirectBytesPerTurn;
  MakeConnected({.bytes = size_t{2} * kBytes}, {.bytes = size_t{2} * kBytes, .min_rnr_timer = 1});
  ASSERT_EQ(a_->SendText(1, "for want of a receive", 0), 0);
  EXPECT_TRUE(Poll(b_->cq()).empty());
  EXPECT_TRUE(Poll(a_->cq()).empty());
  a_->ToState(IBV_QPS_ERR);
  clock_.Advance(std::chrono::milliseconds(1));
  Settle();
  Poll(a_->cq());
  a_->ToState(IBV_QPS_RESET);
  b_->ToState(IBV_QPS_RESET);
  Connect(*a_, *b_);
  ASSERT_EQ(a_->PostOneSided(IBV_WR_RDMA_WRITE, 2, a_->SendSge(0, kBytes),
                             reinterpret_cast<uint64_t>(b_->receive_buffer()), b_->mr()->rkey),
            0);
  std::vector<ibv_wc> done;
  for (int turn = 0; turn < 1000 && done.empty(); ++turn) done = Poll(a_->cq());
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].wr_id, 2u);
  EXPECT_EQ(done[0].status, IBV_WC_SUCCESS);
}

// A post's bound ends within the inline data, of which the rest cannot be read.
TEST_F(DirectBoundTest, ARefusedInlineWriteLeavesNoOffsetToTheNext) {
  VERBENA_SKIP_OVER_TCP("the initiator copies nothing");
  GuardUserMemory();
  MakeConnected({.bytes = 2 << 20}, {.bytes = 2 << 20});
  const size_t page = getpagesize();
  auto* const pages = static_cast<std::byte*>(
      mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(pages, MAP_FAILED);
  ASSERT_EQ(mprotect(pages + page, page, PROT_NONE), 0);
  const auto write = [&](uint64_t wr_id, const ibv_sge& from, unsigned flags) {
    return a_->PostOneSided(IBV_WR_RDMA_WRITE, wr_id, from,
                            reinterpret_cast<uint64_t>(b_->receive_buffer()), b_->mr()->rkey,
                            flags);
  };
  // The first WR leaves the post 100 bytes.
  ibv_sge large = a_->SendSge(0, kDirectBytesPerTurn - 100);
  ibv_sge torn{.addr = reinterpret_cast<uint64_t>(pages + page - 100), .length = 200, .lkey = 0};
  ibv_send_wr second{};
  second.wr_id = 2;
  second.sg_list = &torn;
  second.num_sge = 1;
  second.opcode = IBV_WR_RDMA_WRITE;
  second.send_flags = IBV_SEND_INLINE;
  second.wr.rdma.remote_addr = reinterpret_cast<uint64_t>(b_->receive_buffer());
  second.wr.rdma.rkey = b_->mr()->rkey;
  ibv_send_wr first = second;
  first.wr_id = 1;
  first.next = &second;
  first.sg_list = &large;
  first.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_send(a_->qp(), &first, &bad), EFAULT);
  EXPECT_EQ(bad, &second);
  std::memset(a_->send_buffer(), 'n', 50);
  ASSERT_EQ(write(3, a_->SendSge(0, 50), IBV_SEND_SIGNALED), 0);
  std::vector<uint64_t> done;
  for (int turn = 0; turn < 100 && done.size() < 2; ++turn) {
    for (const ibv_wc& wc : Poll(a_->cq())) done.push_back(wc.wr_id);
  }
  EXPECT_THAT(done, ElementsAre(1u, 3u));
  EXPECT_EQ(b_->ReceivedText(0, 50), std::string(50, 'n'));
  munmap(pages, 2 * page);
}

TEST_F(DirectBoundTest, APollCopiesFewBytesForAllItsQueuePairsInTurn) {
  VERBENA_SKIP_OVER_TCP("the initiator copies nothing");
  constexpr uint32_t kQps = 8;
  constexpr uint32_t kEach = 4 * kDirectBytesPerTurn;
  const QpEndOptions large{.bytes = size_t{2} * kQps * kEach};
  MakeConnected(large, large);
  std::memset(a_->send_buffer(), 'w', size_t{kQps} * kEach);
  std::vector<QpHandle> qps;
  for (uint32_t i = 0; i < kQps; ++i) {
    qps.push_back(a_->AddQp());
    qps.push_back(b_->AddQp());
    ConnectQps(*a_, qps[2 * i].get(), *b_, qps[2 * i + 1].get());
    ibv_sge from = a_->SendSge(size_t{i} * kEach, kEach);
    ibv_send_wr wr{};
    wr.sg_list = &from;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = reinterpret_cast<uint64_t>(b_->receive_buffer()) + size_t{i} * kEach;
    wr.wr.rdma.rkey = b_->mr()->rkey;
    ibv_send_wr* bad = nullptr;
    // Copies the first part.
    ASSERT_EQ(ibv_post_send(qps[2 * i].get(), &wr, &bad), 0);
  }
  for (uint32_t part = 1; part < kEach / kDirectBytesPerTurn; ++part) {
    for (uint32_t i = 0; i < kQps; ++i) {
      const uint64_t before = device_a_->copied_bytes().direct_write_bytes;
      Poll(a_->cq());
      ASSERT_LE(device_a_->copied_bytes().direct_write_bytes - before, kDirectBytesPerTurn);
    }
    for (uint32_t i = 0; i < kQps; ++i) {
      const size_t last = size_t{i} * kEach + (part + 1) * kDirectBytesPerTurn - 1;
      EXPECT_EQ(b_->receive_buffer()[last], std::byte('w')) << "queue pair " << i;
    }
  }
}

}  // namespace one_sided_test
}  // namespace verbena::internal::soft
