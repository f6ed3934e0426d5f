#include "examples/kv/change_log.h"

#include <utility>

#include "absl/status/status.h"
#include "fmt/format.h"

namespace kv {
namespace {

size_t BytesOf(const StoreChange& change) {
  return change.key.size() + (change.value.has_value() ? change.value->size() : 0);
}

}  // namespace

void ChangeLog::Add(std::string_view key, std::optional<std::string_view> value) {
  StoreChange change{.number = 0, .key = std::string(key), .value = {}};
  if (value.has_value()) change.value = std::string(*value);
  std::lock_guard<std::mutex> lock(mutex_);
  change.number = ++last_;
  bytes_ += BytesOf(change);
  changes_.push_back(std::move(change));
  while (changes_.size() > kMaxChanges || bytes_ > kMaxBytes) {
    bytes_ -= BytesOf(changes_.front());
    changes_.pop_front();
  }
}

uint64_t ChangeLog::last() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return last_;
}

absl::StatusOr<std::vector<StoreChange>> ChangeLog::After(uint64_t& seen,
                                                          std::string_view prefix) const {
  std::vector<StoreChange> found;
  size_t bytes = 0;
  std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t first = last_ - changes_.size() + 1;
  if (seen + 1 < first) {
    return absl::DataLossError(
        fmt::format("changes {} to {} were dropped before they were read", seen + 1, first - 1));
  }
  while (seen < last_ && found.size() < kMaxBatch) {
    const StoreChange& change = changes_[seen + 1 - first];
    if (change.key.starts_with(prefix)) {
      bytes += BytesOf(change);
      if (!found.empty() && bytes > kMaxBatchBytes) break;
      found.push_back(change);
    }
    ++seen;
  }
  return found;
}

}  // namespace kv
