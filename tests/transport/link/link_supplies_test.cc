// The links of an endpoint share its send buffers among their source addresses, and hear when the
// other addresses are gone. Only a device whose payloads the processor copies bounds a turn.

#include "verbena/transport/link/supplies.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "tests/transport/device/delegating_device.h"
#include "verbena/transport/link/device_context.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/peer_source.h"
#include "verbena/transport/link/send_queue.h"
#include "verbena/transport/link/transfers.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal {
namespace link_supplies_test {

constexpr uint32_t kBuffers = 16;
constexpr LinkLimits kLimits = {.max_links = 4, .eager_bytes = 1024, .send_buffers = kBuffers};

class CountingWaiter final : public RoomWaiter {
 public:
  void OnRoom() override { ++woken; }
  int woken = 0;
};

class LinkSuppliesTest : public testing::Test {
 protected:
  void Begin() {
    SendMemory memory{
        .buffers = *SendBuffers::Create(device_, context_->pd(), kLimits.send_buffers,
                                        kLimits.eager_bytes, kLimits.max_links),
        .atomic_scratch = *AtomicScratch::Create(device_, context_->pd(), kLimits.max_links)};
    supplies_.emplace(std::move(memory), device_, kLimits);
  }
  // Takes all buffers that links to `source` may hold together, if each link holds one.
  void TakeAll(PeerSource& source) {
    while (supplies_->buffers().Take(0, source) != SendBuffers::kNone) ++source.held;
  }

  std::unique_ptr<SoftDevice> soft_ = *SoftDevice::Create({});
  DelegatingDevice device_{*soft_};
  std::unique_ptr<DeviceContext> context_ =
      *DeviceContext::Create(device_, {.event_thread = false});
  std::optional<LinkSupplies> supplies_;
};

TEST_F(LinkSuppliesTest, AnAddressSharesOnlyIfThereIsAnother) {
  Begin();
  PeerSource& first = supplies_->JoinSource("10.0.0.1", true);
  EXPECT_EQ(&supplies_->JoinSource("10.0.0.1", true), &first);
  EXPECT_FALSE(supplies_->is_shared(first));
  PeerSource& many = supplies_->JoinSource("local", false);
  EXPECT_TRUE(supplies_->is_shared(first));
  EXPECT_FALSE(supplies_->is_shared(many));
  supplies_->LeaveSource(many);
  EXPECT_FALSE(supplies_->is_shared(first));
}

TEST_F(LinkSuppliesTest, AnAddressTakesAllBuffersOnlyIfThereIsNoOther) {
  Begin();
  PeerSource& first = supplies_->JoinSource("10.0.0.1", true);
  PeerSource& second = supplies_->JoinSource("10.0.0.2", true);
  TakeAll(first);
  EXPECT_EQ(first.held, kBuffers / 2);
  supplies_->LeaveSource(second);
  TakeAll(first);
  EXPECT_EQ(first.held, kBuffers);
}

TEST_F(LinkSuppliesTest, LinksOfAFullAddressWaitUntilItIsLeftAlone) {
  Begin();
  PeerSource& first = supplies_->JoinSource("10.0.0.1", true);
  PeerSource& second = supplies_->JoinSource("10.0.0.2", true);
  PeerSource& third = supplies_->JoinSource("10.0.0.3", true);
  TakeAll(first);
  CountingWaiter waiter;
  supplies_->room().Await(waiter, first);
  supplies_->LeaveSource(second);
  EXPECT_EQ(waiter.woken, 0);
  supplies_->LeaveSource(third);
  EXPECT_EQ(waiter.woken, 1);
}

TEST_F(LinkSuppliesTest, NoMoreTravelsInlineThanTheDeviceAndABufferTake) {
  device_.can.max_inline_bytes = 100;
  Begin();
  EXPECT_EQ(supplies_->max_inline_bytes(), 100u);
  device_.can.max_inline_bytes = kLimits.eager_bytes * 2;
  Begin();
  EXPECT_EQ(supplies_->max_inline_bytes(), kLimits.eager_bytes);
}

TEST_F(LinkSuppliesTest, LinksDoNotAskAnRdmaDeviceForAllTheInlineBytesThatItHas) {
  device_.told_kind = DeviceKind::kRdma;
  device_.can.max_inline_bytes = 512;
  Begin();
  EXPECT_EQ(supplies_->max_inline_bytes(), 236u);
  device_.can.max_inline_bytes = 101;
  Begin();
  EXPECT_EQ(supplies_->max_inline_bytes(), 101u);
}

TEST_F(LinkSuppliesTest, ATurnIsBoundedWhereTheProcessorCopies) {
  Begin();
  supplies_->NoteBulk(/*turn=*/1, kLimits.bulk.slice_bytes);
  EXPECT_FALSE(supplies_->MayPostBulk(1));
  EXPECT_TRUE(supplies_->MayPostBulk(2));
  device_.told_kind = DeviceKind::kRdma;
  Begin();
  supplies_->NoteBulk(/*turn=*/1, kLimits.bulk.slice_bytes);
  EXPECT_TRUE(supplies_->MayPostBulk(1));
}

TEST_F(LinkSuppliesTest, GivesItsMemoryAwayWithoutFreeingIt) {
  Begin();
  const SendBuffers* const buffers = &supplies_->buffers();
  const SendMemory memory = supplies_->TakeMemory();
  supplies_.reset();
  EXPECT_EQ(memory.buffers.get(), buffers);
  EXPECT_EQ(memory.buffers->free_count(), kBuffers);
}

}  // namespace link_supplies_test
}  // namespace verbena::internal
