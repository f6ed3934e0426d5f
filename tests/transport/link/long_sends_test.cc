// On a device that reads the memory of unsignalled WRs late, each long SEND and WRITE is signalled,
// and nothing is lost by the completions that this adds.

#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tests/transport/device/delegating_device.h"
#include "tests/transport/link/transfers_fixture.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal {
namespace long_sends_test {

constexpr uint32_t kMaxUnsignalled = 4095;

class LongSendsTest : public TransfersFixture {
 protected:
  struct Posted {
    ibv_wr_opcode opcode;
    uint32_t bytes;
    bool signalled;
  };

  void SetUp() override {
    StartWith({.max_links = 2, .eager_bytes = 16384});
    real_ = std::exchange(context().ops.post_send, NoteAndPost);
    link_ = Connect(client_listener_, server_listener_);
    ASSERT_NE(link_, nullptr);
    posted_.clear();
  }
  void TearDown() override {
    TransfersFixture::TearDown();
    context().ops.post_send = real_;
    posted_.clear();
  }

  std::unique_ptr<Device> Wrap(SoftDevice& device) override {
    auto wrapper = std::make_unique<DelegatingDevice>(device);
    wrapper->can.max_unsignalled_bytes = kMaxUnsignalled;
    return wrapper;
  }

  // The number of posted WRs of that kind with more bytes, all of which are signalled.
  static int CountLong(ibv_wr_opcode opcode) {
    int count = 0;
    for (const Posted& posted : posted_) {
      if (posted.opcode != opcode || posted.bytes <= kMaxUnsignalled) continue;
      ++count;
      EXPECT_TRUE(posted.signalled) << posted.bytes << " bytes";
    }
    return count;
  }
  static int CountUnsignalled() {
    int count = 0;
    for (const Posted& posted : posted_) count += posted.signalled ? 0 : 1;
    return count;
  }

  Receiver client_listener_;
  Receiver server_listener_;
  Link* link_ = nullptr;

 private:
  static int NoteAndPost(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
    for (const ibv_send_wr* each = wr; each != nullptr; each = each->next) {
      const uint32_t bytes = each->num_sge == 1 ? each->sg_list->length : 0;
      posted_.push_back({each->opcode, bytes, (each->send_flags & IBV_SEND_SIGNALED) != 0});
    }
    return real_(qp, wr, bad);
  }

  static inline int (*real_)(ibv_qp*, ibv_send_wr*, ibv_send_wr**) = nullptr;
  static inline std::vector<Posted> posted_;
};

TEST_P(LongSendsTest, EachSendAboveTheBoundIsSignalled) {
  Flood flood(2'000, 5'000);
  flood.Run(*link_);
  PollUntil([&] { return server_listener_.received() == 2'000; });
  EXPECT_GT(CountLong(IBV_WR_SEND), 500);
  EXPECT_TRUE(link_->open()) << client_listener_.reason();
}

TEST_P(LongSendsTest, ShortSendsAreSignalledAsOnOtherDevices) {
  for (uint32_t i = 0; i < 100; ++i) {
    Flood one(i + 1, 8, i);  // in a SEND of its own
    one.Run(*link_);
    PollUntil([&] { return server_listener_.received() == i + 1; });
  }
  EXPECT_EQ(CountLong(IBV_WR_SEND), 0);
  // A SEND that is not inline holds a buffer, which its completion gives back.
  const bool sends_inline = device().capabilities().max_inline_bytes != 0;
  EXPECT_EQ(CountUnsignalled() > 0, sends_inline);
}

TEST_P(LongSendsTest, EachWriteOfATransferIsSignalled) {
  TransferOutcome first;
  TransferOutcome second;
  // Slices of several WRITEs, of which elsewhere the last is signalled.
  StartTransferOf(*link_, 40, 5'000, first);
  StartTransfer(*link_, 3'000'000, second);
  PollUntil([&] { return first.done() && second.done(); });
  EXPECT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(second.ok()) << second.status();
  EXPECT_GE(CountLong(IBV_WR_RDMA_WRITE), 40);
  EXPECT_TRUE(link_->open()) << client_listener_.reason();
}

INSTANTIATE_TEST_SUITE_P(, LongSendsTest, testing::Values(Transfer::Direction::kWrite),
                         DirectionName);

}  // namespace long_sends_test
}  // namespace verbena::internal
