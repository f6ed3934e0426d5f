// Buffers, views and pins keep their memory as long as one of them exists, and reach nothing beyond
// it. The memory is a pool's or a user's.

#include "verbena/transport/memory/buffer.h"

#include <infiniband/verbs.h>

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/manual_scheduler.h"
#include "tests/transport/memory/pinning_device.h"
#include "verbena/transport/memory/buffer_pool.h"
#include "verbena/transport/memory/registered_memory.h"

namespace verbena::internal {
namespace buffer_test {

using absl::StatusCode;

class BufferTest : public testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(InUse(), 0u); }
  Buffer Take(size_t bytes) { return pool_->TryAllocate(bytes).value(); }
  size_t InUse() {
    scheduler_.RunUntilIdle();
    return pool_->stats().bytes_in_use;
  }

  PinningDevice device_;
  ManualScheduler scheduler_;
  std::unique_ptr<BufferPool> pool_ =
      BufferPool::Create(scheduler_, device_, nullptr, {.name = "test"}).value();
};

TEST_F(BufferTest, AnEmptyBufferIsNothing) {
  Buffer empty;
  EXPECT_FALSE(empty);
  EXPECT_EQ(empty.data(), nullptr);
  EXPECT_EQ(empty.size(), 0u);
  EXPECT_EQ(empty.capacity(), 0u);
  EXPECT_TRUE(empty.view().empty());
  EXPECT_FALSE(empty.view().registered());
  BufferPin nothing(empty.view());
  empty.Reset();
}

TEST_F(BufferTest, MovingHandsTheMemoryOn) {
  Buffer first = Take(100);
  char* data = first.data();
  Buffer second = std::move(first);
  // Nothing is left. NOLINTBEGIN(bugprone-use-after-move,clang-analyzer-cplusplus.Move)
  EXPECT_FALSE(first);
  EXPECT_EQ(first.size(), 0u);
  // NOLINTEND(bugprone-use-after-move,clang-analyzer-cplusplus.Move)
  EXPECT_EQ(second.data(), data);
  Buffer third = Take(100);
  third = std::move(second);
  EXPECT_EQ(third.data(), data);
  EXPECT_EQ(InUse(), 4096u);
  Buffer& same = third;
  third = std::move(same);
  EXPECT_EQ(third.data(), data);
  third.Reset();
  EXPECT_EQ(InUse(), 0u);
}

TEST_F(BufferTest, AViewIsAPartWithItsKey) {
  Buffer buffer = Take(1000);
  const BufferView part = buffer.Slice(100, 300).Slice(10, 20);
  EXPECT_EQ(part.data(), buffer.data() + 110);
  EXPECT_EQ(part.size(), 20u);
  EXPECT_EQ(part.lkey(), buffer.lkey());
  EXPECT_EQ(&part.region(), &buffer.region());
  EXPECT_TRUE(buffer.Slice(1000, 0).empty());
}

TEST_F(BufferTest, APinKeepsTheMemoryWhenTheBufferGoes) {
  Buffer buffer = Take(100);
  char* data = buffer.data();
  BufferPin first(buffer.Slice(0, 10));
  BufferPin second(buffer.view());
  buffer.Reset();
  data[50] = 1;
  EXPECT_EQ(InUse(), 4096u);
  BufferPin moved = std::move(first);
  second = BufferPin();
  EXPECT_EQ(InUse(), 4096u);
  moved.Reset();
  EXPECT_EQ(InUse(), 0u);
}

TEST_F(BufferTest, ABufferOutlivesItsPins) {
  Buffer buffer = Take(100);
  {
    const BufferPin pin(buffer.view());
  }
  EXPECT_EQ(InUse(), 4096u);
  buffer.data()[0] = 1;
  buffer.Reset();
  EXPECT_EQ(InUse(), 0u);
}

// --- RegisteredMemory ----------------------------------------------------------------------------

class RegisteredMemoryTest : public testing::Test {
 protected:
  PinningDevice device_;
  std::vector<char> memory_ = std::vector<char>(10000);
  std::unique_ptr<RegisteredMemory> registered_ =
      RegisteredMemory::Register(device_, nullptr, memory_.data(), memory_.size(), 0).value();
};

TEST_F(RegisteredMemoryTest, AUsersMemoryIsWrappedAndReleased) {
  int released = 0;
  Buffer buffer = registered_->Wrap(10, 500, [&] { ++released; }).value();
  EXPECT_EQ(buffer.data(), memory_.data() + 10);
  EXPECT_EQ(buffer.size(), 500u);
  EXPECT_EQ(buffer.capacity(), 500u);
  EXPECT_EQ(buffer.lkey(), registered_->region().lkey());
  BufferPin pin(buffer.view());
  buffer.Reset();
  EXPECT_EQ(released, 0) << "an operation is still at it";
  EXPECT_EQ(registered_->in_use(), 1u);
  pin.Reset();
  EXPECT_EQ(released, 1);
  EXPECT_EQ(registered_->in_use(), 0u);
}

TEST_F(RegisteredMemoryTest, PartsMayOverlapAndAreReusable) {
  int released = 0;
  for (int i = 0; i < 3; ++i) {
    Buffer whole = registered_->Wrap(0, memory_.size(), [&] { ++released; }).value();
    Buffer nobody_asks = registered_->Wrap(0, 1).value();
    Buffer none = registered_->Wrap(memory_.size(), 0).value();
    EXPECT_EQ(registered_->in_use(), 3u);
  }
  EXPECT_EQ(released, 3);
}

TEST_F(RegisteredMemoryTest, ARangeBeyondTheMemoryIsRefused) {
  EXPECT_EQ(registered_->Wrap(0, memory_.size() + 1).status().code(), StatusCode::kOutOfRange);
  EXPECT_EQ(registered_->Wrap(memory_.size() + 1, 0).status().code(), StatusCode::kOutOfRange);
  EXPECT_EQ(registered_->Wrap(1, ~size_t{0}).status().code(), StatusCode::kOutOfRange);
  EXPECT_EQ(registered_->in_use(), 0u);
}

TEST_F(RegisteredMemoryTest, TheDevicesRefusalIsReturned) {
  device_.limit = device_.pinned();
  EXPECT_EQ(RegisteredMemory::Register(device_, nullptr, memory_.data(), 100, 0).status().code(),
            StatusCode::kResourceExhausted);
}

using BufferDeathTest = RegisteredMemoryTest;

TEST_F(BufferDeathTest, APartBeyondABufferEndsTheProcessWithTheNumbers) {
  const Buffer buffer = registered_->Wrap(0, 100).value();
  EXPECT_DEATH(buffer.Slice(90, 11), "\\[90, \\+11\\) of 100 bytes");
  EXPECT_DEATH(buffer.Slice(101, 0), "\\[101, \\+0\\) of 100 bytes");
  EXPECT_DEATH(buffer.Slice(1, ~size_t{0}), "of 100 bytes");
  EXPECT_EQ(buffer.Slice(90, 10).size(), 10u);
}

TEST_F(BufferDeathTest, ASizeBeyondABuffersMemoryEndsTheProcess) {
  Buffer buffer = registered_->Wrap(0, 100).value();
  EXPECT_DEATH(buffer.set_size(101), "bytes <= capacity\\(\\).*101 of 100 bytes");
}

TEST_F(BufferDeathTest, KeysOfNoMemoryEndTheProcess) {
  EXPECT_DEATH(BufferView().lkey(), "a view of no Buffer has no registered memory");
  EXPECT_DEATH(Buffer().region(), "a view of no Buffer has no registered memory");
}

TEST_F(RegisteredMemoryTest, IsDeregisteredWithItsOwner) {
  registered_.reset();
  EXPECT_EQ(device_.regions(), 0u);
}

}  // namespace buffer_test
}  // namespace verbena::internal
