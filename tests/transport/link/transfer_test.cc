// Payloads between two ends of a link arrive whole and ahead of the frames behind them, and their
// memory goes home once the device is done with it.

#include "verbena/transport/link/transfers.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tests/transport/link/links_fixture.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/executor/spawn.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/one_sided_awaits.h"
#include "verbena/transport/memory/buffer_pool.h"

namespace verbena::internal {
namespace transfer_test {

using Direction = Transfer::Direction;

void Fill(const Buffer& buffer, uint32_t seed) {
  for (size_t i = 0; i < buffer.size(); ++i) {
    buffer.data()[i] = static_cast<char>((i * 2654435761u + seed) >> 13);
  }
}

bool Same(const Buffer& a, const Buffer& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

RemoteRange RangeOf(const Buffer& buffer) {
  return {reinterpret_cast<uintptr_t>(buffer.data()), buffer.size(), buffer.region().rkey()};
}

class TransferResult final : public TransferListener {
 public:
  void OnTransferPosted() override {
    EXPECT_FALSE(posted_ || status_.has_value());
    posted_ = true;
    if (on_posted) on_posted();
  }
  void OnTransferDone(const absl::Status& status) override {
    EXPECT_FALSE(status_.has_value()) << "ended twice";
    status_ = status;
  }
  bool posted() const { return posted_; }
  bool done() const { return status_.has_value(); }
  absl::Status status() const { return status_.value_or(absl::UnknownError("not ended")); }

  std::function<void()> on_posted;

 private:
  bool posted_ = false;
  std::optional<absl::Status> status_;
};

// Compares two buffers when a frame arrives.
class CompareOnFrame final : public LinkListener {
 public:
  absl::Status OnFrame(Link&, const FrameHeader&, const char*) override {
    EXPECT_TRUE(Same(*expected, *landed));
    ++frames;
    return absl::OkStatus();
  }
  void OnLinkDown(Link&, const absl::Status&) override {}
  bool ExpectsFrames() const override { return false; }

  const Buffer* expected = nullptr;
  const Buffer* landed = nullptr;
  int frames = 0;
};

class TransferTest : public LinksFixture {
 protected:
  void SetUp() override {
    Start({}, {});
    private_ = NewPool("private", 0, false);
    exposed_ = NewPool("exposed", IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ, true);
  }

  void TearDown() override {
    LinksFixture::TearDown();
    EXPECT_EQ(client().supplies().transfers().in_use(), 0u);
    EXPECT_EQ(private_->stats().bytes_in_use, 0u);
    EXPECT_EQ(exposed_->stats().bytes_in_use, 0u);
    private_.reset();
    exposed_.reset();
  }

  std::unique_ptr<BufferPool> NewPool(const char* name, int access, bool exposed) {
    absl::StatusOr<std::unique_ptr<BufferPool>> pool = BufferPool::Create(
        executor(), device_context().device(), device_context().pd(),
        {.name = name, .access = IBV_ACCESS_LOCAL_WRITE | access, .exposed = exposed});
    EXPECT_TRUE(pool.ok()) << pool.status();
    return *std::move(pool);
  }

  Buffer Local(size_t bytes, uint32_t seed) { return Filled(*private_, bytes, seed); }
  Buffer Remote(size_t bytes, uint32_t seed) { return Filled(*exposed_, bytes, seed); }

  std::unique_ptr<BufferPool> private_;
  std::unique_ptr<BufferPool> exposed_;
  // They outlive the links, which TearDown() ends.
  Receiver ignored_;
  Receiver received_;
  CompareOnFrame compared_;

 private:
  static Buffer Filled(BufferPool& pool, size_t bytes, uint32_t seed) {
    Buffer buffer = *pool.TryAllocate(bytes);
    Fill(buffer, seed);
    return buffer;
  }
};

TEST_F(TransferTest, AFrameAppendedWhenAWriteIsPostedArrivesBehindItsBytes) {
  CompareOnFrame& listener = compared_;
  Link* link = Connect(ignored_, listener);
  ASSERT_NE(link, nullptr);
  for (const size_t bytes : {1u, 4096u, 100'000u, 5u << 20}) {
    Buffer source = Local(bytes, 1);
    Buffer target = Remote(bytes, 2);
    listener.expected = &source;
    listener.landed = &target;
    TransferResult outcome;
    outcome.on_posted = [link] { EXPECT_NE(link->Append({}, 0), nullptr); };
    const int frames = listener.frames;
    const BufferView view = source.view();
    link->StartTransfer(Direction::kWrite, {&view, 1}, RangeOf(target), &outcome);
    PollUntil([&] { return outcome.done() && listener.frames > frames; });
    EXPECT_TRUE(outcome.status().ok()) << outcome.status();
  }
}

// The memory is the caller's when the await has ended, also by cancellation.
TEST_F(TransferTest, ACancelledAwaitPostsNoMoreAndWaitsForWhatIsPosted) {
  Link* link = Connect(ignored_, ignored_);
  ASSERT_NE(link, nullptr);
  // More than can be outstanding.
  const size_t kLargeBytes = 4 * size_t{client().limits().bulk.bytes_ahead};
  Buffer target = Local(kLargeBytes, 1);
  Buffer source = Remote(kLargeBytes, 2);
  for (const bool posted : {false, true}) {
    CancelScope scope;
    std::optional<absl::Status> ended;
    size_t left = ~size_t{0};
    auto read = [&]() -> Task<absl::Status> {
      co_return co_await TransferAwaiter(*link, Direction::kRead, target.view(), RangeOf(source));
    };
    auto run = [&]() -> Task<void> {
      ended = co_await read().In(&scope);
      left = client().supplies().transfers().in_use();
    };
    auto cancel = [&]() -> Task<void> {
      scope.Request();
      co_return;
    };
    const uint64_t doorbells = link->stats().doorbells;
    Spawn(executor(), run());
    if (posted) {
      PollUntil([&] { return link->stats().doorbells > doorbells; });
      // Between two turns, before the completions are seen.
      scope.Request();
    } else {
      Spawn(executor(), cancel());
    }
    PollUntil([&] { return ended.has_value(); });
    EXPECT_EQ(link->stats().doorbells > doorbells, posted);
    EXPECT_TRUE(absl::IsCancelled(*ended)) << *ended;
    EXPECT_EQ(left, 0u);
    EXPECT_TRUE(link->open());
  }
}

TEST_F(TransferTest, PiecesAreGatheredInTheirOrder) {
  Link* link = Connect(ignored_, ignored_);
  ASSERT_NE(link, nullptr);
  constexpr size_t kPieces = 100;  // more than a chain holds
  Buffer source = Local(kPieces * 700, 3);
  Buffer target = Remote(source.size(), 4);
  std::vector<BufferView> pieces;
  for (size_t i = 0; i < kPieces; ++i) pieces.push_back(source.Slice(i * 700, 700));
  pieces.insert(pieces.begin() + 7, BufferView());
  TransferResult outcome;
  link->StartTransfer(Direction::kWrite, pieces, RangeOf(target), &outcome);
  PollUntil([&] { return outcome.done(); });
  EXPECT_TRUE(Same(source, target));
}

TEST_F(TransferTest, AReadBringsEveryByteThoughItNeedsMoreWrsThanMayBeOutstanding) {
  Link* link = Connect(ignored_, ignored_);
  ASSERT_NE(link, nullptr);
  ASSERT_GT(link->max_reads(), 0u);
  Buffer target = Local((link->max_reads() + 3) * 700, 5);
  Buffer source = Remote(target.size(), 6);
  std::vector<BufferView> pieces;
  for (size_t at = 0; at < target.size(); at += 700) pieces.push_back(target.Slice(at, 700));
  TransferResult outcome;
  link->StartTransfer(Direction::kRead, pieces, RangeOf(source), &outcome);
  PollUntil([&] { return outcome.done(); });
  EXPECT_TRUE(outcome.status().ok()) << outcome.status();
  EXPECT_TRUE(Same(source, target));
}

TEST_F(TransferTest, MoreTransfersThanTheSendQueueHoldsAllArriveAndFramesGoOnBetweenThem) {
  Link* link = Connect(ignored_, received_);
  ASSERT_NE(link, nullptr);
  Flood flood(500, 100);
  std::deque<TransferResult> outcomes(300);
  std::vector<Buffer> sources;
  std::vector<Buffer> targets;
  for (uint32_t i = 0; i < outcomes.size(); ++i) {
    const bool write = i % 3 != 0;
    Buffer local = Local(5000, i);
    Buffer remote = Remote(5000, ~i);
    const BufferView view = local.view();
    link->StartTransfer(write ? Direction::kWrite : Direction::kRead, {&view, 1}, RangeOf(remote),
                        &outcomes[i]);
    if (!write) std::swap(local, remote);
    sources.push_back(std::move(local));
    targets.push_back(std::move(remote));
  }
  flood.Run(*link);
  PollUntil([&] {
    return outcomes.back().done() && outcomes[297].done() && received_.received() == 500;
  });
  for (uint32_t i = 0; i < outcomes.size(); ++i) {
    EXPECT_TRUE(outcomes[i].status().ok()) << i << outcomes[i].status();
    EXPECT_TRUE(Same(sources[i], targets[i])) << i;
  }
}

TEST_F(TransferTest, MemoryGoesHomeOnlyWhenTheDeviceIsDoneWithIt) {
  Link* link = Connect(ignored_, ignored_);
  ASSERT_NE(link, nullptr);
  Buffer target = Remote(1 << 20, 7);
  TransferResult outcome;
  {
    Buffer source = Local(1 << 20, 8);
    const BufferView view = source.view();
    link->StartTransfer(Direction::kWrite, {&view, 1}, RangeOf(target), &outcome);
  }
  EXPECT_EQ(private_->stats().bytes_in_use, size_t{1} << 20);
  PollUntil([&] { return outcome.done(); });
  EXPECT_EQ(private_->stats().bytes_in_use, 0u);
  Buffer expected = Local(1 << 20, 8);
  EXPECT_TRUE(Same(expected, target));
}

TEST_F(TransferTest, AnAbandonedTransferIsHeardOfNoMoreAndGoesOn) {
  Link* link = Connect(ignored_, ignored_);
  ASSERT_NE(link, nullptr);
  Buffer source = Local(4096, 9);
  Buffer target = Remote(4096, 10);
  {
    TransferResult outcome;
    const BufferView view = source.view();
    link->StartTransfer(Direction::kWrite, {&view, 1}, RangeOf(target), &outcome).Abandon();
  }
  PollUntil([&] { return client().supplies().transfers().in_use() == 0; });
  EXPECT_TRUE(Same(source, target));
}

TEST_F(TransferTest, TransfersOfALinkThatClosesEndWhenItsQueuePairIsGone) {
  Link* link = Connect(ignored_, ignored_);
  ASSERT_NE(link, nullptr);
  Buffer source = Local(1 << 20, 11);
  Buffer target = Remote(1 << 20, 12);
  const BufferView view = source.view();
  std::deque<TransferResult> outcomes(200);
  for (size_t i = 0; i < outcomes.size(); ++i) {
    link->StartTransfer(i % 2 == 0 ? Direction::kWrite : Direction::kRead, {&view, 1},
                        RangeOf(target), &outcomes[i]);
  }
  executor().Poll();
  link->Close(absl::CancelledError("the test closes it"));
  WaitUntilNoLinks();
  int lost = 0;
  for (const TransferResult& outcome : outcomes) {
    ASSERT_TRUE(outcome.done());
    if (!outcome.status().ok()) ++lost;
    if (!outcome.status().ok()) {
      EXPECT_TRUE(absl::IsUnavailable(outcome.status()));
    }
  }
  EXPECT_GT(lost, 0);
}

TEST_F(TransferTest, AKeyThatThePeerDidNotGiveEndsTheLinkAndHarmsNothing) {
  Link* link = Connect(received_, ignored_);
  ASSERT_NE(link, nullptr);
  Buffer source = Local(4096, 13);
  Buffer target = Remote(4096, 14);
  RemoteRange range = RangeOf(target);
  range.rkey ^= 0x55;
  TransferResult outcome;
  const BufferView view = source.view();
  link->StartTransfer(Direction::kWrite, {&view, 1}, range, &outcome);
  WaitUntilNoLinks();
  EXPECT_TRUE(absl::IsUnavailable(outcome.status())) << outcome.status();
  EXPECT_FALSE(received_.reason().ok());
  Buffer untouched = Remote(4096, 14);
  EXPECT_TRUE(Same(untouched, target));
}

}  // namespace transfer_test
}  // namespace verbena::internal
