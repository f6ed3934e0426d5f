// The fixture of the stores' tests: a runtime that runs a store's calls, and a directory. A test
// that is built with KV_TEST_ROCKSDB makes its stores on RocksDB, others in memory.

#ifndef VERBENA_TESTS_EXAMPLES_KV_STORE_FIXTURE_H_
#define VERBENA_TESTS_EXAMPLES_KV_STORE_FIXTURE_H_

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/kv/store.h"
#include "gtest/gtest.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/task.h"

#ifdef KV_TEST_ROCKSDB
#include "examples/kv/rocks_store.h"
#else
#include "examples/kv/memory_store.h"
#endif

namespace kv {

inline constexpr uint64_t kPlenty = 64 << 20;
inline constexpr int kExecutors = 2;

class StoreFixture : public testing::Test {
 protected:
  StoreFixture() {
    directory_ = testing::TempDir() + "/kv_XXXXXX";
    if (mkdtemp(directory_.data()) == nullptr) std::abort();
    runtime_ =
        verbena::Runtime::Start(
            {.executors = kExecutors, .mode = verbena::ExecutorMode::kEvent, .device = "soft"})
            .value();
  }
  ~StoreFixture() override {
    store_.reset();
    runtime_.reset();
    std::filesystem::remove_all(directory_);
  }

  // A new, empty store; not synced, since these tests cut no power.
  std::unique_ptr<Store> MakeStore() {
#ifdef KV_TEST_ROCKSDB
    const std::string path = directory_ + "/" + std::to_string(++made_);
    absl::StatusOr<std::unique_ptr<RocksStore>> store =
        RocksStore::Open({.directory = path, .durable = false});
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
#else
    return std::make_unique<MemoryStore>(kPlenty);
#endif
  }

  template <typename T>
  T Run(verbena::Task<T> task, int executor = 0) {
    return runtime_->BlockOn(std::move(task), executor);
  }

  absl::StatusOr<bool> Put(std::string_view key, std::string_view value) {
    return Run(store_->Put(key, value));
  }
  absl::StatusOr<std::string> Get(std::string_view key) {
    std::string value;
    absl::Status status = Run(store_->Get(key, value));
    if (!status.ok()) return status;
    return value;
  }
  absl::StatusOr<std::string> GetRecord(std::string_view id) {
    std::string bytes;
    absl::Status status = Run(store_->GetRecord(id, bytes));
    if (!status.ok()) return status;
    return bytes;
  }
  void PutAll(const std::vector<std::string>& keys) {
    for (const std::string& key : keys) ASSERT_TRUE(Put(key, "value").ok()) << key;
  }
  ScanPage Scan(std::string_view start_key, size_t max_bytes) {
    return Run(store_->Scan(start_key, max_bytes)).value();
  }
  // The keys of all pages, one after the other.
  std::vector<std::string> ScanAll(size_t max_bytes) {
    std::vector<std::string> keys;
    std::string next;
    do {
      ScanPage page = Scan(next, max_bytes);
      for (StoreEntry& entry : page.entries) keys.push_back(std::move(entry.key));
      next = page.next_key;
    } while (!next.empty());
    return keys;
  }

  std::string directory_;
  int made_ = 0;
  std::unique_ptr<verbena::Runtime> runtime_;
  std::unique_ptr<Store> store_;
};

inline std::vector<std::string> KeysOf(const ScanPage& page) {
  std::vector<std::string> keys;
  for (const StoreEntry& entry : page.entries) keys.push_back(entry.key);
  return keys;
}

}  // namespace kv

#endif  // VERBENA_TESTS_EXAMPLES_KV_STORE_FIXTURE_H_
