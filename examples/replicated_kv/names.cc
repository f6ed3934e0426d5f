#include "examples/replicated_kv/names.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "verbena/transport/log/mutant.h"

namespace replicated_kv {

absl::StatusOr<std::optional<uint64_t>> Names::Find(std::string_view client,
                                                    uint64_t number) const {
  const auto known = clients_.find(client);
  if (known == clients_.end()) return std::nullopt;
  if (number < known->second.over_below) {
    return absl::OutOfRangeError(
        fmt::format("call {} may have run: its client's names below {} are dropped", number,
                    known->second.over_below));
  }
  const auto found = known->second.sequences.find(number);
  if (found == known->second.sequences.end()) return std::nullopt;
  return found->second;
}

absl::StatusOr<std::optional<uint64_t>> Names::FindRepeated(std::string_view client,
                                                            uint64_t number) const {
  const auto known = clients_.find(client);
  const bool unproven = known == clients_.end() ? is_full() : number < known->second.unproven_below;
  absl::StatusOr<std::optional<uint64_t>> found = Find(client, number);
  const bool is_there = !found.ok() || found->has_value();
  if (is_there || !unproven || VERBENA_MUTANT(kForgottenCallRunsAgain)) return found;
  return absl::OutOfRangeError(
      fmt::format("call {} may have run: its client, or another one, was forgotten", number));
}

bool Names::HasRoomFor(std::string_view client, uint64_t sequence, uint64_t old) const {
  if (!is_full() || clients_.contains(client)) return true;
  const uint64_t last = Idlest()->second.last_sequence;
  return last + kKeepEntries < sequence || (last <= old && !VERBENA_MUTANT(kIdleClientsStay));
}

std::optional<std::string> Names::Add(const v1::Entry& entry) {
  std::optional<std::string> forgotten;
  if (is_full() && !clients_.contains(entry.client())) {
    forgotten = Idlest()->first;
    clients_.erase(*forgotten);
    clients_[entry.client()].unproven_below = entry.number();
  }
  Client& client = clients_[entry.client()];
  client.last_sequence = std::max(client.last_sequence, entry.sequence());
  client.over_below = std::max(client.over_below, entry.acknowledged_below());
  client.sequences.erase(client.sequences.begin(), client.sequences.lower_bound(client.over_below));
  if (entry.number() >= client.over_below) client.sequences[entry.number()] = entry.sequence();
  while (client.sequences.size() > kMaxNames) {
    client.over_below = client.sequences.begin()->first + 1;
    client.sequences.erase(client.sequences.begin());
  }
  return forgotten;
}

std::string Names::RecordOf(std::string_view client) const {
  v1::ClientNames record;
  const auto known = clients_.find(client);
  if (known != clients_.end()) {
    record.set_over_below(known->second.over_below);
    record.set_last_sequence(known->second.last_sequence);
    record.set_unproven_below(known->second.unproven_below);
    for (const auto& [number, sequence] : known->second.sequences) {
      v1::ClientNames::Name& name = *record.add_names();
      name.set_number(number);
      name.set_sequence(sequence);
    }
  }
  return record.SerializeAsString();
}

absl::Status Names::Load(std::string_view client, std::string_view record) {
  v1::ClientNames names;
  if (!names.ParseFromArray(record.data(), static_cast<int>(record.size()))) {
    return absl::InvalidArgumentError("a record of a client's names does not parse");
  }
  Client& loaded = clients_[std::string(client)];
  loaded = {.sequences = {},
            .over_below = names.over_below(),
            .last_sequence = names.last_sequence(),
            .unproven_below = names.unproven_below()};
  for (const v1::ClientNames::Name& name : names.names()) {
    loaded.sequences[name.number()] = name.sequence();
  }
  return absl::OkStatus();
}

std::map<std::string, Names::Client, std::less<>>::const_iterator Names::Idlest() const {
  return std::min_element(clients_.begin(), clients_.end(), [](const auto& a, const auto& b) {
    return a.second.last_sequence < b.second.last_sequence;
  });
}

}  // namespace replicated_kv
