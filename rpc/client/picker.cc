#include "verbena/rpc/client/picker.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "verbena/transport/base/check.h"

namespace verbena::internal {
namespace {

// Below every score.
constexpr double kNoScore = -1;

// -weight / ln(u) with u uniform in (0, 1): the highest of such scores falls to each member in
// proportion to its weight.
double ScoreOf(const RouteTable::Member& member, size_t slot) {
  const uint64_t mixed = MixBits(member.hash ^ MixBits(slot + 1));
  // With 53 bits, the highest number plus 0.5 rounds up, and u is 1: then the score is not above 0.
  const int bits = 52;
  const double u = std::ldexp(static_cast<double>(mixed >> (64 - bits)) + 0.5, -bits);
  return -static_cast<double>(member.weight) / std::log(u);
}

bool Holds(const std::vector<RouteTable::Member>& members, const RouteTable::Member& member) {
  return std::find(members.begin(), members.end(), member) != members.end();
}

}  // namespace

uint64_t StableHash(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return MixBits(hash);
}

void RouteTable::Add(const Member& member) {
  for (size_t slot = 0; slot < kSlots; ++slot) {
    const double score = ScoreOf(member, slot);
    if (score <= scores_[slot]) continue;
    scores_[slot] = score;
    owners_[slot] = member.id;
  }
}

void RouteTable::Set(const std::vector<Member>& members) {
  VERBENA_CHECK(!members.empty()) << "a table of no members";
  std::vector<Member> stay;
  std::vector<uint32_t> gone;
  for (const Member& each : members_) {
    if (Holds(members, each)) {
      stay.push_back(each);
    } else {
      gone.push_back(each.id);
    }
  }
  if (owners_.empty()) {
    owners_.resize(kSlots);
    scores_.assign(kSlots, kNoScore);
  }
  std::sort(gone.begin(), gone.end());
  for (size_t slot = 0; slot < kSlots && !gone.empty(); ++slot) {
    if (!std::binary_search(gone.begin(), gone.end(), owners_[slot])) continue;
    scores_[slot] = kNoScore;
    for (const Member& each : stay) {
      const double score = ScoreOf(each, slot);
      if (score <= scores_[slot]) continue;
      scores_[slot] = score;
      owners_[slot] = each.id;
    }
  }
  for (const Member& each : members) {
    if (!Holds(stay, each)) Add(each);
  }
  members_ = members;
}

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
