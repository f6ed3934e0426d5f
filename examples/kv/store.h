// Store: an ordered map of bytes, as the handlers of many executors use it. MemoryStore and
// RocksStore implement it.
//
// Each call may be made on any executor, and none blocks its executor: an engine that waits for a
// disk does so on other threads. Views that a call is given must live until it has ended. Lengths
// are bounded by limits.h. A store must outlive its calls.
//
// A write may carry records, which the store keeps in a family of their own (`dedupe`) and in the
// same atomic step as the data: either both are there after a crash, or neither. A service that
// must not run a request twice keeps the request's id and result in such a record.
//
//   absl::StatusOr<bool> created = co_await store.Put("key", "value");
//   absl::StatusOr<bool> existed = co_await store.Write(
//       {.key = "key", .value = "value", .records = absl::MakeConstSpan(&record, 1)});

#ifndef VERBENA_EXAMPLES_KV_STORE_H_
#define VERBENA_EXAMPLES_KV_STORE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "examples/kv/change_log.h"
#include "verbena/rpc/task.h"

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

// A record of the family `dedupe`.
struct StoreRecord {
  std::string_view id;
  std::optional<std::string_view> bytes = {};  // none: the record is removed
  // Stored instead of `bytes` if the write's key had a value, for results that tell the difference.
  std::optional<std::string_view> bytes_if_existed = {};

  std::optional<std::string_view> bytes_for(bool existed) const {
    return existed && bytes_if_existed.has_value() ? bytes_if_existed : bytes;
  }
};

// One change, which takes effect as a whole or not at all.
struct StoreWrite {
  std::string_view key;
  std::optional<std::string_view> value = {};  // none: the key is deleted
  absl::Span<const StoreRecord> records = {};
  // False: nobody needs to know whether the key had a value before, and it counts as if it had one.
  // An engine with a disk then does not read it, so the write needs no seek, and a key in a damaged
  // file can be written.
  bool asks_existed = true;
};

struct StoreStats {
  // RocksDB estimates these two.
  uint64_t keys = 0;
  uint64_t bytes = 0;
  uint64_t max_bytes = 0;  // 0: the disk is the bound
  uint64_t puts = 0;
  uint64_t gets = 0;
  uint64_t misses = 0;
  uint64_t deletes = 0;
  uint64_t scans = 0;
  uint64_t batches = 0;  // of a store with group commit
};

class Store {
 public:
  virtual ~Store() = default;

  // The engine, where its data lie, and what they survive, in a few words.
  virtual std::string description() const = 0;

  // Returns whether the key had a value before (StoreWrite::asks_existed). An error with
  // Outcome::kNotExecuted has changed nothing, such as INVALID_ARGUMENT for a length beyond
  // limits.h. After any other error the change may be there or not, or come back when the store is
  // opened anew. Errors of an engine with a disk name its directory.
  virtual verbena::Task<absl::StatusOr<bool>> Write(StoreWrite write) = 0;
  // Assigns to `value`, whose capacity is reused. NOT_FOUND leaves `value` unchanged.
  virtual verbena::Task<absl::Status> Get(std::string_view key, std::string& value) = 0;
  // Entries from `start_key` on, in order, as many as fit `max_bytes`, but at least one if there is
  // any. An entry counts its key, its value and kPageEntryBytes.
  virtual verbena::Task<absl::StatusOr<ScanPage>> Scan(std::string_view start_key,
                                                       size_t max_bytes) = 0;
  // Get() and Scan() of the family `dedupe`: one record (NOT_FOUND if there is none), and a page of
  // records.
  virtual verbena::Task<absl::Status> GetRecord(std::string_view id, std::string& bytes) = 0;
  virtual verbena::Task<absl::StatusOr<ScanPage>> ScanRecords(std::string_view start_id,
                                                              size_t max_bytes) = 0;
  virtual verbena::Task<absl::StatusOr<StoreStats>> Stats() = 0;

  // True if the key is new.
  verbena::Task<absl::StatusOr<bool>> Put(std::string_view key, std::string_view value) {
    VERBENA_CO_ASSIGN_OR_RETURN(const bool existed, co_await Write({.key = key, .value = value}));
    co_return !existed;
  }
  // True if the key existed.
  verbena::Task<absl::StatusOr<bool>> Delete(std::string_view key) {
    co_return co_await Write({.key = key});
  }

  // The changes that have taken effect since the store was opened, of each key in their order.
  const ChangeLog& changes() const { return changes_; }

 protected:
  ChangeLog changes_;
};

// INVALID_ARGUMENT, with Outcome::kNotExecuted, if a length of `write` is beyond limits.h.
absl::Status CheckLengths(const StoreWrite& write);

}  // namespace kv

#endif  // VERBENA_EXAMPLES_KV_STORE_H_
