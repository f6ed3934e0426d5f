// RocksStore: a Store on RocksDB, in a directory, with group commit.
//
// A thread of its own (GroupCommit) stores writes in batches: one WriteBatch, and one sync if
// `durable`, for all writes that wait. A durable store acknowledges a write only after that sync,
// so an acknowledged write survives a kill and a power cut. Without `durable`, the kernel has an
// acknowledged write, which survives a kill alone. Watchers and readers see a change once it is
// stored as well as the store promises. The thread also looks whether the keys of a batch exist, so
// a batch of keys that lie on the disk waits for these reads. A write whose key cannot be read, as
// in a damaged file, fails alone.
//
// A Get that memory answers runs on the executor, and never waits for the disk. All else that may
// read the disk runs on the threads of RunBlocking().
//
// After a write that failed, the next batch first asks RocksDB to go on (Resume()) if the disk has
// room for what RocksDB holds in memory. So writes go on once a full disk has room again. After
// other failures of the disk, and if the failed write was the first to a file of RocksDB's log,
// writes keep failing until the store is opened anew. Reads go on. With `ends_at_failure` nothing
// of its batch is stored beside a write that fails, and no batch follows: the disk then has all
// writes up to a certain one, and none behind it, as a log needs.
//
// A store whose log has lost synced writes is not opened (log_check.h).
//
// One process opens a directory at a time. RocksDB keeps its log beside the data, as LOG.
//
//   absl::StatusOr<std::unique_ptr<RocksStore>> store = RocksStore::Open({.directory = "/var/kv"});

#ifndef VERBENA_EXAMPLES_KV_ROCKS_STORE_H_
#define VERBENA_EXAMPLES_KV_ROCKS_STORE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "examples/kv/group_commit.h"
#include "examples/kv/store.h"
#include "examples/kv/synced_mark.h"
#include "verbena/rpc/task.h"

namespace rocksdb {
class ColumnFamilyHandle;
class DB;
class Env;
class PinnableSlice;
class Status;
class WalFilter;
class WriteBatch;
}  // namespace rocksdb

namespace kv {

struct RocksOptions {
  // Made and its name synced if it does not exist; the directory that it lies in must.
  std::string directory;
  // True: each batch is synced before it is acknowledged.
  bool durable = true;
  // True: after a write that failed the store takes no more, until it is opened anew.
  bool ends_at_failure = false;
  // Memory for writes before RocksDB sorts them into a file, at least 64 KiB: twice for the data
  // and twice for the records.
  size_t write_buffer_bytes = size_t{64} << 20;
  // Memory for blocks that were read.
  size_t cache_bytes = size_t{64} << 20;
  // For tests: the files. Not owned; must outlive the store. nullptr: the machine's.
  rocksdb::Env* env = nullptr;
};

class RocksStore final : public Store, private BatchEngine {
 public:
  // Opens the database, or makes a new one. Blocks, so call it before there are calls. Errors name
  // the directory (rocks_status.h). DATA_LOSS: its files or its log are damaged, or its CURRENT is
  // missing. NOT_FOUND: the directory that it lies in is. FAILED_PRECONDITION also if the directory
  // has files but no database.
  static absl::StatusOr<std::unique_ptr<RocksStore>> Open(RocksOptions options);
  // Stores the writes that wait.
  ~RocksStore() override;

  std::string description() const override;
  verbena::Task<absl::StatusOr<bool>> Write(StoreWrite write) override;
  verbena::Task<absl::Status> Get(std::string_view key, std::string& value) override;
  verbena::Task<absl::StatusOr<ScanPage>> Scan(std::string_view start_key,
                                               size_t max_bytes) override;
  verbena::Task<absl::Status> GetRecord(std::string_view id, std::string& bytes) override;
  verbena::Task<absl::StatusOr<ScanPage>> ScanRecords(std::string_view start_id,
                                                      size_t max_bytes) override;
  verbena::Task<absl::StatusOr<StoreStats>> Stats() override;

 private:
  // Whether keys that a batch has written so far have a value.
  using BatchKeys = absl::flat_hash_map<std::string_view, bool>;
  // Calls since the store was opened.
  struct Counts {
    std::atomic<uint64_t> puts{0};
    std::atomic<uint64_t> gets{0};
    std::atomic<uint64_t> misses{0};
    std::atomic<uint64_t> deletes{0};
    std::atomic<uint64_t> scans{0};
  };

  explicit RocksStore(RocksOptions options);
  absl::Status OpenDatabase();
  absl::Status StoreBatch(absl::Span<PendingWrite* const> batch) override;
  absl::Status StoreAll(absl::Span<PendingWrite* const> batch);
  absl::Status AddToBatch(const PendingWrite& pending, BatchKeys& keys,
                          rocksdb::WriteBatch& changes);
  absl::StatusOr<bool> HasValue(std::string_view key, const BatchKeys& keys);
  absl::Status WriteDown(rocksdb::WriteBatch& changes, size_t writes);
  // After a write that failed.
  absl::Status GoOn(std::string_view what);
  verbena::Task<absl::Status> Find(rocksdb::ColumnFamilyHandle* family, std::string_view key,
                                   std::string& value);
  absl::StatusOr<ScanPage> ReadPage(rocksdb::ColumnFamilyHandle* family, std::string_view start_key,
                                    size_t max_bytes);
  uint64_t Property(rocksdb::ColumnFamilyHandle* family, const std::string& name) const;
  absl::Status Failed(const rocksdb::Status& status, std::string_view what) const;

  const RocksOptions options_;
  const std::unique_ptr<rocksdb::WalFilter> replay_;  // outlives db_
  std::unique_ptr<rocksdb::DB> db_;
  std::unique_ptr<SyncedMark> synced_;  // the committer's thread, once the store is open
  // Owned; given back to db_ before that is destroyed.
  rocksdb::ColumnFamilyHandle* data_ = nullptr;
  rocksdb::ColumnFamilyHandle* records_ = nullptr;
  Counts counts_;
  bool write_failed_ = false;           // the committer's thread
  bool ended_ = false;                  // the committer's thread; by `ends_at_failure`
  std::optional<GroupCommit> commits_;  // while the store is open
};

}  // namespace kv

#endif  // VERBENA_EXAMPLES_KV_ROCKS_STORE_H_
