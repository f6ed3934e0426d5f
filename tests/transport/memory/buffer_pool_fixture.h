// BufferPoolTest: a test's pool on a scheduler that the test drives, over a device that counts what
// is registered.

#ifndef VERBENA_TESTS_TRANSPORT_MEMORY_BUFFER_POOL_FIXTURE_H_
#define VERBENA_TESTS_TRANSPORT_MEMORY_BUFFER_POOL_FIXTURE_H_

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/support/manual_scheduler.h"
#include "tests/transport/coro/started.h"
#include "tests/transport/memory/pinning_device.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/memory/buffer_pool.h"

namespace verbena::internal {

inline constexpr size_t kKiB = 1024;
inline constexpr size_t kMiB = 1024 * kKiB;

inline Task<absl::StatusOr<Buffer>> Allocate(BufferPool& pool, size_t bytes) {
  co_return co_await pool.Allocate(bytes);
}

class BufferPoolTest : public testing::Test {
 protected:
  void Make(BufferPoolOptions options) {
    auto pool = BufferPool::Create(scheduler_, device_, nullptr, std::move(options));
    ASSERT_TRUE(pool.ok()) << pool.status();
    pool_ = *std::move(pool);
  }
  void MakeWithBudget(size_t bytes, size_t first_arena = 0) {
    Make({.name = "test", .budget_bytes = bytes, .first_arena_bytes = first_arena});
  }
  // Runs `f` as if on the scheduler's thread.
  template <typename F>
  void OnHome(F f) {
    scheduler_
        .Run([](F& body) -> Task<absl::Status> {
          body();
          co_return absl::OkStatus();
        }(f))
        .IgnoreError();
  }
  Buffer Take(size_t bytes) {
    absl::StatusOr<Buffer> buffer = pool_->TryAllocate(bytes);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    return buffer.ok() ? *std::move(buffer) : Buffer();
  }
  void Free(Buffer& buffer) {
    OnHome([&] { buffer.Reset(); });
  }
  using Waiting = Started<absl::StatusOr<Buffer>>;

  ManualScheduler scheduler_;
  PinningDevice device_;
  std::unique_ptr<BufferPool> pool_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_TRANSPORT_MEMORY_BUFFER_POOL_FIXTURE_H_
