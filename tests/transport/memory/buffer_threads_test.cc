// Buffers of an executor that are freed on other threads all come home, also while pool and
// executor go.

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/transport/memory/pinning_device.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/spawn.h"
#include "verbena/transport/memory/buffer_pool.h"
#include "verbena/transport/memory/registered_memory.h"

namespace verbena::internal {
namespace buffer_threads_test {

// Threads that free what they are given.
class Freers {
 public:
  explicit Freers(int count) {
    for (int i = 0; i < count; ++i) {
      threads_.emplace_back([this] {
        while (!ended_.load(std::memory_order_relaxed)) {
          Buffer buffer = Take();
          if (!buffer) std::this_thread::yield();
        }
      });
    }
  }
  ~Freers() {
    ended_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  void Give(Buffer buffer) {
    std::lock_guard<std::mutex> lock(mutex_);
    buffers_.push_back(std::move(buffer));
  }

 private:
  Buffer Take() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (buffers_.empty()) return {};
    Buffer buffer = std::move(buffers_.back());
    buffers_.pop_back();
    return buffer;
  }

  std::mutex mutex_;
  std::vector<Buffer> buffers_;
  std::atomic<bool> ended_{false};
  std::vector<std::thread> threads_;
};

Task<absl::Status> AllocateAndGiveAway(BufferPool& pool, Freers& freers, int count) {
  for (int i = 0; i < count; ++i) {
    absl::StatusOr<Buffer> buffer = co_await pool.Allocate(size_t{1} << (10 + i % 5));
    if (!buffer.ok()) co_return buffer.status();
    // Whoever had the memory before has let go of it.
    std::memset(buffer->data(), i, buffer->size());
    if (i % 3 != 0) freers.Give(*std::move(buffer));
  }
  co_return absl::OkStatus();
}

TEST(BufferThreadsTest, BuffersFreedElsewhereAllComeHomeAndWakeWhoWaits) {
  PinningDevice device;
  auto thread = ExecutorThread::Start({.mode = ExecutorMode::kEvent}).value();
  auto pool = BufferPool::Create(thread->executor(), device, nullptr,
                                 {.name = "test", .budget_bytes = 64 * 1024})
                  .value();
  {
    Freers freers(3);
    EXPECT_TRUE(BlockOn(thread->executor(), AllocateAndGiveAway(*pool, freers, 3000)).ok());
  }
  const auto whole = [](BufferPool& home) -> Task<absl::Status> {
    // Needs all of the budget, so that it waits for the last one.
    absl::StatusOr<Buffer> all = co_await home.Allocate(64 * 1024);
    EXPECT_EQ(home.stats().bytes_in_use, 64u * 1024);
    EXPECT_GT(home.stats().returns_from_afar, 0u);
    EXPECT_GT(home.stats().waits, 0u);
    co_return all.status();
  };
  EXPECT_TRUE(BlockOn(thread->executor(), whole(*pool)).ok());
  thread.reset();
  pool.reset();
  EXPECT_EQ(device.regions(), 0u);
}

TEST(BufferThreadsTest, APoolAndItsExecutorGoWhileTheLastBuffersComeHome) {
  for (int round = 0; round < 200; ++round) {
    PinningDevice device;
    auto thread = ExecutorThread::Start({.mode = ExecutorMode::kEvent}).value();
    auto pool = BufferPool::Create(thread->executor(), device, nullptr,
                                   {.name = "test", .budget_bytes = 64 * 1024})
                    .value();
    const auto take = [](BufferPool& home) -> Task<absl::StatusOr<Buffer>> {
      co_return co_await home.Allocate(1);
    };
    std::array<Buffer, 2> buffers;
    for (Buffer& buffer : buffers) buffer = BlockOn(thread->executor(), take(*pool)).value();
    std::thread other([&] { buffers[0].Reset(); });
    buffers[1].Reset();
    other.join();
    // On the executor's thread: it may or may not have had the news.
    const auto destroy = [](std::unique_ptr<BufferPool>& gone) -> Task<absl::Status> {
      gone.reset();
      co_return absl::OkStatus();
    };
    EXPECT_TRUE(BlockOn(thread->executor(), destroy(pool)).ok());
    EXPECT_EQ(device.regions(), 0u);
  }
}

TEST(BufferThreadsTest, APinAndItsBufferAreDroppedOnTwoThreadsAtOnce) {
  PinningDevice device;
  std::vector<char> memory(4096);
  auto registered =
      RegisteredMemory::Register(device, nullptr, memory.data(), memory.size(), 0).value();
  int released = 0;
  for (int round = 0; round < 2000; ++round) {
    Buffer buffer = registered->Wrap(0, 100, [&] { ++released; }).value();
    BufferPin pin(buffer.view());
    std::atomic<bool> go{false};
    std::thread other([&] {
      while (!go) {
      }
      pin.Reset();
    });
    go = true;
    buffer.Reset();
    other.join();
    ASSERT_EQ(released, round + 1);
  }
}

}  // namespace buffer_threads_test
}  // namespace verbena::internal
