// The fixture of the store's tests: a store in a directory of its own, on one executor. Each test
// is built twice, once for each backend of files: io_uring and threads.

#ifndef VERBENA_TESTS_EXAMPLES_BLOCK_STORE_STORE_FIXTURE_H_
#define VERBENA_TESTS_EXAMPLES_BLOCK_STORE_STORE_FIXTURE_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/block_store/limits.h"
#include "examples/block_store/volume_store.h"
#include "gtest/gtest.h"
#include "tests/transport/file/file_fixture.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/memory/buffer.h"

namespace block_store {

class StoreTest : public verbena::internal::FileTest {
 protected:
  void SetUp() override {
    verbena::internal::FileTest::SetUp();
    if (!IsSkipped()) Reopen();
  }
  void TearDown() override {
    store_.reset();
    verbena::internal::FileTest::TearDown();
  }

  absl::StatusOr<std::unique_ptr<VolumeStore>> OpenStore() {
    return VolumeStore::Open(directory_, {executor_.get()});
  }
  // Opens the store anew, as a restarted server does.
  void Reopen() {
    store_.reset();
    absl::StatusOr<std::unique_ptr<VolumeStore>> store = OpenStore();
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }

  // Runs one Task of the store.
  template <typename T>
  T Await(verbena::Task<T> task) {
    std::unique_ptr<T> result;
    Run([&]() -> verbena::Task<void> { result = std::make_unique<T>(co_await std::move(task)); });
    return *std::move(result);
  }

  absl::Status Create(const std::string& name, uint64_t blocks, bool reserve = false) {
    return Await(store_->Create(name, blocks, reserve));
  }
  absl::Status Write(const std::string& name, uint64_t offset, const std::string& data,
                     bool flush = false) {
    const verbena::Buffer buffer = TakeWith(data);
    return Await(store_->Write(name, offset, buffer.view(), flush));
  }
  absl::StatusOr<std::string> Read(const std::string& name, uint64_t offset, size_t bytes) {
    const verbena::Buffer buffer = Take(bytes);
    std::memset(buffer.data(), '#', bytes);
    absl::Status status = Await(store_->Read(name, offset, buffer.view()));
    if (!status.ok()) return status;
    return Text(buffer, bytes);
  }

  static std::string Blocks(size_t count, char c) { return std::string(count * kBlockBytes, c); }

  std::unique_ptr<VolumeStore> store_;
};

}  // namespace block_store

#endif  // VERBENA_TESTS_EXAMPLES_BLOCK_STORE_STORE_FIXTURE_H_
