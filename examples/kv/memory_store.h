// MemoryStore: a Store in memory, bounded, whose calls never suspend.
//
// Handlers on several executors use one store at once. The keys' hash divides it into shards, each
// a std::map under its own std::mutex. A call holds the mutex for one look-up and a copy of one
// value; a scan, for a copy of a page. So a handler may wait that long for another executor, but
// rarely does. If each executor had a part of its own, no locks would be needed, but most calls
// would go to another executor and back. That costs far more than a lock that is seldom contended.
// A scan visits the shards one after the other and merges their entries.
//
// Memory: the sum of all keys and values, records included, and of kEntryBytes for each, never
// exceeds max_bytes. A write beyond that is RESOURCE_EXHAUSTED, and changes nothing. All is lost
// with the process.
//
//   kv::MemoryStore store(64 << 20);
//   absl::StatusOr<bool> created = co_await store.Put("key", "value");

#ifndef VERBENA_EXAMPLES_KV_MEMORY_STORE_H_
#define VERBENA_EXAMPLES_KV_MEMORY_STORE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "examples/kv/store.h"
#include "verbena/rpc/task.h"

namespace kv {

class MemoryStore final : public Store {
 public:
  explicit MemoryStore(uint64_t max_bytes) : max_bytes_(max_bytes) {}
  MemoryStore(const MemoryStore&) = delete;
  MemoryStore& operator=(const MemoryStore&) = delete;

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
  using Map = std::map<std::string, std::string, std::less<>>;

  // Aligned to a cache line, so that the locks of neighbours do not disturb each other.
  struct alignas(64) Shard {
    mutable std::mutex mutex;
    Map entries;
    StoreStats counts;  // only of calls
  };

  Shard& ShardOf(std::string_view key) {
    return shards_[std::hash<std::string_view>{}(key) % shards_.size()];
  }
  absl::StatusOr<bool> Assign(const StoreWrite& write);
  absl::StatusOr<bool> Remove(const StoreWrite& write);
  // Stores records, whose memory is counted already.
  void KeepRecords(absl::Span<const StoreRecord> records, bool existed);
  // Counts `used` more bytes and `freed` fewer, unless that would exceed the maximum. Its error has
  // Outcome::kNotExecuted.
  absl::Status Exchange(uint64_t freed, uint64_t used);

  const uint64_t max_bytes_;
  std::atomic<uint64_t> bytes_{0};
  std::atomic<uint64_t> scans_{0};
  std::array<Shard, 16> shards_;
  std::mutex records_mutex_;  // taken under a shard's
  Map records_;
};

}  // namespace kv

#endif  // VERBENA_EXAMPLES_KV_MEMORY_STORE_H_
