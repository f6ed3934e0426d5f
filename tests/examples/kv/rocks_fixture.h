// The fixture of the tests of RocksStore: a store on a CutFileSystem, in a directory that outlives
// it. Small write buffers, so that RocksDB sorts and merges files within a test.

#ifndef VERBENA_TESTS_EXAMPLES_KV_ROCKS_FIXTURE_H_
#define VERBENA_TESTS_EXAMPLES_KV_ROCKS_FIXTURE_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "examples/kv/rocks_store.h"
#include "gtest/gtest.h"
#include "rocksdb/env.h"
#include "tests/examples/kv/cut_file_system.h"
#include "tests/examples/kv/store_fixture.h"

namespace kv {

class RocksFixture : public StoreFixture {
 protected:
  RocksFixture() : path_(directory_ + "/store") {}
  ~RocksFixture() override { store_.reset(); }

  absl::StatusOr<std::unique_ptr<RocksStore>> OpenAt(const std::string& path, bool durable = true,
                                                     bool ends_at_failure = false) {
    return RocksStore::Open({.directory = path,
                             .durable = durable,
                             .ends_at_failure = ends_at_failure,
                             .write_buffer_bytes = write_buffer_bytes_,
                             .cache_bytes = size_t{1} << 20,
                             .env = env_.get()});
  }
  // Closes the store, if it is open, and opens it again.
  void Reopen(bool durable = true, bool ends_at_failure = false) {
    store_.reset();
    absl::StatusOr<std::unique_ptr<RocksStore>> store = OpenAt(path_, durable, ends_at_failure);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }

  const std::shared_ptr<CutFileSystem> files_ = std::make_shared<CutFileSystem>();
  const std::unique_ptr<rocksdb::Env> env_ = rocksdb::NewCompositeEnv(files_);
  std::string path_;
  size_t write_buffer_bytes_ = size_t{64} << 10;
};

}  // namespace kv

#endif  // VERBENA_TESTS_EXAMPLES_KV_ROCKS_FIXTURE_H_
