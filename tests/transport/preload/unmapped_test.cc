// Proves that a program may unmap memory while it is registered, as it may with hardware, which
// pins it: then work requests that concern it fail, on both sides, and nobody is killed by a
// signal.

#include <infiniband/verbs.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "gtest/gtest.h"
#include "tests/transport/preload/verbs_end.h"

namespace verbena::internal::preload {
namespace unmapped_test {

// b has registered a region besides, `gone`, that it has unmapped since.
class UnmappedTest : public PairTest {
 protected:
  static constexpr size_t kGoneBytes = 1 << 16;

  void SetUp() override {
    PairTest::SetUp();
    ASSERT_NO_FATAL_FAILURE(LoseRegion(*a_, gone_of_a_));
    ASSERT_NO_FATAL_FAILURE(LoseRegion(*b_, gone_of_b_));
  }
  void TearDown() override {
    for (ibv_mr* gone : {gone_of_a_, gone_of_b_}) EXPECT_EQ(ibv_dereg_mr(gone), 0);
    PairTest::TearDown();
  }

  static void LoseRegion(VerbsEnd& end, ibv_mr*& region) {
    void* const memory =
        mmap(nullptr, kGoneBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    region = ibv_reg_mr(end.pd, memory, kGoneBytes, VerbsEnd::kAccess);
    ASSERT_NE(region, nullptr);
    // Nothing else gets its addresses.
    ASSERT_NE(mmap(memory, kGoneBytes, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0),
              MAP_FAILED);
  }

  static ibv_sge Piece(const ibv_mr* region, uint32_t bytes) {
    return {
        .addr = reinterpret_cast<uint64_t>(region->addr), .length = bytes, .lkey = region->lkey};
  }
  // An operation of a on b's lost memory. Returns how it ended.
  ibv_wc_status OnGone(ibv_wr_opcode opcode, uint32_t bytes) {
    ibv_sge sge = a_->Sge(/*upper=*/false, bytes);
    ibv_send_wr wr{};
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    const uint64_t address = reinterpret_cast<uint64_t>(gone_of_b_->addr);
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
      wr.wr.atomic = {
          .remote_addr = address, .compare_add = 1, .swap = 0, .rkey = gone_of_b_->rkey};
    } else {
      wr.wr.rdma = {.remote_addr = address, .rkey = gone_of_b_->rkey};
    }
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_send(a_->qp, &wr, &bad), 0);
    return a_->Poll().status;
  }
  void PostGoneReceive() {
    ibv_sge sge = Piece(gone_of_b_, 64);
    ibv_recv_wr wr{.wr_id = 7, .next = nullptr, .sg_list = &sge, .num_sge = 1};
    ibv_recv_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_recv(b_->qp, &wr, &bad), 0);
  }

  ibv_mr* gone_of_a_ = nullptr;
  ibv_mr* gone_of_b_ = nullptr;
};

TEST_F(UnmappedTest, AReceiveFailsOnBothSides) {
  ASSERT_NO_FATAL_FAILURE(PostGoneReceive());
  ASSERT_EQ(a_->PostSend(1, a_->Sge(/*upper=*/false, 4)), 0);
  const ibv_wc received = b_->Poll();
  EXPECT_EQ(received.wr_id, 7u);
  EXPECT_EQ(received.status, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(a_->Poll().status, IBV_WC_REM_OP_ERR);
}

// The device's own thread executes it.
TEST_F(UnmappedTest, AReceiveOfAProgramThatSleepsFails) {
  ASSERT_EQ(ibv_req_notify_cq(ibv_cq_ex_to_cq(b_->cq), 0), 0);
  ASSERT_NO_FATAL_FAILURE(PostGoneReceive());
  ASSERT_EQ(a_->PostSend(1, a_->Sge(/*upper=*/false, 4)), 0);
  ibv_cq* cq = nullptr;
  void* cq_context = nullptr;
  ASSERT_EQ(ibv_get_cq_event(b_->channel, &cq, &cq_context), 0);
  ibv_ack_cq_events(cq, 1);
  EXPECT_EQ(b_->Poll().status, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(a_->Poll().status, IBV_WC_REM_OP_ERR);
}

TEST_F(UnmappedTest, AWriteFails) {
  EXPECT_EQ(OnGone(IBV_WR_RDMA_WRITE, 64), IBV_WC_REM_ACCESS_ERR);
  ibv_async_event event{};
  ASSERT_EQ(ibv_get_async_event(contexts_[1], &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
  EXPECT_EQ(event.element.qp, b_->qp);
  ibv_ack_async_event(&event);
}

TEST_F(UnmappedTest, AReadFails) { EXPECT_EQ(OnGone(IBV_WR_RDMA_READ, 64), IBV_WC_REM_ACCESS_ERR); }

TEST_F(UnmappedTest, AnAtomicOperationFails) {
  EXPECT_EQ(OnGone(IBV_WR_ATOMIC_FETCH_AND_ADD, 8), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(UnmappedTest, ASendOfItFails) {
  ASSERT_EQ(b_->PostReceive(1), 0);
  ASSERT_EQ(a_->PostSend(1, Piece(gone_of_a_, 64)), 0);
  EXPECT_EQ(a_->Poll().status, IBV_WC_LOC_PROT_ERR);
}

TEST_F(UnmappedTest, AReadIntoItFails) {
  ibv_sge sge = Piece(gone_of_a_, 64);
  ibv_send_wr wr{};
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_READ;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma = {.remote_addr = b_->Sge(/*upper=*/true, 64).addr, .rkey = b_->mr->rkey};
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(a_->qp, &wr, &bad), 0);
  EXPECT_EQ(a_->Poll().status, IBV_WC_LOC_PROT_ERR);
}

TEST_F(UnmappedTest, MemoryThatMayNotBeWrittenIsRegisteredForReadingAlone) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* const memory =
      mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  ASSERT_EQ(mprotect(static_cast<char*>(memory) + page, page, PROT_READ), 0);
  const int writing = IBV_ACCESS_LOCAL_WRITE;
  const int reading = IBV_ACCESS_REMOTE_READ;
  EXPECT_EQ(ibv_reg_mr(a_->pd, memory, 2 * page, writing), nullptr);
  EXPECT_EQ(errno, EINVAL);
  ibv_mr* const first = ibv_reg_mr(a_->pd, memory, page, writing);
  EXPECT_NE(first, nullptr);
  ibv_mr* const both = ibv_reg_mr(a_->pd, memory, 2 * page, reading);
  EXPECT_NE(both, nullptr);
  EXPECT_EQ(ibv_dereg_mr(first), 0);
  EXPECT_EQ(ibv_dereg_mr(both), 0);
  ASSERT_EQ(mprotect(memory, page, PROT_NONE), 0);
  EXPECT_EQ(ibv_reg_mr(a_->pd, memory, page, reading), nullptr);
  EXPECT_EQ(errno, EINVAL);
  munmap(memory, 2 * page);
}

}  // namespace unmapped_test
}  // namespace verbena::internal::preload
