// CommitPoint: how far the log is committed: each replica that counts has it on its disk.
//
// The primary's, one for each of its epochs. Those who count are the in-sync set, and a replica
// that is about to join it. It never goes back. A value; one thread.
//
//   point.SetMembers(names);
//   point.NoteDurable("s2", 17);
//   if (point.sequence() >= mine) … acknowledge …

#ifndef VERBENA_EXAMPLES_REPLICATED_KV_COMMIT_POINT_H_
#define VERBENA_EXAMPLES_REPLICATED_KV_COMMIT_POINT_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "verbena/transport/log/mutant.h"

namespace replicated_kv {

class CommitPoint {
 public:
  void SetMembers(std::vector<std::string> members) {
    members_ = std::move(members);
    Advance();
  }
  // What a replica has on its disk. 0: it has nothing, or lost what it had.
  void NoteDurable(std::string_view name, uint64_t sequence) {
    durable_.insert_or_assign(std::string(name), sequence);
    Advance();
  }
  uint64_t DurableAt(std::string_view name) const {
    const auto found = durable_.find(name);
    return found == durable_.end() ? 0 : found->second;
  }
  uint64_t sequence() const { return sequence_; }

 private:
  void Advance() {
    if (members_.empty()) return;
    uint64_t least = UINT64_MAX;
    uint64_t most = 0;
    for (const std::string& name : members_) {
      least = std::min(least, DurableAt(name));
      most = std::max(most, DurableAt(name));
    }
    sequence_ = std::max(sequence_, VERBENA_MUTANT(kCommitBeforeSlowest) ? most : least);
  }

  std::vector<std::string> members_;
  std::map<std::string, uint64_t, std::less<>> durable_;
  uint64_t sequence_ = 0;
};

}  // namespace replicated_kv

#endif  // VERBENA_EXAMPLES_REPLICATED_KV_COMMIT_POINT_H_
