// A soft device refuses what its profile withholds, and more than its profile has, as hardware
// would, and its attributes and capabilities say so beforehand.

#include <infiniband/verbs.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport/soft/in_process_fixture.h"
#include "tests/transport/soft/qp_end.h"
#include "tests/transport/soft/window.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/soft/options.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal::soft {
namespace withheld_test {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class WithheldTest : public InProcessTest {
 protected:
  // Two devices of that profile, with a QP each, connected.
  void MakeWith(const SoftProfile& profile, const QpEndOptions& options = {}) {
    profile_ = profile;
    const SoftDeviceOptions device{.engine_thread = false, .clock = &clock_, .profile = profile};
    device_a_ = SoftDevice::Create(device).value();
    device_b_ = SoftDevice::Create(device).value();
    a_ = std::make_unique<QpEnd>(*device_a_, options);
    b_ = std::make_unique<QpEnd>(*device_b_, options);
  }
  void MakeConnectedWith(const SoftProfile& profile, const QpEndOptions& options = {}) {
    MakeWith(profile, options);
    Connect(*a_, *b_);
  }
  SoftDevice& device() { return *device_a_; }

  // The result of a post with that opcode and a buffer of `bytes`.
  int PostOf(ibv_wr_opcode opcode, uint32_t bytes = 8, unsigned flags = IBV_SEND_SIGNALED) {
    return a_->PostOneSided(opcode, 1, a_->SendSge(0, bytes),
                            reinterpret_cast<uint64_t>(b_->receive_buffer()), b_->mr()->rkey,
                            flags);
  }
  absl::Status CreateQp(const ibv_qp_cap& cap) {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = a_->cq();
    init.cap = cap;
    init.qp_type = IBV_QPT_RC;
    absl::StatusOr<ibv_qp*> qp = device().CreateQp(a_->pd(), init);
    if (qp.ok()) return device().DestroyQp(*qp);
    return qp.status();
  }
  static ibv_qp_cap Cap() {
    return {.max_send_wr = 4,
            .max_recv_wr = 4,
            .max_send_sge = 1,
            .max_recv_sge = 1,
            .max_inline_data = 0};
  }

  SoftProfile profile_;
};

TEST_F(WithheldTest, ADeviceOfTheFullProfileHasAll) {
  MakeWith({});
  const DeviceCapabilities& can = device().capabilities();
  EXPECT_TRUE(can.srq && can.srq_limit_event && can.last_wqe_event && can.write_with_immediate &&
              can.send_with_immediate && can.atomics && can.memory_windows && can.windows_checked);
  EXPECT_EQ(can.max_inline_bytes, 8192u);
  EXPECT_GT(device().attributes().max_srq, 0);
  EXPECT_EQ(device().attributes().max_qp_rd_atom, 16);
}

TEST_F(WithheldTest, WithoutReliableConnectionsNoQueuePairIsMade) {
  const std::unique_ptr<SoftDevice> device =
      SoftDevice::Create(
          {.engine_thread = false, .profile = SoftProfile{.reliable_connections = false}})
          .value();
  const PdHandle pd(*device, device->AllocPd().value());
  const CqHandle cq(*device, device->CreateCq(4, nullptr, nullptr).value());
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = cq.get();
  init.cap = Cap();
  init.qp_type = IBV_QPT_RC;
  EXPECT_TRUE(absl::IsUnimplemented(device->CreateQp(pd.get(), init).status()));
}

TEST_F(WithheldTest, WithoutSharedReceiveQueuesNoneIsMade) {
  MakeConnectedWith({.srq = false});
  EXPECT_FALSE(device().capabilities().srq);
  EXPECT_FALSE(device().capabilities().last_wqe_event);
  EXPECT_FALSE(device().capabilities().srq_limit_event);
  EXPECT_EQ(device().attributes().max_srq, 0);
  EXPECT_EQ(device().attributes().max_srq_wr, 0);
  ibv_srq_init_attr wanted{};
  wanted.attr.max_wr = 4;
  wanted.attr.max_sge = 1;
  const absl::Status refused = device().CreateSrq(a_->pd(), wanted).status();
  EXPECT_FALSE(refused.ok());
  EXPECT_THAT(std::string(refused.message()), HasSubstr("no shared receive queues"));
  // Receives of a queue pair's own work as ever.
  ASSERT_EQ(b_->PostReceive(7, b_->ReceiveSge(0, 64)), 0);
  ASSERT_EQ(a_->SendText(8, "hello"), 0);
  Settle();
  EXPECT_EQ(b_->ReceivedText(0, 5), "hello");
}

TEST_F(WithheldTest, MoreInlineBytesThanTheProfileHasAreRefused) {
  MakeConnectedWith({.max_inline_bytes = 64}, {.max_inline = 64});
  EXPECT_EQ(device().capabilities().max_inline_bytes, 64u);
  ibv_qp_cap cap = Cap();
  cap.max_inline_data = 65;
  EXPECT_FALSE(CreateQp(cap).ok());
  cap.max_inline_data = 64;
  EXPECT_TRUE(CreateQp(cap).ok());
  constexpr unsigned kInline = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
  EXPECT_EQ(a_->PostSend(1, a_->SendSge(0, 65), kInline), EINVAL);
  EXPECT_EQ(a_->PostSend(1, a_->SendSge(0, 64), kInline), 0);
}

TEST_F(WithheldTest, WithoutInlineDataNoByteIsTakenInline) {
  MakeConnectedWith({.max_inline_bytes = 0}, {.max_inline = 0});
  EXPECT_EQ(a_->PostSend(1, a_->SendSge(0, 1), IBV_SEND_SIGNALED | IBV_SEND_INLINE), EINVAL);
  EXPECT_EQ(a_->PostSend(1, a_->SendSge(0, 1)), 0);
}

TEST_F(WithheldTest, WithoutWindowsNoneIsMadeBoundOrInvalidated) {
  MakeConnectedWith({.memory_windows = false});
  EXPECT_FALSE(device().capabilities().memory_windows);
  EXPECT_FALSE(device().capabilities().windows_checked);
  EXPECT_EQ(device().attributes().max_mw, 0);
  EXPECT_EQ(device().attributes().device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B, 0u);
  EXPECT_FALSE(device().AllocMw(a_->pd()).ok());
  EXPECT_FALSE(device().RegMr(a_->pd(), a_->send_buffer(), 4096, IBV_ACCESS_MW_BIND).ok());
  EXPECT_EQ(PostWindow(a_->qp(), IBV_WR_BIND_MW, 1, 0), EINVAL);
  EXPECT_EQ(PostInvalidate(a_->qp(), 1, 0x100), EINVAL);
  EXPECT_EQ(PostSendInvalidate(*a_, 1, 8, 0x100), EINVAL);
}

TEST_F(WithheldTest, WithoutAtomicOperationsNoneIsPosted) {
  MakeConnectedWith({.atomics = false});
  EXPECT_FALSE(device().capabilities().atomics);
  EXPECT_EQ(device().attributes().atomic_cap, IBV_ATOMIC_NONE);
  EXPECT_EQ(PostOf(IBV_WR_ATOMIC_CMP_AND_SWP), EINVAL);
  EXPECT_EQ(PostOf(IBV_WR_ATOMIC_FETCH_AND_ADD), EINVAL);
  EXPECT_EQ(PostOf(IBV_WR_RDMA_WRITE), 0);
}

TEST_F(WithheldTest, WithoutImmediatesNoneIsPosted) {
  MakeConnectedWith({.send_with_immediate = false});
  EXPECT_EQ(PostOf(IBV_WR_SEND_WITH_IMM), EINVAL);
  EXPECT_EQ(PostOf(IBV_WR_RDMA_WRITE_WITH_IMM), 0);
  a_.reset();
  b_.reset();
  MakeConnectedWith({.write_with_immediate = false});
  EXPECT_EQ(PostOf(IBV_WR_RDMA_WRITE_WITH_IMM), EINVAL);
  EXPECT_EQ(PostOf(IBV_WR_SEND_WITH_IMM), 0);
}

TEST_F(WithheldTest, WithoutAFlushInErrorOnlyWhatWasPostedBeforeCompletes) {
  MakeConnectedWith({.flushes_in_error = false});
  EXPECT_FALSE(device().capabilities().flushes_in_error);
  ASSERT_EQ(a_->SendText(1, "x"), 0);
  a_->ToState(IBV_QPS_ERR);
  EXPECT_EQ(Poll(a_->cq()).size(), 1u);
  EXPECT_EQ(a_->SendText(2, "x"), 0);
  Settle();
  EXPECT_THAT(Poll(a_->cq()), IsEmpty());
}

TEST_F(WithheldTest, QueuesAreNoLargerThanTheProfileHas) {
  MakeWith({.max_sge = 2, .max_qp_wr = 64, .max_cqe = 256, .max_srq_wr = 32}, {.max_sge = 2});
  EXPECT_EQ(device().attributes().max_sge, 2);
  EXPECT_FALSE(device().CreateCq(257, nullptr, nullptr).ok());
  EXPECT_FALSE(device().ResizeCq(a_->cq(), 257).ok());
  EXPECT_TRUE(device().ResizeCq(a_->cq(), 256).ok());
  ibv_srq_init_attr srq{};
  srq.attr = {.max_wr = 33, .max_sge = 1, .srq_limit = 0};
  EXPECT_FALSE(device().CreateSrq(a_->pd(), srq).ok());
  srq.attr = {.max_wr = 32, .max_sge = 3, .srq_limit = 0};
  EXPECT_FALSE(device().CreateSrq(a_->pd(), srq).ok());
  for (uint32_t ibv_qp_cap::* member : {&ibv_qp_cap::max_send_sge, &ibv_qp_cap::max_recv_sge}) {
    ibv_qp_cap cap = Cap();
    cap.*member = 3;
    EXPECT_FALSE(CreateQp(cap).ok());
    cap.*member = 2;
    EXPECT_TRUE(CreateQp(cap).ok());
  }
  for (uint32_t ibv_qp_cap::* member : {&ibv_qp_cap::max_send_wr, &ibv_qp_cap::max_recv_wr}) {
    ibv_qp_cap cap = Cap();
    cap.*member = 65;
    EXPECT_FALSE(CreateQp(cap).ok());
    cap.*member = 64;
    EXPECT_TRUE(CreateQp(cap).ok());
  }
}

TEST_F(WithheldTest, NoMoreQueuePairsAreMadeThanTheProfileHas) {
  MakeWith({.max_qp = 2});
  EXPECT_EQ(device().attributes().max_qp, 2);
  const QpHandle second = a_->AddQp();
  const absl::Status refused = CreateQp(Cap());
  EXPECT_FALSE(refused.ok());
  EXPECT_THAT(std::string(refused.message()), HasSubstr("max_qp"));
}

TEST_F(WithheldTest, ReadsAndTheMtuAreBoundedByTheProfile) {
  MakeWith({.max_qp_rd_atom = 1, .max_qp_init_rd_atom = 1, .mtu = 256});
  EXPECT_EQ(device().attributes().max_qp_rd_atom, 1);
  EXPECT_EQ(device().QueryPort(1)->max_mtu, IBV_MTU_256);
  EXPECT_EQ(device().QueryPort(1)->active_mtu, IBV_MTU_256);
  ASSERT_TRUE(a_->ToInit(a_->qp()).ok());
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = IBV_MTU_256;
  attributes.dest_qp_num = b_->qp()->qp_num;
  attributes.max_dest_rd_atomic = 1;
  attributes.min_rnr_timer = 1;
  attributes.ah_attr.is_global = 1;
  attributes.ah_attr.port_num = 1;
  attributes.ah_attr.grh.dgid = b_->gid();
  constexpr int kRtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                       IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  ibv_qp_attr wrong = attributes;
  wrong.path_mtu = IBV_MTU_512;
  EXPECT_FALSE(device().ModifyQp(a_->qp(), wrong, kRtr).ok());
  wrong = attributes;
  wrong.max_dest_rd_atomic = 2;
  EXPECT_FALSE(device().ModifyQp(a_->qp(), wrong, kRtr).ok());
  EXPECT_TRUE(device().ModifyQp(a_->qp(), attributes, kRtr).ok());
  ibv_qp_attr sending{};
  sending.qp_state = IBV_QPS_RTS;
  sending.max_rd_atomic = 2;
  constexpr int kRts = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
  EXPECT_FALSE(device().ModifyQp(a_->qp(), sending, kRts).ok());
  sending.max_rd_atomic = 1;
  EXPECT_TRUE(device().ModifyQp(a_->qp(), sending, kRts).ok());
}

TEST_F(WithheldTest, EventsThatTheProfileWithholdsAreNotRaised) {
  for (const bool has : {false, true}) {
    a_.reset();
    b_.reset();
    MakeConnectedWith({.srq_limit_event = has, .last_wqe_event = has}, {.shared_receives = true});
    EXPECT_EQ(device().capabilities().srq_limit_event, has);
    EXPECT_EQ(device().capabilities().last_wqe_event, has);
    ibv_srq_attr limit{};
    limit.srq_limit = 1;
    EXPECT_TRUE(device().ModifySrq(a_->srq(), limit, IBV_SRQ_LIMIT).ok());
    a_->ToState(IBV_QPS_ERR);
    EXPECT_EQ(AsyncEvents(device()).size(), has ? 2u : 0u);
  }
}

}  // namespace withheld_test
}  // namespace verbena::internal::soft
