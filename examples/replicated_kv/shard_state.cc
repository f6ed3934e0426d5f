#include "examples/replicated_kv/shard_state.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "examples/replicated_kv/limits.h"
#include "fmt/format.h"
#include "verbena/rpc/log.h"

namespace replicated_kv {

absl::Status CheckLengths(std::string_view key, std::string_view value) {
  if (!key.empty() && key.size() <= kMaxKeyBytes && value.size() <= kMaxValueBytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      fmt::format("a key of {} bytes with a value of {}: keys must have 1 to {}, values at most {}",
                  key.size(), value.size(), kMaxKeyBytes, kMaxValueBytes));
}

bool IsReplicaName(std::string_view name) {
  const auto fits = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_';
  };
  return !name.empty() && name.size() <= kMaxNameBytes &&
         std::all_of(name.begin(), name.end(), fits);
}

std::string ShardStateText(const ShardState& state) {
  return fmt::format("epoch {} primary {} in_sync {} committed {}:{}", state.epoch, state.primary,
                     absl::StrJoin(state.in_sync, ","), state.committed.epoch,
                     state.committed.sequence);
}

absl::StatusOr<ShardState> ParseShardState(const std::string& text) {
  const std::vector<std::string> words = absl::StrSplit(text, ' ');
  ShardState state;
  bool is_state = (words.size() == 6 || words.size() == 8) && words[0] == "epoch" &&
                  words[2] == "primary" && words[4] == "in_sync" &&
                  absl::SimpleAtoi(words[1], &state.epoch) && state.epoch > 0;
  if (is_state) {
    state.primary = words[3];
    state.in_sync = absl::StrSplit(words[5], ',');
    is_state = state.in_sync.size() <= kMaxReplicas &&
               std::all_of(state.in_sync.begin(), state.in_sync.end(), IsReplicaName) &&
               (state.epoch == 1 || IsInSync(state, state.primary));
  }
  if (is_state && words.size() == 8) {
    const std::vector<std::string> numbers = absl::StrSplit(words[7], ':');
    is_state = words[6] == "committed" && numbers.size() == 2 &&
               absl::SimpleAtoi(numbers[0], &state.committed.epoch) &&
               absl::SimpleAtoi(numbers[1], &state.committed.sequence) &&
               state.committed.epoch <= state.epoch;
  }
  if (is_state) return state;
  return absl::InvalidArgumentError(fmt::format(
      "'{}' is no state of a shard, such as 'epoch 7 primary s2 in_sync s1,s2 committed "
      "6:1234'",
      text.substr(0, 100)));
}

ShardState FirstState(std::vector<std::string> replicas) {
  std::sort(replicas.begin(), replicas.end());
  return {.epoch = 1, .primary = "", .in_sync = std::move(replicas)};
}

bool IsInSync(const ShardState& state, std::string_view name) {
  return std::find(state.in_sync.begin(), state.in_sync.end(), name) != state.in_sync.end();
}

bool MayLead(const ShardState& state, std::string_view name, LogPosition last) {
  return IsInSync(state, name) && last >= state.committed;
}

ShardState TakenOver(ShardState state, std::string_view name) {
  VERBENA_CHECK(IsInSync(state, name)) << name << " is not in sync";
  ++state.epoch;
  state.primary = name;
  return state;
}

ShardState Without(ShardState state, std::string_view name) {
  VERBENA_CHECK(name != state.primary) << name << " is the primary";
  std::erase(state.in_sync, name);
  return state;
}

ShardState With(ShardState state, std::string_view name) {
  if (IsInSync(state, name)) return state;
  state.in_sync.emplace_back(name);
  std::sort(state.in_sync.begin(), state.in_sync.end());
  return state;
}

}  // namespace replicated_kv
