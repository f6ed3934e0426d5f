// DroppedNames: up to which numbers clients had calls whose records of names a table has dropped.
//
// Bounded: the oldest entries go first. Part of a DedupeShard, under its lock.

#ifndef VERBENA_RPC_SERVER_DROPPED_NAMES_H_
#define VERBENA_RPC_SERVER_DROPPED_NAMES_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "absl/container/flat_hash_map.h"

namespace verbena::internal {

class DroppedNames {
 public:
  using Client = std::array<uint8_t, 16>;

  // Keeps `most` of them, at least 1.
  explicit DroppedNames(size_t most) : most_(most) {}

  // Calls of the client, with numbers below `below`, may have run.
  void Add(const Client& client, uint64_t below) {
    const auto [entry, added] = below_.try_emplace(client, below);
    entry->second = std::max(entry->second, below);
    if (!added) return;
    by_age_.push_back(client);
    if (by_age_.size() <= most_) return;
    below_.erase(by_age_.front());
    by_age_.pop_front();
    complete_ = false;
  }
  // None: the client is not among them.
  std::optional<uint64_t> Below(const Client& client) const {
    const auto entry = below_.find(client);
    return entry == below_.end() ? std::nullopt : std::optional<uint64_t>(entry->second);
  }
  // False: there were others.
  bool complete() const { return complete_; }
  size_t size() const { return below_.size(); }

 private:
  const size_t most_;
  absl::flat_hash_map<Client, uint64_t> below_;
  std::deque<Client> by_age_;  // the oldest first
  bool complete_ = true;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_DROPPED_NAMES_H_
