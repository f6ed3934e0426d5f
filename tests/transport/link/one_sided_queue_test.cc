#include "verbena/transport/link/one_sided_queue.h"

#include <gtest/gtest.h>

#include <vector>

#include "verbena/transport/link/limits.h"
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

  Transfer& AddAtomic(const AtomicOperation& operation, TransferListener* listener = nullptr) {
    Transfer& transfer =
        pool_.TakeAtomic(operation, {.address = 1000, .bytes = 8, .rkey = 9}, listener);
    queue_.Add(transfer);
    return transfer;
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
  uint64_t words_[kMaxReads] = {};
  OneSidedQueue queue_{pool_,
                       {.send_queue_slots = 64,
                        .max_wr_bytes = kWrBytes,
                        .max_reads = 4,
                        .words = {words_, /*lkey=*/5}}};

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

TEST_F(OneSidedQueueTest, AnAtomicOperationIsOneWrWhoseResultItsListenerHears) {
  class Result final : public TransferListener {
   public:
    void OnAtomicResult(uint64_t found) override { before = found; }
    void OnTransferDone(const absl::Status& status) override { done = status.ok(); }
    uint64_t before = 0;
    bool done = false;
  };
  // More than there are words.
  for (uint64_t i = 0; i < 3 * kMaxReads; ++i) {
    Result result;
    AddAtomic({.kind = AtomicOperation::Kind::kCompareAndSwap, .operand = i, .swap = 7}, &result);
    ASSERT_EQ(queue_.Prepare(64), 1u);
    const ibv_send_wr& request = *queue_.chain();
    EXPECT_EQ(request.next, nullptr);
    EXPECT_EQ(request.opcode, IBV_WR_ATOMIC_CMP_AND_SWP);
    EXPECT_EQ(request.send_flags, static_cast<unsigned>(IBV_SEND_SIGNALED));
    EXPECT_EQ(request.wr.atomic.remote_addr, 1000u);
    EXPECT_EQ(request.wr.atomic.rkey, 9u);
    EXPECT_EQ(request.wr.atomic.compare_add, i);
    EXPECT_EQ(request.wr.atomic.swap, 7u);
    EXPECT_EQ(request.sg_list->length, 8u);
    EXPECT_EQ(request.sg_list->lkey, 5u);
    queue_.Posted(posted_++);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): verbs address memory by integers.
    *reinterpret_cast<uint64_t*>(request.sg_list->addr) = 100 + i;
    queue_.Completed(posted_);
    EXPECT_TRUE(result.done);
    EXPECT_EQ(result.before, 100 + i);
  }
  EXPECT_EQ(pool_.in_use(), 0u);
}

TEST_F(OneSidedQueueTest, AtomicsCountAsReadsAndUseNoWordTwiceAtATime) {
  Add(Direction::kRead, 50);
  for (int i = 0; i < 6; ++i) AddAtomic({.kind = AtomicOperation::Kind::kFetchAdd, .operand = 1});
  EXPECT_EQ(Post(64), (Posted{IBV_WR_RDMA_READ, 1}));
  std::vector<uint64_t> words;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Post(64), (Posted{IBV_WR_ATOMIC_FETCH_AND_ADD, 1}));
    words.push_back(queue_.chain()->sg_list->addr);
  }
  EXPECT_FALSE(queue_.CanGo());
  EXPECT_EQ(Post(64).second, 0u);
  EXPECT_NE(words[0], words[1]);
  EXPECT_NE(words[1], words[2]);
  EXPECT_NE(words[0], words[2]);
  queue_.Completed(1);
  EXPECT_EQ(Post(0).second, 0u) << "no room in the send queue";
  EXPECT_EQ(Post(64).second, 1u);
  EXPECT_EQ(Post(64).second, 0u);
  queue_.Completed(posted_);
  EXPECT_EQ(Post(64).second, 1u);
  EXPECT_EQ(Post(64).second, 1u);
  queue_.Completed(posted_);
  EXPECT_EQ(pool_.in_use(), 0u);
}

// Its starter is about to say that it is done, and a READ may still be on its way.
TEST_F(OneSidedQueueTest, WhatFollowsAStoppedReadIsFencedUntilThatHasEnded) {
  const BufferView view = WholeView();
  Transfer& half = pool_.Take(Direction::kRead, {&view, 1},
                              {.address = 0, .bytes = view.size(), .rkey = 9}, nullptr);
  queue_.Add(half);
  Transfer& atomic = AddAtomic({});
  EXPECT_EQ(Post(3).second, 3u);
  EXPECT_EQ(queue_.fence(), 0u);
  queue_.Stop(half);
  EXPECT_EQ(queue_.fence(), static_cast<unsigned>(IBV_SEND_FENCE));
  EXPECT_EQ(Post(64).second, 1u);
  queue_.Stop(atomic);
  queue_.Completed(3);
  EXPECT_EQ(queue_.fence(), static_cast<unsigned>(IBV_SEND_FENCE));
  queue_.Completed(posted_);
  EXPECT_EQ(queue_.fence(), 0u);
  // Neither of what was not begun, nor of WRITEs.
  queue_.Stop(AddAtomic({}));
  Transfer& write = pool_.Take(Direction::kWrite, {&view, 1},
                               {.address = 0, .bytes = view.size(), .rkey = 9}, nullptr);
  queue_.Add(write);
  EXPECT_EQ(Post(3).second, 3u);
  queue_.Stop(write);
  EXPECT_EQ(queue_.fence(), 0u);
  queue_.Completed(posted_);
  EXPECT_EQ(pool_.in_use(), 0u);
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
