#include "verbena/rpc/client/picker.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace verbena::internal {

void Picker::Set(const std::vector<Member>& members) {
  count_ = members.size();
  candidates_.clear();
  turns_.clear();
  if (members.empty()) return;
  if (policy_ == Balancing::kLeastInFlight) {
    for (size_t i = 0; i < 2 * members.size(); ++i) {
      const Member& each = members[i % members.size()];
      candidates_.push_back({each.in_flight, each.weight, each.id});
    }
  }
  if (policy_ == Balancing::kRouteKey) SetRoutes(members);
  SetTurns(members);
  next_turn_ = (NextRandom() * turns_.size()) >> 32;
}

void Picker::SetRoutes(const std::vector<Member>& members) {
  std::vector<RouteTable::Member> owners;
  owners.reserve(members.size());
  for (const Member& each : members) owners.push_back({each.id, each.hash, each.weight});
  routes_.Set(owners);
}

// Each member's turns are spread evenly: its k-th of n turns is due at (k + 1/2) / n.
void Picker::SetTurns(const std::vector<Member>& members) {
  if (policy_ == Balancing::kPickFirst) {
    turns_ = {members.front().id};
    return;
  }
  if (policy_ != Balancing::kWeighted) {
    for (const Member& each : members) turns_.push_back(each.id);
    return;
  }
  uint64_t divisor = 0;
  uint64_t sum = 0;
  for (const Member& each : members) {
    divisor = std::gcd(divisor, uint64_t{each.weight});
    sum += each.weight;
  }
  // Each member has at least one turn.
  const double scale = std::min(1.0 / static_cast<double>(divisor),
                                static_cast<double>(kMaxTurns) / static_cast<double>(sum));
  std::vector<std::pair<double, uint32_t>> due;
  for (const Member& each : members) {
    const auto turns = std::max<size_t>(static_cast<size_t>(std::lround(each.weight * scale)), 1);
    for (size_t turn = 0; turn < turns; ++turn) {
      due.emplace_back((static_cast<double>(turn) + 0.5) / static_cast<double>(turns), each.id);
    }
  }
  std::sort(due.begin(), due.end());
  for (const auto& each : due) turns_.push_back(each.second);
}

}  // namespace verbena::internal
