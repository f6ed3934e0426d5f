#include "examples/kv/store.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "examples/kv/limits.h"
#include "fmt/format.h"

namespace kv {
namespace {

uint64_t MemoryOf(std::string_view key, std::string_view value) {
  return key.size() + value.size() + kEntryBytes;
}

size_t PageBytesOf(const std::string& key, const std::string& value) {
  return key.size() + value.size() + kPageEntryBytes;
}

absl::Status CheckLengths(std::string_view key, std::string_view value) {
  if (key.empty() || key.size() > kMaxKeyBytes) {
    return absl::InvalidArgumentError(
        fmt::format("the key has {} bytes, but must have 1 to {}", key.size(), kMaxKeyBytes));
  }
  if (value.size() > kMaxValueBytes) {
    return absl::InvalidArgumentError(fmt::format("the value has {} bytes, but may have at most {}",
                                                  value.size(), kMaxValueBytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<bool> Store::Put(std::string_view key, std::string_view value) {
  if (absl::Status status = CheckLengths(key, value); !status.ok()) return status;
  // Copied before the lock is taken. A new string: the old one, if larger, would keep memory that
  // is not counted.
  std::string copy(value);
  Shard& shard = ShardOf(key);
  std::lock_guard<std::mutex> lock(shard.mutex);
  auto found = shard.entries.lower_bound(key);
  const bool created = found == shard.entries.end() || found->first != key;
  if (created) {
    if (!Reserve(MemoryOf(key, value))) return Full(MemoryOf(key, value));
    shard.entries.emplace_hint(found, key, std::move(copy));
  } else {
    const size_t old_bytes = found->second.size();
    if (value.size() > old_bytes) {
      if (!Reserve(value.size() - old_bytes)) return Full(value.size() - old_bytes);
    } else {
      bytes_.fetch_sub(old_bytes - value.size(), std::memory_order_relaxed);
    }
    found->second.swap(copy);
  }
  ++shard.counts.puts;
  changes_.Add(key, value);
  return created;
}

absl::Status Store::Get(std::string_view key, std::string& value) {
  Shard& shard = ShardOf(key);
  std::lock_guard<std::mutex> lock(shard.mutex);
  ++shard.counts.gets;
  auto found = shard.entries.find(key);
  if (found == shard.entries.end()) {
    ++shard.counts.misses;
    return absl::NotFoundError("the key has no value");
  }
  value.assign(found->second);
  return absl::OkStatus();
}

bool Store::Delete(std::string_view key) {
  Shard& shard = ShardOf(key);
  Map::node_type removed;  // freed after the lock
  std::lock_guard<std::mutex> lock(shard.mutex);
  ++shard.counts.deletes;
  auto found = shard.entries.find(key);
  if (found == shard.entries.end()) return false;
  removed = shard.entries.extract(found);
  changes_.Add(key, std::nullopt);
  bytes_.fetch_sub(MemoryOf(removed.key(), removed.mapped()), std::memory_order_relaxed);
  return true;
}

ScanPage Store::Scan(std::string_view start_key, size_t max_bytes) {
  scans_.fetch_add(1, std::memory_order_relaxed);
  // Each shard gives as many entries as could fill the whole page, and one more, which may become
  // next_key. At least two, because a page has one entry even if that entry is too large.
  std::vector<StoreEntry> found;
  for (const Shard& shard : shards_) {
    std::lock_guard<std::mutex> lock(shard.mutex);
    size_t bytes = 0;
    size_t count = 0;
    for (auto entry = shard.entries.lower_bound(start_key); entry != shard.entries.end(); ++entry) {
      found.push_back({entry->first, entry->second});
      bytes += PageBytesOf(entry->first, entry->second);
      if (++count >= 2 && bytes > max_bytes) break;
    }
  }
  std::sort(found.begin(), found.end(),
            [](const StoreEntry& a, const StoreEntry& b) { return a.key < b.key; });

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

StoreStats Store::stats() const {
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
  sum.scans = scans_.load(std::memory_order_relaxed);
  return sum;
}

bool Store::Reserve(uint64_t bytes) {
  uint64_t used = bytes_.load(std::memory_order_relaxed);
  do {
    if (bytes > max_bytes_ - used) return false;
  } while (!bytes_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
  return true;
}

absl::Status Store::Full(uint64_t bytes) const {
  return absl::ResourceExhaustedError(
      fmt::format("the store holds {} of {} bytes, and {} more are needed; delete something, or "
                  "start kv_server with a larger --max_bytes",
                  bytes_.load(std::memory_order_relaxed), max_bytes_, bytes));
}

}  // namespace kv
