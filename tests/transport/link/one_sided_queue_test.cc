#include "verbena/transport/link/one_sided_queue.h"

#include <gtest/gtest.h>

#include <vector>

#include "verbena/transport/memory/block.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena {
namespace {

using Direction = Transfer::Direction;

// A queue without a queue pair, on memory without a device.
class OneSidedQueueTest : public testing::Test, private internal::BlockOwner {
 protected:
  static constexpr uint32_t kWrBytes = 100;

  OneSidedQueueTest() : block_(memory_, sizeof(memory_), region_, *this) {
    block_.Hold();
    buffer_ = Buffer(block_, sizeof(memory_));
  }
  ~OneSidedQueueTest() override { queue_.Fail(absl::CancelledError("the test ends")); }

  void Add(Direction direction, size_t bytes) {
    const BufferView view = buffer_.Slice(0, bytes);
    queue_.Add(
        pool_.Take(direction, {&view, 1}, {.address = 1000, .bytes = bytes, .rkey = 9}, nullptr));
  }

  BufferView WholeView() const { return buffer_.view(); }

  // Prepares and posts one chain; its opcode, and how many WRs.
  std::pair<ibv_wr_opcode, uint32_t> Post(uint32_t slots) {
    const uint32_t count = queue_.Prepare(slots);
    if (count == 0) return {IBV_WR_SEND, 0};
    const ibv_wr_opcode opcode = queue_.chain()->opcode;
    posted_ += count;
    queue_.Posted(posted_ - 1);
    return {opcode, count};
  }

  uint32_t posted_ = 0;
  TransferPool pool_;
  OneSidedQueue queue_{pool_, {.send_queue_slots = 64, .max_wr_bytes = kWrBytes, .max_reads = 4}};

 private:
  void OnUnused(internal::Block&) override {}

  char memory_[8192] = {};
  ibv_mr mr_ = {};
  MemoryRegion region_{memory_, sizeof(memory_), &mr_, 0, nullptr};
  internal::Block block_;
  Buffer buffer_;
};

using Posted = std::pair<ibv_wr_opcode, uint32_t>;

TEST_F(OneSidedQueueTest, ATransferIsCutIntoWrsThatCoverItOnce) {
  Add(Direction::kWrite, 250);
  ASSERT_EQ(queue_.Prepare(64), 3u);
  uint64_t at = 1000;
  const uint32_t lengths[] = {100, 100, 50};
  const ibv_send_wr* request = queue_.chain();
  for (uint32_t length : lengths) {
    ASSERT_NE(request, nullptr);
    EXPECT_EQ(request->sg_list->length, length);
    EXPECT_EQ(request->wr.rdma.remote_addr, at);
    EXPECT_EQ(request->wr.rdma.rkey, 9u);
    EXPECT_EQ(request->send_flags, at == 1200 ? IBV_SEND_SIGNALED : 0u);
    at += length;
    request = request->next;
  }
  EXPECT_EQ(request, nullptr);
  queue_.Posted(2);
}

TEST_F(OneSidedQueueTest, ReadsWaitForTheNumberThatMayBeOutstandingAndHoldUpNoWrite) {
  Add(Direction::kRead, 600);
  EXPECT_EQ(Post(64), (Posted{IBV_WR_RDMA_READ, 4}));
  EXPECT_FALSE(queue_.CanGo());
  EXPECT_EQ(Post(64).second, 0u);
  Add(Direction::kWrite, 50);
  EXPECT_TRUE(queue_.CanGo());
  EXPECT_EQ(Post(64), (Posted{IBV_WR_RDMA_WRITE, 1}));
  queue_.Completed(4);
  EXPECT_EQ(Post(64), (Posted{IBV_WR_RDMA_READ, 2}));
  queue_.Completed(posted_);
  EXPECT_EQ(pool_.in_use(), 0u);
}

TEST_F(OneSidedQueueTest, WritesAndReadsTakeTurns) {
  for (int i = 0; i < 3; ++i) {
    Add(Direction::kWrite, 50);
    Add(Direction::kRead, 50);
  }
  std::vector<ibv_wr_opcode> order;
  for (int i = 0; i < 6; ++i) order.push_back(Post(64).first);
  for (int i = 1; i < 6; ++i) EXPECT_NE(order[i], order[i - 1]) << i;
}

TEST_F(OneSidedQueueTest, ALongTransferTakesNoMoreSlotsThanThereAre) {
  Add(Direction::kWrite, 1000);
  EXPECT_EQ(Post(7).second, 7u);
  EXPECT_EQ(Post(0).second, 0u);
  queue_.Completed(7);
  EXPECT_EQ(pool_.in_use(), 1u);
  EXPECT_EQ(Post(64).second, 3u);
  queue_.Completed(10);
  EXPECT_EQ(pool_.in_use(), 0u);
}

TEST_F(OneSidedQueueTest, ATransferThatIsStoppedPostsNoMoreAndEndsWithWhatIsPosted) {
  const BufferView view = WholeView();
  Transfer& half = pool_.Take(Direction::kWrite, {&view, 1},
                              {.address = 0, .bytes = view.size(), .rkey = 9}, nullptr);
  queue_.Add(half);
  EXPECT_EQ(Post(7).second, 7u);
  queue_.Stop(half);
  EXPECT_FALSE(queue_.waiting());
  EXPECT_EQ(pool_.in_use(), 1u) << "the device is still at it";
  queue_.Completed(7);
  EXPECT_EQ(pool_.in_use(), 0u);
  Transfer& none = pool_.Take(Direction::kRead, {&view, 1},
                              {.address = 0, .bytes = view.size(), .rkey = 9}, nullptr);
  queue_.Add(none);
  queue_.Stop(none);
  EXPECT_FALSE(queue_.waiting());
  EXPECT_EQ(pool_.in_use(), 0u);
}

// siw 6.1 completes what is posted behind a READ before that.
TEST_F(OneSidedQueueTest, WhereCompletionsOvertakeReadsWhatIsPostedBehindThemIsFenced) {
  queue_.set_fences_reads(true);
  Add(Direction::kWrite, 50);
  EXPECT_EQ(queue_.Prepare(64), 1u);
  EXPECT_EQ(queue_.chain()->send_flags, static_cast<unsigned>(IBV_SEND_SIGNALED));
  queue_.Posted(posted_++);
  Add(Direction::kRead, 50);
  EXPECT_EQ(Post(64), (Posted{IBV_WR_RDMA_READ, 1}));
  EXPECT_EQ(queue_.fence(), static_cast<unsigned>(IBV_SEND_FENCE));
  Add(Direction::kWrite, 50);
  EXPECT_EQ(queue_.Prepare(64), 1u);
  EXPECT_EQ(queue_.chain()->send_flags, static_cast<unsigned>(IBV_SEND_SIGNALED | IBV_SEND_FENCE));
  queue_.Posted(posted_++);
  queue_.Completed(posted_);
  EXPECT_EQ(queue_.fence(), 0u);
}

TEST_F(OneSidedQueueTest, PositionsMayWrapAround) {
  posted_ = 0xffffffff;
  Add(Direction::kWrite, 250);
  EXPECT_EQ(Post(64).second, 3u);
  queue_.Completed(0xffffffff);
  EXPECT_EQ(pool_.in_use(), 1u);
  queue_.Completed(2);
  EXPECT_EQ(pool_.in_use(), 0u);
}

TEST_F(OneSidedQueueTest, ATransferHalfPostedEndsOnceWhenTheQueuePairIsGone) {
  Add(Direction::kWrite, 1000);
  EXPECT_EQ(Post(4).second, 4u);
  queue_.Fail(absl::UnavailableError("gone"));
  EXPECT_EQ(pool_.in_use(), 0u);
}

}  // namespace
}  // namespace verbena
