// Proves that programs may post by ibv_wr_* and poll by ibv_cq_ex: each opcode does what its work
// request does, each field is the completion's, and a batch with a mistake posts nothing.

#include <arpa/inet.h>
#include <infiniband/verbs.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "gtest/gtest.h"
#include "tests/transport/preload/verbs_end.h"

namespace verbena::internal::preload {
namespace extended_calls_test {

class ExtendedCallsTest : public PairTest {
 protected:
  void SetUp() override {
    PairTest::SetUp();
    post_ = ibv_qp_to_qp_ex(a_->qp);
    ASSERT_NE(post_, nullptr);
    std::strcpy(a_->memory.data(), "from a");
  }

  void Start(uint64_t wr_id) {
    ibv_wr_start(post_);
    post_->wr_id = wr_id;
    post_->wr_flags = IBV_SEND_SIGNALED;
  }
  void SetLowerHalf(uint32_t bytes) {
    const ibv_sge sge = a_->Sge(/*upper=*/false, bytes);
    ibv_wr_set_sge(post_, sge.lkey, sge.addr, sge.length);
  }
  int Complete() { return ibv_wr_complete(post_); }
  uint64_t UpperHalfOfB() { return b_->Sge(/*upper=*/true, 1).addr; }
  uint64_t NumberOfB() {
    uint64_t number;
    std::memcpy(&number, b_->memory.data() + VerbsEnd::kHalf, sizeof(number));
    return number;
  }

  ibv_qp_ex* post_ = nullptr;
};

TEST_F(ExtendedCallsTest, ReadsEachFieldOfACompletion) {
  ASSERT_EQ(b_->PostReceive(7), 0);
  Start(3);
  ibv_wr_send_imm(post_, htonl(99));
  SetLowerHalf(6);
  ASSERT_EQ(Complete(), 0);
  ASSERT_EQ(a_->Poll().wr_id, 3u);

  ibv_poll_cq_attr none{};
  int error = ENOENT;
  while (error == ENOENT) error = ibv_start_poll(b_->cq, &none);
  ASSERT_EQ(error, 0);
  EXPECT_EQ(b_->cq->status, IBV_WC_SUCCESS);
  EXPECT_EQ(b_->cq->wr_id, 7u);
  EXPECT_EQ(ibv_wc_read_opcode(b_->cq), IBV_WC_RECV);
  EXPECT_EQ(ibv_wc_read_byte_len(b_->cq), 6u);
  EXPECT_EQ(ibv_wc_read_imm_data(b_->cq), htonl(99));
  EXPECT_EQ(ibv_wc_read_wc_flags(b_->cq), static_cast<unsigned>(IBV_WC_WITH_IMM));
  EXPECT_EQ(ibv_wc_read_qp_num(b_->cq), b_->qp->qp_num);
  EXPECT_EQ(ibv_wc_read_src_qp(b_->cq), a_->qp->qp_num);
  EXPECT_EQ(ibv_next_poll(b_->cq), ENOENT);
  ibv_end_poll(b_->cq);
  EXPECT_EQ(ibv_start_poll(b_->cq, &none), ENOENT);
  EXPECT_EQ(b_->Received(6), "from a");
}

TEST_F(ExtendedCallsTest, APollAttributeThatNobodyKnowsIsRefused) {
  ibv_poll_cq_attr unknown{.comp_mask = 1};
  EXPECT_EQ(ibv_start_poll(b_->cq, &unknown), EINVAL);
}

TEST_F(ExtendedCallsTest, WritesAndReads) {
  Start(1);
  ibv_wr_rdma_write(post_, b_->mr->rkey, UpperHalfOfB());
  SetLowerHalf(6);
  ASSERT_EQ(Complete(), 0);
  EXPECT_EQ(a_->Poll().opcode, IBV_WC_RDMA_WRITE);
  EXPECT_EQ(b_->Received(6), "from a");

  std::strcpy(b_->memory.data() + VerbsEnd::kHalf, "from b");
  Start(2);
  ibv_wr_rdma_read(post_, b_->mr->rkey, UpperHalfOfB());
  const ibv_sge upper = a_->Sge(/*upper=*/true, 6);
  ibv_wr_set_sge_list(post_, 1, &upper);
  ASSERT_EQ(Complete(), 0);
  EXPECT_EQ(a_->Poll().opcode, IBV_WC_RDMA_READ);
  EXPECT_EQ(a_->Received(6), "from b");
}

TEST_F(ExtendedCallsTest, AWriteWithImmediateTakesAReceive) {
  ASSERT_EQ(b_->PostReceive(8), 0);
  Start(1);
  ibv_wr_rdma_write_imm(post_, b_->mr->rkey, UpperHalfOfB(), htonl(5));
  SetLowerHalf(6);
  ASSERT_EQ(Complete(), 0);
  EXPECT_EQ(a_->Poll().status, IBV_WC_SUCCESS);
  const ibv_wc wc = b_->Poll();
  EXPECT_EQ(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(wc.imm_data, htonl(5));
  EXPECT_EQ(b_->Received(6), "from a");
}

TEST_F(ExtendedCallsTest, AtomicsReturnTheOldValue) {
  const uint64_t ten = 10;
  std::memcpy(b_->memory.data() + VerbsEnd::kHalf, &ten, sizeof(ten));
  const ibv_sge upper = a_->Sge(/*upper=*/true, sizeof(uint64_t));
  Start(1);
  ibv_wr_atomic_fetch_add(post_, b_->mr->rkey, UpperHalfOfB(), 5);
  ibv_wr_set_sge(post_, upper.lkey, upper.addr, upper.length);
  ASSERT_EQ(Complete(), 0);
  EXPECT_EQ(a_->Poll().opcode, IBV_WC_FETCH_ADD);
  EXPECT_EQ(std::memcmp(a_->memory.data() + VerbsEnd::kHalf, &ten, sizeof(ten)), 0);
  EXPECT_EQ(NumberOfB(), 15u);
  Start(2);
  ibv_wr_atomic_cmp_swp(post_, b_->mr->rkey, UpperHalfOfB(), 15, 40);
  ibv_wr_set_sge(post_, upper.lkey, upper.addr, upper.length);
  ASSERT_EQ(Complete(), 0);
  EXPECT_EQ(a_->Poll().opcode, IBV_WC_COMP_SWAP);
  EXPECT_EQ(NumberOfB(), 40u);
}

TEST_F(ExtendedCallsTest, InlineDataIsCopiedAtOnce) {
  ASSERT_EQ(b_->PostReceive(1), 0);
  ASSERT_EQ(b_->PostReceive(2), 0);
  std::string text = "inline";
  Start(1);
  ibv_wr_send(post_);
  ibv_wr_set_inline_data(post_, text.data(), text.size());
  const ibv_data_buf parts[2] = {{.addr = text.data() + 2, .length = 4},
                                 {.addr = text.data(), .length = 2}};
  ibv_wr_send(post_);
  ibv_wr_set_inline_data_list(post_, 2, parts);
  text.assign(text.size(), '?');
  ASSERT_EQ(Complete(), 0);
  EXPECT_EQ(b_->Poll().byte_len, 6u);
  EXPECT_EQ(b_->Poll().byte_len, 6u);
  EXPECT_EQ(b_->Received(6), "linein");
}

TEST_F(ExtendedCallsTest, AFlagMakesNoDataInline) {
  ASSERT_EQ(b_->PostReceive(1), 0);
  ASSERT_EQ(b_->PostReceive(2), 0);
  std::string text = "inline";
  Start(1);
  post_->wr_flags |= IBV_SEND_INLINE;
  ibv_wr_send(post_);
  ibv_wr_set_inline_data(post_, text.data(), text.size());
  ibv_wr_send(post_);
  SetLowerHalf(5);
  ASSERT_EQ(Complete(), 0);
  EXPECT_EQ(b_->Poll().byte_len, 6u);
  EXPECT_EQ(b_->Poll().byte_len, 5u);
  EXPECT_EQ(b_->Received(6), "from e");
}

TEST_F(ExtendedCallsTest, AWindowIsBoundUsedAndInvalidated) {
  // b's window, which a writes through, and invalidates by a SEND.
  ibv_mw* window = ibv_alloc_mw(b_->pd, IBV_MW_TYPE_2);
  ASSERT_NE(window, nullptr);
  const uint32_t key = ibv_inc_rkey(window->rkey);
  ibv_qp_ex* binder = ibv_qp_to_qp_ex(b_->qp);
  const ibv_mw_bind_info info{.mr = b_->mr,
                              .addr = UpperHalfOfB(),
                              .length = 64,
                              .mw_access_flags = IBV_ACCESS_REMOTE_WRITE};
  ibv_wr_start(binder);
  binder->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_bind_mw(binder, window, key, &info);
  ASSERT_EQ(ibv_wr_complete(binder), 0);
  ASSERT_EQ(b_->Poll().status, IBV_WC_SUCCESS);
  ASSERT_EQ(b_->PostReceive(1), 0);

  Start(1);
  ibv_wr_rdma_write(post_, key, UpperHalfOfB());
  SetLowerHalf(6);
  ibv_wr_send_inv(post_, key);
  ASSERT_EQ(Complete(), 0);
  EXPECT_EQ(a_->Poll().status, IBV_WC_SUCCESS);
  EXPECT_EQ(a_->Poll().status, IBV_WC_SUCCESS);
  EXPECT_EQ(b_->Received(6), "from a");
  const ibv_wc wc = b_->Poll();
  EXPECT_EQ(wc.wc_flags, static_cast<unsigned>(IBV_WC_WITH_INV));
  EXPECT_EQ(wc.invalidated_rkey, key);

  // Invalid: nobody can invalidate it again.
  ibv_wr_start(binder);
  ibv_wr_local_inv(binder, key);
  ASSERT_EQ(ibv_wr_complete(binder), 0);
  EXPECT_EQ(b_->Poll().status, IBV_WC_MW_BIND_ERR);
  EXPECT_EQ(ibv_dealloc_mw(window), 0);
}

TEST_F(ExtendedCallsTest, ABatchWithAMistakePostsNothing) {
  ASSERT_EQ(b_->PostReceive(1), 0);
  std::string long_text(129, 'x');
  Start(1);
  ibv_wr_send(post_);
  SetLowerHalf(6);
  ibv_wr_send(post_);
  ibv_wr_set_inline_data(post_, long_text.data(), long_text.size());
  EXPECT_EQ(Complete(), EINVAL);
  // Data of no work request, and twice the data of one.
  ibv_wr_start(post_);
  SetLowerHalf(6);
  EXPECT_EQ(Complete(), EINVAL);
  Start(2);
  ibv_wr_send(post_);
  SetLowerHalf(6);
  SetLowerHalf(6);
  EXPECT_EQ(Complete(), EINVAL);
  Start(3);
  ibv_wr_send(post_);
  SetLowerHalf(6);
  ibv_wr_abort(post_);
  // The receive is left for the first batch that is in order.
  Start(4);
  ibv_wr_send(post_);
  SetLowerHalf(4);
  ASSERT_EQ(Complete(), 0);
  EXPECT_EQ(a_->Poll().wr_id, 4u);
  EXPECT_EQ(b_->Poll().byte_len, 4u);
}

TEST_F(ExtendedCallsTest, AnEmptyBatchIsFine) {
  ibv_wr_start(post_);
  EXPECT_EQ(Complete(), 0);
}

TEST_F(ExtendedCallsTest, OtherKindsOfWorkAreUnsupported) {
  Start(1);
  ibv_wr_send(post_);
  ibv_wr_set_ud_addr(post_, nullptr, 1, 2);
  EXPECT_EQ(Complete(), EOPNOTSUPP);
}

}  // namespace extended_calls_test
}  // namespace verbena::internal::preload
