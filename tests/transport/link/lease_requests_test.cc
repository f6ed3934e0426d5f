// Bindings go ahead of invalidations, within the bounds of a chain. A window has its new key once
// its binding is posted, and a lease is handed out once its invalidation has ended.

#include "verbena/transport/link/leases.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal {
namespace lease_requests_test {

class LeaseRequestsTest : public testing::Test {
 protected:
  static constexpr uint32_t kWindows = 20;

  LeaseRequestsTest() {
    WindowBatch batch = AllocateWindows(*device_, pd_, 2);
    for (size_t i = 0; i < windows_.size(); ++i) {
      windows_[i].mw = std::move(batch.windows[i]);
      windows_[i].rkey = ibv_inc_rkey(windows_[i].mw->rkey);
    }
  }
  ~LeaseRequestsTest() override {
    for (MemoryWindow& window : windows_) window.mw.Reset();
    EXPECT_EQ(device_->DeallocPd(pd_), absl::OkStatus());
  }

  void Invalidate(uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) requests_.Invalidate(leases_[invalidated_++]);
  }
  // The opcodes of the prepared chain.
  std::vector<ibv_wr_opcode> Chain() {
    std::vector<ibv_wr_opcode> opcodes;
    for (ibv_send_wr* wr = requests_.chain(); wr != nullptr; wr = wr->next) {
      EXPECT_EQ(wr->send_flags,
                wr->next == nullptr && wr->opcode == IBV_WR_LOCAL_INV ? IBV_SEND_SIGNALED : 0u);
      opcodes.push_back(wr->opcode);
    }
    return opcodes;
  }
  // Leases that the end of all WRs before `completed` hands out.
  std::vector<Lease*> Complete(uint32_t completed) {
    std::vector<Lease*> ended;
    requests_.Completed(completed, [&](Lease& lease) { ended.push_back(&lease); });
    return ended;
  }

  const std::unique_ptr<SoftDevice> device_ = *SoftDevice::Create({});
  ibv_pd* const pd_ = *device_->AllocPd();
  std::array<MemoryWindow, 2> windows_;
  std::array<Lease, kWindows> leases_;
  uint32_t invalidated_ = 0;
  LeaseRequests requests_{kWindows};
};

using Opcodes = std::vector<ibv_wr_opcode>;

TEST_F(LeaseRequestsTest, BindingsLeadAndInvalidationsFillTheRoomThatIsLeft) {
  EXPECT_FALSE(requests_.work_due());
  EXPECT_EQ(requests_.Prepare(16), 0u);
  Invalidate(3);
  for (MemoryWindow& window : windows_) requests_.Bind(window, {});
  EXPECT_EQ(requests_.bindings_due(), 2u);
  ASSERT_EQ(requests_.Prepare(3), 3u);
  EXPECT_EQ(Chain(), (Opcodes{IBV_WR_BIND_MW, IBV_WR_BIND_MW, IBV_WR_LOCAL_INV}));
  EXPECT_TRUE(requests_.Placed(2));
  EXPECT_TRUE(requests_.more_due());
  requests_.Posted();
  EXPECT_EQ(requests_.bindings_due(), 0u);
  ASSERT_EQ(requests_.Prepare(16), 2u);
  EXPECT_EQ(Chain(), (Opcodes{IBV_WR_LOCAL_INV, IBV_WR_LOCAL_INV}));
  EXPECT_TRUE(requests_.Placed(4));
  EXPECT_FALSE(requests_.more_due());
  requests_.Posted();
  EXPECT_FALSE(requests_.work_due());
}

// Bindings have slots of the send queue reserved.
TEST_F(LeaseRequestsTest, BindingsNeedNoRoomAndLeaveTheChainUnsignalled) {
  Invalidate(1);
  requests_.Bind(windows_[0], {});
  ASSERT_EQ(requests_.Prepare(0), 1u);
  EXPECT_EQ(Chain(), Opcodes{IBV_WR_BIND_MW});
  EXPECT_FALSE(requests_.Placed(0));
  requests_.Posted();
  EXPECT_EQ(requests_.Prepare(0), 0u);
  EXPECT_TRUE(requests_.work_due());
}

TEST_F(LeaseRequestsTest, AChainHasABoundWhateverRoomThereIs) {
  Invalidate(kWindows);
  EXPECT_EQ(requests_.Prepare(1000), LeaseRequests::kMaxChain);
  EXPECT_TRUE(requests_.Placed(15));
  requests_.Posted();
  EXPECT_EQ(requests_.Prepare(1000), kWindows - LeaseRequests::kMaxChain);
}

// A provider reads the old key from the window when the binding is posted.
TEST_F(LeaseRequestsTest, AWindowHasItsNewKeyOnlyOnceItsBindingIsPosted) {
  const MemoryWindow& window = windows_[0];
  const uint32_t old_key = window.mw->rkey;
  requests_.Bind(windows_[0], {.mr = nullptr, .addr = 4096, .length = 10, .mw_access_flags = 1});
  ASSERT_EQ(requests_.Prepare(1), 1u);
  const ibv_send_wr& binding = *requests_.chain();
  EXPECT_EQ(binding.bind_mw.mw, window.mw.get());
  EXPECT_EQ(binding.bind_mw.rkey, window.rkey);
  EXPECT_EQ(binding.bind_mw.bind_info.addr, 4096u);
  EXPECT_EQ(binding.bind_mw.bind_info.length, 10u);
  requests_.Placed(0);
  EXPECT_EQ(window.mw->rkey, old_key);
  requests_.Posted();
  EXPECT_EQ(window.mw->rkey, window.rkey);
  EXPECT_NE(window.mw->rkey, old_key);
}

// Positions of the send queue wrap around.
TEST_F(LeaseRequestsTest, LeasesAreHandedOutInOrderOnceTheirChainHasEnded) {
  Invalidate(2);
  requests_.Prepare(16);
  requests_.Placed(0xffffffff);
  requests_.Posted();
  Invalidate(1);
  requests_.Prepare(16);
  requests_.Placed(0);
  requests_.Posted();
  EXPECT_TRUE(Complete(0xffffffff).empty());
  EXPECT_EQ(Complete(0), (std::vector<Lease*>{&leases_[0], &leases_[1]}));
  EXPECT_EQ(Complete(1), std::vector<Lease*>{&leases_[2]});
  EXPECT_TRUE(Complete(1).empty());
}

TEST_F(LeaseRequestsTest, NothingIsLeftOfALostQueuePair) {
  Invalidate(1);
  requests_.Prepare(16);
  requests_.Placed(0);
  Invalidate(1);
  requests_.Bind(windows_[0], {});
  requests_.Clear();
  EXPECT_FALSE(requests_.work_due());
  EXPECT_EQ(requests_.Prepare(16), 0u);
  EXPECT_TRUE(Complete(1).empty());
}

}  // namespace lease_requests_test
}  // namespace verbena::internal
