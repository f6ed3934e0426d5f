// ChangeLog: the latest changes of a Store, for those who watch it.
//
// Bounded by kMaxChanges and kMaxBytes: the oldest changes are dropped, and a watcher that wants
// them hears so. For many threads; each call holds a mutex for a few copies.
//
//   uint64_t seen = log.last();
//   absl::StatusOr<std::vector<StoreChange>> changes = log.After(seen, "prefix");

#ifndef VERBENA_EXAMPLES_KV_CHANGE_LOG_H_
#define VERBENA_EXAMPLES_KV_CHANGE_LOG_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace kv {

struct StoreChange {
  uint64_t number = 0;
  std::string key;
  std::optional<std::string> value;  // none: the key was deleted
};

class ChangeLog {
 public:
  static constexpr size_t kMaxChanges = 4096;
  static constexpr size_t kMaxBytes = size_t{8} << 20;  // of keys and values
  // The most changes that After() returns at once: a watcher whose caller does not read holds them
  // for long.
  static constexpr size_t kMaxBatch = 64;
  static constexpr size_t kMaxBatchBytes = size_t{16} << 10;  // or one larger change (start)

  void Add(std::string_view key, std::optional<std::string_view> value);
  // The number of the last change; 0 if there is none.
  uint64_t last() const;
  // Changes after number `seen` of keys that begin with `prefix`, oldest first, and moves `seen` to
  // the last one looked at. DATA_LOSS if some of these were dropped.
  absl::StatusOr<std::vector<StoreChange>> After(uint64_t& seen, std::string_view prefix) const;

 private:
  mutable std::mutex mutex_;
  std::deque<StoreChange> changes_;
  size_t bytes_ = 0;
  uint64_t last_ = 0;
};

}  // namespace kv

#endif  // VERBENA_EXAMPLES_KV_CHANGE_LOG_H_
