#include "examples/replicated_kv/names.h"

#include <algorithm>
#include <iterator>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "verbena/transport/log/mutant.h"

namespace replicated_kv {

absl::StatusOr<std::optional<uint64_t>> Names::Find(std::string_view client,
                                                    uint64_t number) const {
  const auto known = clients_.find(client);
  if (known == clients_.end()) return std::nullopt;
  if (number < known->second.over_below()) {
    return absl::OutOfRangeError(
        fmt::format("call {} may have run: its client's names below {} are dropped", number,
                    known->second.over_below()));
  }
  const auto found = known->second.names().find(number);
  if (found == known->second.names().end()) return std::nullopt;
  return found->second;
}

absl::StatusOr<std::optional<uint64_t>> Names::FindRepeated(std::string_view client,
                                                            uint64_t number) const {
  const auto known = clients_.find(client);
  const bool unproven =
      known == clients_.end() ? is_full() : number < known->second.unproven_below();
  absl::StatusOr<std::optional<uint64_t>> found = Find(client, number);
  const bool is_there = !found.ok() || found->has_value();
  if (is_there || !unproven || VERBENA_MUTANT(kForgottenCallRunsAgain)) return found;
  return absl::OutOfRangeError(
      fmt::format("call {} may have run: its client, or another one, was forgotten", number));
}

bool Names::HasRoomFor(std::string_view client, uint64_t sequence, uint64_t old) const {
  if (!is_full() || clients_.contains(client)) return true;
  const uint64_t last = Idlest()->second.last_sequence();
  return last + kKeepEntries < sequence || (last <= old && !VERBENA_MUTANT(kIdleClientsStay));
}

std::optional<std::string> Names::Add(const v1::Entry& entry) {
  std::optional<std::string> forgotten;
  if (is_full() && !clients_.contains(entry.client())) {
    forgotten = Idlest()->first;
    clients_.erase(*forgotten);
    clients_[entry.client()].set_unproven_below(entry.number());
  }
  v1::ClientNames& client = clients_[entry.client()];
  client.set_last_sequence(std::max(client.last_sequence(), entry.sequence()));
  client.set_over_below(std::max(client.over_below(), entry.acknowledged_below()));
  auto& names = *client.mutable_names();
  for (auto name = names.begin(); name != names.end();) {
    name = name->first < client.over_below() ? names.erase(name) : std::next(name);
  }
  if (entry.number() >= client.over_below()) names[entry.number()] = entry.sequence();
  if (names.size() > kMaxNames) {
    const auto lowest = std::min_element(
        names.begin(), names.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    client.set_over_below(lowest->first + 1);
    names.erase(lowest);
  }
  return forgotten;
}

std::string Names::RecordOf(std::string_view client) const {
  const auto known = clients_.find(client);
  return known == clients_.end() ? "" : known->second.SerializeAsString();
}

absl::Status Names::Load(std::string_view client, std::string_view record) {
  if (clients_[std::string(client)].ParseFromArray(record.data(),
                                                   static_cast<int>(record.size()))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("a record of a client's names does not parse");
}

std::map<std::string, v1::ClientNames, std::less<>>::const_iterator Names::Idlest() const {
  return std::min_element(clients_.begin(), clients_.end(), [](const auto& a, const auto& b) {
    return a.second.last_sequence() < b.second.last_sequence();
  });
}

}  // namespace replicated_kv
