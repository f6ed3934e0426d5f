#include "verbena/rpc/client/device_scores.h"

#include <algorithm>

#include "fmt/format.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/rpc/shard/shard.h"

namespace verbena::internal {

// A shard without a runtime is a test's.
DeviceScores& DeviceScores::Of(Shard& shard) {
  Parts& parts = shard.owner() != nullptr ? shard.owner()->parts() : shard.parts();
  return parts.Get<DeviceScores>();
}

bool DeviceScores::NoteLoss(const std::string& address, size_t device, const absl::Status& reason,
                            TimePoint now) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Key key(address, device);
  if (!entries_.contains(key) && entries_.size() >= kMaxEntries) DropOldest();
  Entry& entry = entries_[key];
  std::shift_left(entry.losses.begin(), entry.losses.end(), 1);
  entry.losses.back() = now;
  entry.count = std::min(entry.count + 1, kLosses);
  if (entry.count < kLosses || now - entry.losses.front() > kWithin || !entry.why.empty()) {
    return false;
  }
  entry.why =
      fmt::format("it has lost {} links within {} s before an answer came, the last one by: {}",
                  kLosses, std::chrono::duration_cast<std::chrono::seconds>(kWithin).count(),
                  std::string(reason.message()));
  return true;
}

// One more loss within kWithin is the third.
void DeviceScores::NoteReturn(const std::string& address, size_t device, TimePoint now) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = entries_.find(Key(address, device));
  if (found == entries_.end() || found->second.why.empty()) return;
  found->second.why.clear();
  found->second.losses.fill(now);
}

std::string DeviceScores::WhyPassedOver(const std::string& address, size_t device) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = entries_.find(Key(address, device));
  return found == entries_.end() ? "" : found->second.why;
}

size_t DeviceScores::size() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return entries_.size();
}

void DeviceScores::DropOldest() {
  entries_.erase(
      std::min_element(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) {
        return a.second.losses.back() < b.second.losses.back();
      }));
}

}  // namespace verbena::internal
