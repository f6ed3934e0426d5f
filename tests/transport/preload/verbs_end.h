// VerbsEnd: one end of a connection in a test, made by libibverbs' own functions on a context.
//
// The buffer's lower half is sent from, the upper half is received into. Objects that the test
// destroys itself are set to null first.

#ifndef VERBENA_TESTS_TRANSPORT_PRELOAD_VERBS_END_H_
#define VERBENA_TESTS_TRANSPORT_PRELOAD_VERBS_END_H_

#include <infiniband/verbs.h>
#include <sched.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace verbena::internal::preload {

inline ibv_context* OpenDevice(int index) {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  ibv_context* context = index < count ? ibv_open_device(list[index]) : nullptr;
  ibv_free_device_list(list);
  return context;
}

class VerbsEnd {
 public:
  static constexpr size_t kBytes = 8192;
  static constexpr size_t kHalf = kBytes / 2;
  static constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                 IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
                                 IBV_ACCESS_MW_BIND;

  // `cq_flags`: of ibv_create_cq_attr_flags.
  explicit VerbsEnd(ibv_context* context, bool shared_receives = false, uint32_t cqe = 64,
                    uint32_t cq_flags = 0)
      : context(context), memory(kBytes) {
    pd = ibv_alloc_pd(context);
    mr = ibv_reg_mr(pd, memory.data(), kBytes, kAccess);
    channel = ibv_create_comp_channel(context);
    ibv_cq_init_attr_ex cq_init{};
    cq_init.cqe = cqe;
    cq_init.channel = channel;
    cq_init.wc_flags = IBV_WC_STANDARD_FLAGS;
    cq_init.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
    cq_init.flags = cq_flags;
    cq = ibv_create_cq_ex(context, &cq_init);
    if (shared_receives) {
      ibv_srq_init_attr srq_init{};
      srq_init.attr = {.max_wr = 16, .max_sge = 1, .srq_limit = 0};
      srq = ibv_create_srq(pd, &srq_init);
    }
    ibv_qp_init_attr_ex init{};
    init.send_cq = init.recv_cq = ibv_cq_ex_to_cq(cq);
    init.srq = srq;
    init.cap = {.max_send_wr = 32,
                .max_recv_wr = 32,
                .max_send_sge = 4,
                .max_recv_sge = 1,
                .max_inline_data = 128};
    init.qp_type = IBV_QPT_RC;
    init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    init.pd = pd;
    init.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                          IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
                          IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_RDMA_READ |
                          IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |
                          IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW;
    qp = ibv_create_qp_ex(context, &init);
  }
  VerbsEnd(const VerbsEnd&) = delete;
  VerbsEnd& operator=(const VerbsEnd&) = delete;
  ~VerbsEnd() {
    if (qp != nullptr) {
      EXPECT_EQ(ibv_destroy_qp(qp), 0);
    }
    if (srq != nullptr) {
      EXPECT_EQ(ibv_destroy_srq(srq), 0);
    }
    if (cq != nullptr) {
      EXPECT_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
    }
    if (channel != nullptr) {
      EXPECT_EQ(ibv_destroy_comp_channel(channel), 0);
    }
    if (mr != nullptr) {
      EXPECT_EQ(ibv_dereg_mr(mr), 0);
    }
    if (pd != nullptr) {
      EXPECT_EQ(ibv_dealloc_pd(pd), 0);
    }
  }

  // Leads to `peer`, by its GID or by nothing but its LID.
  void Connect(const VerbsEnd& peer, bool by_gid) {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = 1;
    attributes.qp_access_flags = kAccess & ~IBV_ACCESS_MW_BIND;
    ASSERT_EQ(ibv_modify_qp(qp, &attributes,
                            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
              0);
    attributes.qp_state = IBV_QPS_RTR;
    attributes.path_mtu = IBV_MTU_1024;
    attributes.dest_qp_num = peer.qp->qp_num;
    attributes.max_dest_rd_atomic = 4;
    attributes.min_rnr_timer = 12;
    attributes.ah_attr = peer.Address(by_gid);
    ASSERT_EQ(ibv_modify_qp(qp, &attributes,
                            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
              0);
    attributes.qp_state = IBV_QPS_RTS;
    attributes.timeout = 14;
    attributes.retry_cnt = 7;
    attributes.rnr_retry = 7;
    attributes.max_rd_atomic = 4;
    ASSERT_EQ(ibv_modify_qp(qp, &attributes,
                            IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
              0);
  }

  ibv_ah_attr Address(bool by_gid) const {
    ibv_port_attr port{};
    EXPECT_EQ(ibv_query_port(context, 1, &port), 0);
    ibv_ah_attr address{};
    address.port_num = 1;
    address.dlid = port.lid;
    if (by_gid) {
      address.is_global = 1;
      EXPECT_EQ(ibv_query_gid(context, 1, 0, &address.grh.dgid), 0);
    }
    return address;
  }

  ibv_sge Sge(bool upper, uint32_t bytes) {
    return {.addr = reinterpret_cast<uint64_t>(memory.data()) + (upper ? kHalf : 0),
            .length = bytes,
            .lkey = mr->lkey};
  }
  int PostReceive(uint64_t wr_id) {
    ibv_sge sge = Sge(/*upper=*/true, kHalf);
    ibv_recv_wr wr{.wr_id = wr_id, .next = nullptr, .sg_list = &sge, .num_sge = 1};
    ibv_recv_wr* bad = nullptr;
    return srq != nullptr ? ibv_post_srq_recv(srq, &wr, &bad) : ibv_post_recv(qp, &wr, &bad);
  }
  int PostSend(uint64_t wr_id, ibv_sge sge) {
    ibv_send_wr wr{};
    wr.wr_id = wr_id;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED;
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(qp, &wr, &bad);
  }
  // The next completion. The test's own limit ends a wait for one that never comes.
  ibv_wc Poll() {
    ibv_wc wc{};
    while (ibv_poll_cq(ibv_cq_ex_to_cq(cq), 1, &wc) == 0) sched_yield();
    return wc;
  }
  std::string Received(size_t bytes) const { return std::string(memory.data() + kHalf, bytes); }

  ibv_context* context;
  std::vector<char> memory;
  ibv_pd* pd = nullptr;
  ibv_mr* mr = nullptr;
  ibv_comp_channel* channel = nullptr;
  ibv_cq_ex* cq = nullptr;
  ibv_srq* srq = nullptr;
  ibv_qp* qp = nullptr;
};

// Two contexts of one device, and an end on each; connected.
class PairTest : public ::testing::Test {
 protected:
  void SetUp() override {
    contexts_[0] = OpenDevice(0);
    contexts_[1] = OpenDevice(0);
    ASSERT_NE(contexts_[0], nullptr);
    ASSERT_NE(contexts_[1], nullptr);
    a_ = std::make_unique<VerbsEnd>(contexts_[0]);
    b_ = std::make_unique<VerbsEnd>(contexts_[1]);
    ASSERT_NO_FATAL_FAILURE(a_->Connect(*b_, /*by_gid=*/true));
    ASSERT_NO_FATAL_FAILURE(b_->Connect(*a_, /*by_gid=*/true));
  }
  void TearDown() override {
    a_.reset();
    b_.reset();
    for (ibv_context* context : contexts_) EXPECT_EQ(ibv_close_device(context), 0);
  }

  ibv_context* contexts_[2]{};
  std::unique_ptr<VerbsEnd> a_;
  std::unique_ptr<VerbsEnd> b_;
};

}  // namespace verbena::internal::preload

#endif  // VERBENA_TESTS_TRANSPORT_PRELOAD_VERBS_END_H_
