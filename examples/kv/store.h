// Store: an ordered map of bytes in memory, bounded, for many threads.
//
// Handlers on several executors use one Store at once. It is cut by the keys' hash into shards,
// each a std::map under its own std::mutex, which is held for one look-up and one copy of at
// most 3.5 KiB: a handler may wait that long for another executor, and rarely does. To give each
// executor its own part would need no locks, but send most calls to another executor and back,
// which costs far more than a lock that is seldom contended. A scan visits the shards one after the
// other and merges what it finds.
//
// Memory: keys, values and kEntryBytes each are counted, and never exceed max_bytes. Owned by
// whoever serves it; must outlive the calls.
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

  // True when the key is new. INVALID_ARGUMENT for a length beyond limits.h, RESOURCE_EXHAUSTED
  // when memory is used up; nothing is changed then.
  absl::StatusOr<bool> Put(std::string_view key, std::string_view value);
  // Assigns to `value`, whose capacity is reused. NOT_FOUND leaves it alone.
  absl::Status Get(std::string_view key, std::string& value);
  // True when the key was there.
  bool Delete(std::string_view key);
  // Entries from `start_key` on, as many as count no more than `max_bytes` (kPageEntryBytes each
  // besides key and value), but at least one if there is one.
  ScanPage Scan(std::string_view start_key, size_t max_bytes);

  StoreStats stats() const;
  uint64_t max_bytes() const { return max_bytes_; }

 private:
  using Map = std::map<std::string, std::string, std::less<>>;

  // A cache line each, so that neighbours' locks do not disturb each other.
  struct alignas(64) Shard {
    mutable std::mutex mutex;
    Map entries;
    StoreStats counts;  // of calls alone
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
};

}  // namespace kv

#endif  // VERBENA_EXAMPLES_KV_STORE_H_
