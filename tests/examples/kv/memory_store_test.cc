// A store in memory never exceeds its bound, counts it to the byte, and shows no half-written value
// to other threads.

#include "examples/kv/memory_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "examples/kv/limits.h"
#include "tests/examples/kv/store_fixture.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/task.h"

namespace kv {
namespace memory_store_test {

using ::testing::HasSubstr;
using verbena::Task;

class MemoryStoreTest : public StoreFixture {
 protected:
  void Make(uint64_t max_bytes) { store_ = std::make_unique<MemoryStore>(max_bytes); }
  uint64_t bytes() { return Run(store_->Stats())->bytes; }
};

TEST_F(MemoryStoreTest, MemoryIsCountedToTheByteAndNeverExceeded) {
  constexpr uint64_t kEntry = 1 + 10 + kEntryBytes;
  Make(2 * kEntry);
  ASSERT_TRUE(Put("a", "0123456789").ok());
  ASSERT_TRUE(Put("b", "0123456789").ok());
  EXPECT_EQ(bytes(), 2 * kEntry);

  const absl::Status refused = Put("c", "").status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_EQ(verbena::OutcomeOf(refused), verbena::Outcome::kNotExecuted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--max_bytes"));
  EXPECT_TRUE(absl::IsResourceExhausted(Put("a", "0123456789x").status()));
  EXPECT_EQ(*Get("a"), "0123456789") << "a refused Put must change nothing";

  ASSERT_TRUE(Put("a", "012345678").ok());
  ASSERT_TRUE(Put("b", "0123456789x").ok()) << "what one value gave back, another may take";
  EXPECT_TRUE(*Run(store_->Delete("a")));
  EXPECT_TRUE(*Run(store_->Delete("b")));
  EXPECT_EQ(bytes(), 0u);
}

TEST_F(MemoryStoreTest, RecordsCountAsEntriesDo) {
  constexpr uint64_t kEntry = 1 + 1 + kEntryBytes;
  Make(2 * kEntry);
  const StoreRecord record{.id = "i", .bytes = "r"};
  const StoreRecord larger{.id = "i", .bytes = "rr"};
  ASSERT_TRUE(
      Run(store_->Write({.key = "k", .value = "v", .records = absl::MakeConstSpan(&record, 1)}))
          .ok());
  EXPECT_EQ(bytes(), 2 * kEntry);
  EXPECT_TRUE(absl::IsResourceExhausted(
      Run(store_->Write({.key = "k", .value = "v", .records = absl::MakeConstSpan(&larger, 1)}))
          .status()));
  EXPECT_EQ(bytes(), 2 * kEntry) << "a refused write gives back what it had reserved";
  const StoreRecord removed{.id = "i", .bytes = {}};
  ASSERT_TRUE(Run(store_->Write({.key = "k", .records = absl::MakeConstSpan(&removed, 1)})).ok());
  EXPECT_EQ(bytes(), 0u);
}

TEST_F(MemoryStoreTest, AStoreThatIsFullStillDeletes) {
  Make(2 + kEntryBytes);
  ASSERT_TRUE(Put("k", "v").ok());
  const StoreRecord record{.id = "i", .bytes = "no", .bytes_if_existed = "y"};
  const StoreWrite remove{.key = "k", .records = absl::MakeConstSpan(&record, 1)};
  EXPECT_TRUE(*Run(store_->Write(remove)));
  EXPECT_EQ(*GetRecord("i"), "y");
  EXPECT_EQ(bytes(), 2 + kEntryBytes);
}

Task<void> PutAndGet(MemoryStore& store, int thread, std::atomic<int>& refused,
                     std::atomic<int>& wrong) {
  std::mt19937 random(static_cast<unsigned>(thread));
  std::string got;
  for (int i = 0; i < 2000; ++i) {
    const std::string key = "k" + std::string(1, static_cast<char>('0' + random() % 64));
    const std::string value(random() % 100, static_cast<char>('a' + thread));
    if (i % 4 == 3) (co_await store.Delete(key)).IgnoreError();
    if (absl::IsResourceExhausted((co_await store.Put(key, value)).status())) ++refused;
    if ((co_await store.Get(key, got)).ok() &&
        got.find_first_not_of(got.substr(0, 1)) != got.npos) {
      ++wrong;
    }
    if (i % 64 == 0) (co_await store.Scan("", 500)).IgnoreError();
    const StoreStats stats = (co_await store.Stats()).value();
    if (stats.bytes > stats.max_bytes) ++wrong;
  }
}

// Run under ThreadSanitizer, this also shows a lock that is missing.
TEST_F(MemoryStoreTest, ThreadsAtOnceNeverSeeAHalfAndNeverExceedTheMemory) {
  // Room for about half of what they try to store.
  auto memory = std::make_unique<MemoryStore>(32 * (2 + 50 + kEntryBytes));
  MemoryStore& store = *memory;
  store_ = std::move(memory);
  std::atomic<int> refused{0};
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kExecutors; ++t) {
    threads.emplace_back([&, t] { Run(PutAndGet(store, t, refused, wrong), t); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(refused, 0) << "the bound was never reached: the test shows nothing about it";
  uint64_t sum = 0;
  const ScanPage all = Scan("", kPlenty);
  for (const StoreEntry& entry : all.entries) {
    sum += entry.key.size() + entry.value.size() + kEntryBytes;
  }
  const StoreStats stats = Run(store_->Stats()).value();
  EXPECT_EQ(stats.bytes, sum);
  EXPECT_EQ(stats.keys, all.entries.size());
}

}  // namespace memory_store_test
}  // namespace kv
