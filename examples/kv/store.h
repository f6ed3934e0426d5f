// Store: an ordered map of bytes in memory, bounded, for many threads.
//
// Handlers on several executors use one Store at once. The keys' hash divides it into shards, each
// a std::map under its own std::mutex. A call holds the mutex for one look-up and a copy of one
// value; a scan, for a copy of a page. A handler may wait that long for another executor, and
// rarely does. If each executor had a part of its own, no locks would be needed, but most calls
// would go to another executor and back. That costs far more than a lock that is seldom contended.
// A scan visits the shards one after the other and merges their entries.
//
// Memory: the sum of all keys and values, and of kEntryBytes per entry, never exceeds max_bytes.
// Must outlive the calls.
//
//   kv::Store store(64 << 20);
//   absl::StatusOr<bool> created = store.Put("key", "value");
//   kv::ScanPage page = store.Scan("", 4096);

#ifndef VERBENA_EXAMPLES_KV_STORE_H_
#define VERBENA_EXAMPLES_KV_STORE_H_

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
#include "examples/kv/change_log.h"

namespace kv {

struct StoreEntry {
  std::string key;
  std::string value;
};

struct ScanPage {
  std::vector<StoreEntry> entries;
  // The key where the next page begins; empty at the end.
  std::string next_key;
};

struct StoreStats {
  uint64_t keys = 0;
  uint64_t bytes = 0;
  uint64_t puts = 0;
  uint64_t gets = 0;
  uint64_t misses = 0;
  uint64_t deletes = 0;
  uint64_t scans = 0;
};

class Store {
 public:
  explicit Store(uint64_t max_bytes) : max_bytes_(max_bytes) {}
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // True if the key is new. INVALID_ARGUMENT for a length beyond limits.h, RESOURCE_EXHAUSTED if
  // memory is used up; nothing is changed then.
  absl::StatusOr<bool> Put(std::string_view key, std::string_view value);
  // Assigns to `value`, whose capacity is reused. NOT_FOUND leaves `value` unchanged.
  absl::Status Get(std::string_view key, std::string& value);
  // True if the key existed.
  bool Delete(std::string_view key);
  // Entries from `start_key` on, in order, as many as fit `max_bytes`, but at least one if there is
  // any. An entry counts its key, its value and kPageEntryBytes.
  ScanPage Scan(std::string_view start_key, size_t max_bytes);

  // The changes that Put and Delete have made, of each key in their order.
  const ChangeLog& changes() const { return changes_; }

  StoreStats stats() const;
  uint64_t max_bytes() const { return max_bytes_; }

 private:
  using Map = std::map<std::string, std::string, std::less<>>;

  // Aligned to a cache line, so that the locks of neighbours do not disturb each other.
  struct alignas(64) Shard {
    mutable std::mutex mutex;
    Map entries;
    StoreStats counts;  // only of calls; keys, bytes and scans stay 0
  };

  Shard& ShardOf(std::string_view key) {
    return shards_[std::hash<std::string_view>{}(key) % shards_.size()];
  }
  // Counts `bytes` more, unless that would exceed the maximum.
  bool Reserve(uint64_t bytes);
  absl::Status Full(uint64_t bytes) const;

  const uint64_t max_bytes_;
  std::atomic<uint64_t> bytes_{0};
  std::atomic<uint64_t> scans_{0};
  std::array<Shard, 16> shards_;
  ChangeLog changes_;
};

}  // namespace kv

#endif  // VERBENA_EXAMPLES_KV_STORE_H_
