#include "examples/kv/memory_store.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "examples/kv/limits.h"
#include "fmt/format.h"
#include "verbena/rpc/status.h"

namespace kv {

using verbena::Task;

namespace {

uint64_t MemoryOf(std::string_view key, std::string_view value) {
  return key.size() + value.size() + kEntryBytes;
}

uint64_t MemoryOf(absl::Span<const StoreRecord> records, bool existed) {
  uint64_t sum = 0;
  for (const StoreRecord& record : records) {
    const std::optional<std::string_view> bytes = record.bytes_for(existed);
    if (bytes.has_value()) sum += MemoryOf(record.id, *bytes);
  }
  return sum;
}

size_t PageBytesOf(const std::string& key, const std::string& value) {
  return key.size() + value.size() + kPageEntryBytes;
}

// Appends as many entries as could fill a whole page, and one more, which may become next_key. At
// least two, because a page has one entry even if that entry is too large.
template <typename Map>
void AppendEntries(const Map& map, std::string_view start_key, size_t max_bytes,
                   std::vector<StoreEntry>& found) {
  size_t bytes = 0;
  size_t count = 0;
  for (auto entry = map.lower_bound(start_key); entry != map.end(); ++entry) {
    found.push_back({entry->first, entry->second});
    bytes += PageBytesOf(entry->first, entry->second);
    if (++count >= 2 && bytes > max_bytes) break;
  }
}

// The page that begins with the first of `found`, which are in order.
ScanPage PageOf(std::vector<StoreEntry> found, size_t max_bytes) {
  ScanPage page;
  size_t bytes = 0;
  size_t taken = 0;
  for (; taken < found.size(); ++taken) {
    bytes += PageBytesOf(found[taken].key, found[taken].value);
    if (taken > 0 && bytes > max_bytes) break;
  }
  if (taken < found.size()) page.next_key = std::move(found[taken].key);
  found.erase(found.begin() + static_cast<std::ptrdiff_t>(taken), found.end());
  page.entries = std::move(found);
  return page;
}

}  // namespace

std::string MemoryStore::description() const {
  return fmt::format("memory, at most {} bytes, lost when the server ends", max_bytes_);
}

Task<absl::StatusOr<bool>> MemoryStore::Write(StoreWrite write) {
  VERBENA_CO_RETURN_IF_ERROR(CheckLengths(write));
  co_return write.value.has_value() ? Assign(write) : Remove(write);
}

absl::StatusOr<bool> MemoryStore::Assign(const StoreWrite& write) {
  const std::string_view value = *write.value;
  // Copied before the lock is taken. A new string: the old one, if larger, would keep memory that
  // is not counted.
  std::string copy(value);
  Shard& shard = ShardOf(write.key);
  std::lock_guard<std::mutex> lock(shard.mutex);
  auto found = shard.entries.lower_bound(write.key);
  const bool existed = found != shard.entries.end() && found->first == write.key;
  const uint64_t freed = existed ? MemoryOf(write.key, found->second) : 0;
  const uint64_t used = MemoryOf(write.key, value) + MemoryOf(write.records, existed);
  VERBENA_RETURN_IF_ERROR(Exchange(freed, used));
  if (!existed) {
    shard.entries.emplace_hint(found, write.key, std::move(copy));
  } else {
    found->second.swap(copy);
  }
  KeepRecords(write.records, existed);
  ++shard.counts.puts;
  changes_.Add(write.key, value);
  return existed;
}

absl::StatusOr<bool> MemoryStore::Remove(const StoreWrite& write) {
  Shard& shard = ShardOf(write.key);
  Map::node_type removed;  // freed after the lock
  std::lock_guard<std::mutex> lock(shard.mutex);
  auto found = shard.entries.find(write.key);
  const bool existed = found != shard.entries.end();
  const uint64_t freed = existed ? MemoryOf(found->first, found->second) : 0;
  VERBENA_RETURN_IF_ERROR(Exchange(freed, MemoryOf(write.records, existed)));
  ++shard.counts.deletes;
  KeepRecords(write.records, existed);
  if (!existed) return false;
  removed = shard.entries.extract(found);
  changes_.Add(write.key, std::nullopt);
  return true;
}

void MemoryStore::KeepRecords(absl::Span<const StoreRecord> records, bool existed) {
  if (records.empty()) return;
  uint64_t freed = 0;
  std::lock_guard<std::mutex> lock(records_mutex_);
  for (const StoreRecord& record : records) {
    const auto found = records_.find(record.id);
    if (found != records_.end()) {
      freed += MemoryOf(found->first, found->second);
      records_.erase(found);
    }
    const std::optional<std::string_view> bytes = record.bytes_for(existed);
    if (bytes.has_value()) records_.emplace(record.id, *bytes);
  }
  bytes_.fetch_sub(freed, std::memory_order_relaxed);
}

Task<absl::Status> MemoryStore::Get(std::string_view key, std::string& value) {
  Shard& shard = ShardOf(key);
  std::lock_guard<std::mutex> lock(shard.mutex);
  ++shard.counts.gets;
  auto found = shard.entries.find(key);
  if (found == shard.entries.end()) {
    ++shard.counts.misses;
    co_return absl::NotFoundError("the key has no value");
  }
  value.assign(found->second);
  co_return absl::OkStatus();
}

Task<absl::StatusOr<ScanPage>> MemoryStore::Scan(std::string_view start_key, size_t max_bytes) {
  scans_.fetch_add(1, std::memory_order_relaxed);
  std::vector<StoreEntry> found;
  for (const Shard& shard : shards_) {
    std::lock_guard<std::mutex> lock(shard.mutex);
    AppendEntries(shard.entries, start_key, max_bytes, found);
  }
  std::sort(found.begin(), found.end(),
            [](const StoreEntry& a, const StoreEntry& b) { return a.key < b.key; });
  co_return PageOf(std::move(found), max_bytes);
}

Task<absl::Status> MemoryStore::GetRecord(std::string_view id, std::string& bytes) {
  std::lock_guard<std::mutex> lock(records_mutex_);
  const auto found = records_.find(id);
  if (found == records_.end()) co_return absl::NotFoundError("there is no such record");
  bytes.assign(found->second);
  co_return absl::OkStatus();
}

Task<absl::StatusOr<ScanPage>> MemoryStore::ScanRecords(std::string_view start_id,
                                                        size_t max_bytes) {
  std::vector<StoreEntry> found;
  std::lock_guard<std::mutex> lock(records_mutex_);
  AppendEntries(records_, start_id, max_bytes, found);
  co_return PageOf(std::move(found), max_bytes);
}

Task<absl::StatusOr<StoreStats>> MemoryStore::Stats() {
  StoreStats sum;
  for (const Shard& shard : shards_) {
    std::lock_guard<std::mutex> lock(shard.mutex);
    sum.keys += shard.entries.size();
    sum.puts += shard.counts.puts;
    sum.gets += shard.counts.gets;
    sum.misses += shard.counts.misses;
    sum.deletes += shard.counts.deletes;
  }
  sum.bytes = bytes_.load(std::memory_order_relaxed);
  sum.max_bytes = max_bytes_;
  sum.scans = scans_.load(std::memory_order_relaxed);
  co_return sum;
}

absl::Status MemoryStore::Exchange(uint64_t freed, uint64_t used) {
  if (used <= freed) {
    bytes_.fetch_sub(freed - used, std::memory_order_relaxed);
    return absl::OkStatus();
  }
  const uint64_t more = used - freed;
  uint64_t held = bytes_.load(std::memory_order_relaxed);
  do {
    if (more > max_bytes_ - held) {
      return verbena::WithOutcome(
          absl::ResourceExhaustedError(fmt::format(
              "the store holds {} of {} bytes, and {} more are needed; delete something, or start "
              "kv_server with a larger --max_bytes",
              held, max_bytes_, more)),
          verbena::Outcome::kNotExecuted);
    }
  } while (!bytes_.compare_exchange_weak(held, held + more, std::memory_order_relaxed));
  return absl::OkStatus();
}

}  // namespace kv
