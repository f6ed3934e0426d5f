// Transfers are cut into WRs that move each byte once. Few bytes are in the send queue at a time,
// READs and atomics keep to their number, and each transfer ends exactly once.

#include "verbena/transport/link/transfers.h"

#include <gtest/gtest.h>

#include <vector>

#include "verbena/transport/link/limits.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {
namespace transfer_queue_test {

using Direction = Transfer::Direction;

// A queue without a queue pair, on memory without a device.
class TransferQueueTest : public testing::Test, private BlockOwner {
 protected:
  static constexpr uint32_t kSliceBytes = 100;
  static constexpr uint32_t kBytesAhead = 1000;

  TransferQueueTest() : block_(memory_, sizeof(memory_), region_, *this) {
    block_.Hold();
    buffer_ = Buffer(block_, sizeof(memory_));
  }
  ~TransferQueueTest() override { queue_.Fail(absl::CancelledError("the test ends")); }

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

  // Posts slices until `slots` WRs are used or nothing may go; returns how many WRs.
  uint32_t PostAll(uint32_t slots) {
    uint32_t total = 0;
    while (const uint32_t count = Post(slots - total).second) total += count;
    return total;
  }

  // Prepares and posts one slice; its opcode, and how many WRs.
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
  TransferQueue queue_{pool_,
                       {.send_queue_slots = 64,
                        .slice_bytes = kSliceBytes,
                        .bytes_ahead = kBytesAhead,
                        .max_reads = 4,
                        .words = {words_, /*lkey=*/5}}};

 private:
  void OnUnused(Block&) override {}

  char memory_[8192] = {};
  ibv_mr mr_ = {};
  MemoryRegion region_{"device", memory_, sizeof(memory_), &mr_, 0, nullptr};
  Block block_;
  Buffer buffer_;
};

using Posted = std::pair<ibv_wr_opcode, uint32_t>;

TEST_F(TransferQueueTest, ATransferIsCutIntoWrsThatCoverItOnce) {
  Add(Direction::kWrite, 250);
  uint64_t at = 1000;
  for (const uint32_t length : {100u, 100u, 50u}) {
    ASSERT_EQ(queue_.Prepare(64), 1u);
    EXPECT_EQ(queue_.prepared_bytes(), length);
    const ibv_send_wr& request = *queue_.chain();
    EXPECT_EQ(request.sg_list->length, length);
    EXPECT_EQ(request.wr.rdma.remote_addr, at);
    EXPECT_EQ(request.wr.rdma.rkey, 9u);
    EXPECT_EQ(request.send_flags, static_cast<unsigned>(IBV_SEND_SIGNALED));
    EXPECT_EQ(request.next, nullptr);
    at += length;
    queue_.Posted(posted_++);
  }
  EXPECT_FALSE(queue_.waiting());
}

TEST_F(TransferQueueTest, SmallPiecesShareASliceWhoseLastWrIsSignalled) {
  std::vector<BufferView> pieces;
  for (size_t at = 0; at < 150; at += 30) pieces.push_back(WholeView().Slice(at, 30));
  queue_.Add(
      pool_.Take(Direction::kWrite, pieces, {.address = 1000, .bytes = 150, .rkey = 9}, nullptr));
  // 30 + 30 + 30 + 10, then 20 + 30.
  ASSERT_EQ(queue_.Prepare(64), 4u);
  EXPECT_EQ(queue_.prepared_bytes(), kSliceBytes);
  const ibv_send_wr* request = queue_.chain();
  for (int i = 0; i < 4; ++i, request = request->next) {
    ASSERT_NE(request, nullptr);
    EXPECT_EQ(request->send_flags, i == 3 ? IBV_SEND_SIGNALED : 0u);
  }
  EXPECT_EQ(request, nullptr);
  queue_.Posted(3);
  EXPECT_EQ(queue_.Prepare(64), 2u);
  queue_.Posted(5);
}

// A SEND waits for what is in the send queue, so that is bounded, however much is to be moved.
TEST_F(TransferQueueTest, FewBytesAreInTheSendQueueHoweverManyWait) {
  for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
    queue_.set_max_reads(kMaxReads);
    for (int i = 0; i < 4; ++i) Add(direction, 1000);
    uint32_t total = 0;
    while (queue_.waiting()) {
      ASSERT_GT(PostAll(64), 0u);
      EXPECT_FALSE(queue_.CanGo());
      EXPECT_EQ(queue_.bytes_outstanding(), kBytesAhead);
      total += queue_.bytes_outstanding();
      queue_.Completed(posted_);
      EXPECT_EQ(queue_.bytes_outstanding(), 0u);
    }
    EXPECT_EQ(total, 4000u);
  }
}

// A device that waits for its next slice while the last one is confirmed would lose bandwidth.
TEST_F(TransferQueueTest, TheNextSliceGoesAsSoonAsOneHasEnded) {
  Add(Direction::kWrite, 3000);
  EXPECT_EQ(PostAll(64), 10u);
  queue_.Completed(1);
  EXPECT_TRUE(queue_.CanGo());
  EXPECT_EQ(PostAll(64), 1u);
  EXPECT_EQ(queue_.bytes_outstanding(), kBytesAhead);
}

TEST_F(TransferQueueTest, ReadsWaitForTheNumberThatMayBeOutstandingAndHoldUpNoWrite) {
  Add(Direction::kRead, 600);
  EXPECT_EQ(PostAll(64), 4u);
  EXPECT_FALSE(queue_.CanGo());
  EXPECT_EQ(Post(64).second, 0u);
  Add(Direction::kWrite, 50);
  EXPECT_TRUE(queue_.CanGo());
  EXPECT_EQ(Post(64), (Posted{IBV_WR_RDMA_WRITE, 1}));
  queue_.Completed(4);
  EXPECT_EQ(Post(64), (Posted{IBV_WR_RDMA_READ, 1}));
  EXPECT_EQ(PostAll(64), 1u);
  queue_.Completed(posted_);
  EXPECT_EQ(pool_.in_use(), 0u);
}

TEST_F(TransferQueueTest, WritesAndReadsTakeTurns) {
  for (int i = 0; i < 3; ++i) {
    Add(Direction::kWrite, 50);
    Add(Direction::kRead, 50);
  }
  std::vector<ibv_wr_opcode> order;
  for (int i = 0; i < 6; ++i) order.push_back(Post(64).first);
  for (int i = 1; i < 6; ++i) EXPECT_NE(order[i], order[i - 1]) << i;
}

TEST_F(TransferQueueTest, ALongTransferTakesNoMoreSlotsThanThereAre) {
  Add(Direction::kWrite, 1000);
  EXPECT_EQ(PostAll(7), 7u);
  EXPECT_EQ(Post(0).second, 0u);
  queue_.Completed(7);
  EXPECT_EQ(pool_.in_use(), 1u);
  EXPECT_EQ(PostAll(64), 3u);
  queue_.Completed(10);
  EXPECT_EQ(pool_.in_use(), 0u);
}

TEST_F(TransferQueueTest, ATransferThatIsStoppedPostsNoMoreAndEndsWithWhatIsPosted) {
  const BufferView view = WholeView();
  Transfer& half = pool_.Take(Direction::kWrite, {&view, 1},
                              {.address = 0, .bytes = view.size(), .rkey = 9}, nullptr);
  queue_.Add(half);
  EXPECT_EQ(PostAll(7), 7u);
  queue_.Abandon(half);
  EXPECT_FALSE(queue_.waiting());
  EXPECT_EQ(pool_.in_use(), 1u) << "the device is still at it";
  queue_.Completed(7);
  EXPECT_EQ(pool_.in_use(), 0u);
  Transfer& none = pool_.Take(Direction::kRead, {&view, 1},
                              {.address = 0, .bytes = view.size(), .rkey = 9}, nullptr);
  queue_.Add(none);
  queue_.Abandon(none);
  EXPECT_FALSE(queue_.waiting());
  EXPECT_EQ(pool_.in_use(), 0u);
}

// siw 6.1 completes WRs that are posted behind a READ before the READ.
TEST_F(TransferQueueTest, WrsBehindReadsAreFencedIfCompletionsOvertakeReads) {
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

TEST_F(TransferQueueTest, AnAtomicOperationIsOneWrWhoseResultItsListenerHears) {
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

TEST_F(TransferQueueTest, AtomicsCountAsReadsAndUseNoWordTwiceAtATime) {
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

// The READ's starter is about to tell the peer that it is done, though the READ may be on its way.
TEST_F(TransferQueueTest, WrsBehindAStoppedReadAreFencedUntilTheReadHasEnded) {
  const BufferView view = WholeView();
  Transfer& half = pool_.Take(Direction::kRead, {&view, 1},
                              {.address = 0, .bytes = view.size(), .rkey = 9}, nullptr);
  queue_.Add(half);
  Transfer& atomic = AddAtomic({});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Post(64).second, 1u);
  EXPECT_EQ(queue_.fence(), 0u);
  queue_.Abandon(half);
  EXPECT_EQ(queue_.fence(), static_cast<unsigned>(IBV_SEND_FENCE));
  EXPECT_EQ(Post(64).second, 1u);
  queue_.Abandon(atomic);
  queue_.Completed(3);
  EXPECT_EQ(queue_.fence(), static_cast<unsigned>(IBV_SEND_FENCE));
  queue_.Completed(posted_);
  EXPECT_EQ(queue_.fence(), 0u);
  // Neither of what was not begun, nor of WRITEs.
  queue_.Abandon(AddAtomic({}));
  Transfer& write = pool_.Take(Direction::kWrite, {&view, 1},
                               {.address = 0, .bytes = view.size(), .rkey = 9}, nullptr);
  queue_.Add(write);
  EXPECT_EQ(PostAll(3), 3u);
  queue_.Abandon(write);
  EXPECT_EQ(queue_.fence(), 0u);
  queue_.Completed(posted_);
  EXPECT_EQ(pool_.in_use(), 0u);
}

class TransferQueueDeathTest : public TransferQueueTest {};

TEST_F(TransferQueueDeathTest, ATransferThatIsNotAsLongAsItsRangeAborts) {
  const BufferView view = WholeView();
  EXPECT_DEATH(pool_.Take(Direction::kWrite, {&view, 1}, {.bytes = view.size() - 1}, nullptr),
               "local bytes 8192, remote bytes 8191");
  EXPECT_DEATH(pool_.Take(Direction::kRead, {}, {}, nullptr), "local bytes 0, remote bytes 0");
  EXPECT_DEATH(pool_.TakeAtomic({}, {.bytes = 16}, nullptr), "remote bytes 16");
}

TEST_F(TransferQueueDeathTest, AQueueWhoseTransfersHaveNotEndedIsNotDestroyed) {
  EXPECT_DEATH(
      {
        TransferQueue queue(pool_, {.send_queue_slots = 4,
                                    .slice_bytes = 8,
                                    .bytes_ahead = 8,
                                    .max_reads = 1,
                                    .words = {}});
        const BufferView view = WholeView();
        queue.Add(pool_.Take(Direction::kWrite, {&view, 1}, {.bytes = view.size()}, nullptr));
      },
      "waiting true");
}

TEST_F(TransferQueueDeathTest, BoundsThatNoSliceFitsAbort) {
  EXPECT_DEATH(
      TransferQueue(
          pool_,
          {.send_queue_slots = 4, .slice_bytes = 9, .bytes_ahead = 8, .max_reads = 1, .words = {}}),
      "slice_bytes 9, bytes_ahead 8");
}

TEST_F(TransferQueueTest, PositionsMayWrapAround) {
  posted_ = 0xffffffff;
  Add(Direction::kWrite, 250);
  EXPECT_EQ(PostAll(64), 3u);
  queue_.Completed(0xffffffff);
  EXPECT_EQ(pool_.in_use(), 1u);
  queue_.Completed(2);
  EXPECT_EQ(pool_.in_use(), 0u);
}

TEST_F(TransferQueueTest, ATransferHalfPostedEndsOnceWhenTheQueuePairIsGone) {
  Add(Direction::kWrite, 1000);
  EXPECT_EQ(PostAll(4), 4u);
  queue_.Fail(absl::UnavailableError("gone"));
  EXPECT_EQ(pool_.in_use(), 0u);
}

}  // namespace transfer_queue_test
}  // namespace verbena::internal
