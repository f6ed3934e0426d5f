// Nothing lands through a queue pair after the call that ends it has returned: the call waits for
// the copy that the peer is in the middle of. Memory cannot be deregistered under a peer that is
// frozen there, not even once its queue pair and its CQ are gone. What a closed context leaves with
// such a peer is nobody's any more.

#include <infiniband/verbs.h>
#include <sched.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "gtest/gtest.h"
#include "tests/transport/preload/verbs_end.h"
#include "tests/transport/soft/raw_shared_peer.h"
#include "verbena/transport/base/clock.h"

namespace verbena::internal::preload {
namespace late_copies_test {

class LateCopiesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    context_ = OpenDevice(0);
    ASSERT_NE(context_, nullptr);
    end_ = std::make_unique<VerbsEnd>(context_);
    ibv_gid gid{};
    ASSERT_EQ(ibv_query_gid(context_, 1, 0, &gid), 0);
    peer_ = std::make_unique<soft::RawSharedPeer>(soft::DeviceAddress{.gid = gid});
    ASSERT_NO_FATAL_FAILURE(ConnectToPeer());
    socket_ = peer_->Greet();
    peer_->OpenLane(*socket_, end_->qp->qp_num);
    peer_->BeginCopy();
  }
  void TearDown() override {
    end_.reset();
    EXPECT_EQ(ibv_close_device(context_), 0);
  }

  void ConnectToPeer() {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = 1;
    attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    ASSERT_EQ(ibv_modify_qp(end_->qp, &attributes,
                            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
              0);
    attributes.qp_state = IBV_QPS_RTR;
    attributes.path_mtu = IBV_MTU_1024;
    attributes.dest_qp_num = soft::RawSharedPeer::kQpn;
    attributes.ah_attr.is_global = 1;
    attributes.ah_attr.port_num = 1;
    attributes.ah_attr.grh.dgid = peer_->address().gid;
    ASSERT_EQ(ibv_modify_qp(end_->qp, &attributes,
                            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
              0);
  }

  // `end` takes the queue pair out of service. The copy goes on for a while after that.
  void ExpectItWaits(const std::function<int()>& end) {
    const uint32_t qpn = end_->qp->qp_num;
    std::thread caller([&] {
      const TimePoint began = Clock::Real().Now();
      EXPECT_EQ(end(), 0);
      // A call gives up on a peer that does not run for 2 s, as on a busy machine.
      if (Clock::Real().Now() - began >= std::chrono::seconds(2)) return;
      EXPECT_FALSE(peer_->copies()) << "a copy was under way";
    });
    while (peer_->IsInService(qpn)) sched_yield();
    for (int i = 0; i < 20; ++i) sched_yield();
    peer_->EndCopy();
    caller.join();
  }
  int MoveTo(ibv_qp_state state) {
    ibv_qp_attr attributes{};
    attributes.qp_state = state;
    return ibv_modify_qp(end_->qp, &attributes, IBV_QP_STATE);
  }

  ibv_context* context_ = nullptr;
  std::unique_ptr<VerbsEnd> end_;
  std::unique_ptr<soft::RawSharedPeer> peer_;
  std::unique_ptr<soft::ControlSocket> socket_;
};

TEST_F(LateCopiesTest, DestroyingTheQueuePairWaits) {
  ExpectItWaits([this] {
    const int error = ibv_destroy_qp(end_->qp);
    end_->qp = nullptr;
    return error;
  });
}

TEST_F(LateCopiesTest, ResettingTheQueuePairWaits) {
  ExpectItWaits([this] { return MoveTo(IBV_QPS_RESET); });
}

TEST_F(LateCopiesTest, MovingTheQueuePairToErrorWaits) {
  ExpectItWaits([this] { return MoveTo(IBV_QPS_ERR); });
}

// The change of state has happened, so the call cannot fail for the right that it takes away as
// well.
TEST_F(LateCopiesTest, AMoveThatTakesARightAwayDoesNotWaitAndTheFlagsAloneDo) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTS;
  EXPECT_EQ(ibv_modify_qp(end_->qp, &attributes,
                          IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                              IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_ACCESS_FLAGS),
            0);
  EXPECT_EQ(end_->qp->state, IBV_QPS_RTS);
  EXPECT_EQ(ibv_modify_qp(end_->qp, &attributes, IBV_QP_ACCESS_FLAGS), EBUSY);
  peer_->EndCopy();
  EXPECT_EQ(ibv_modify_qp(end_->qp, &attributes, IBV_QP_ACCESS_FLAGS), 0);
}

TEST_F(LateCopiesTest, AFrozenPeerKeepsTheMemoryRegistered) {
  EXPECT_EQ(ibv_destroy_qp(end_->qp), 0);
  end_->qp = nullptr;
  EXPECT_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(end_->cq)), 0);
  end_->cq = nullptr;
  EXPECT_EQ(ibv_dereg_mr(end_->mr), EBUSY);
  peer_->EndCopy();
}

TEST_F(LateCopiesTest, ARegionThatAClosedContextLeavesToAFrozenPeerIsNoObjectAnyMore) {
  ibv_mr* const left = end_->mr;
  ibv_pd* const domain = end_->pd;
  end_->qp = nullptr;
  end_->cq = nullptr;
  end_->channel = nullptr;
  end_->mr = nullptr;
  end_->pd = nullptr;
  EXPECT_EQ(ibv_close_device(context_), 0);
  EXPECT_EQ(ibv_dereg_mr(left), EINVAL);
  EXPECT_EQ(ibv_dealloc_pd(domain), EINVAL);
  peer_->EndCopy();
  context_ = OpenDevice(0);
  ASSERT_NE(context_, nullptr);
}

}  // namespace late_copies_test
}  // namespace verbena::internal::preload
