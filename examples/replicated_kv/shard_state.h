// ShardState: what etcd says of a shard: its epoch, its primary, its in-sync set and how far its
// log is committed at least; and the changes that the protocol allows.
//
// Values and pure functions. In etcd it is a line of text, "epoch 7 primary s2 in_sync s1,s2
// committed 6:1234", with the epoch and the sequence of a committed entry. A line without these
// says that nothing is known to be committed.

#ifndef VERBENA_EXAMPLES_REPLICATED_KV_SHARD_STATE_H_
#define VERBENA_EXAMPLES_REPLICATED_KV_SHARD_STATE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace replicated_kv {

inline constexpr size_t kMaxReplicas = 7;
inline constexpr size_t kMaxNameBytes = 64;

// The position of an entry in a log. The one with the larger epoch, and then the larger sequence,
// is ahead.
struct LogPosition {
  uint64_t epoch = 0;
  uint64_t sequence = 0;

  auto operator<=>(const LogPosition&) const = default;
};

struct ShardState {
  // Counts primaries: each has an epoch of its own.
  uint64_t epoch = 0;
  std::string primary;  // of this epoch; "" in epoch 1, which has none
  // The replicas that have each acknowledged write on their disks, in order.
  std::vector<std::string> in_sync;
  // An entry that is committed, as all before it. Later ones may be. A replica whose log ends
  // before it has lost what its disk had synced.
  LogPosition committed = {};

  bool operator==(const ShardState&) const = default;
};

// INVALID_ARGUMENT if one of them is beyond limits.h.
absl::Status CheckLengths(std::string_view key, std::string_view value);

// Names are of letters, digits, '-' and '_'.
bool IsReplicaName(std::string_view name);

std::string ShardStateText(const ShardState& state);
// INVALID_ARGUMENT: it is no such line.
absl::StatusOr<ShardState> ParseShardState(const std::string& text);

// A shard that has never had a primary: all replicas are empty, and so in sync.
ShardState FirstState(std::vector<std::string> replicas);

bool IsInSync(const ShardState& state, std::string_view name);
// Whether that replica, whose log ends with `last`, may become primary.
bool MayLead(const ShardState& state, std::string_view name, LogPosition last);
// The next epoch, with that primary. Precondition: it is in sync.
ShardState TakenOver(ShardState state, std::string_view name);
// The in-sync set without that backup, or with it. Precondition: it is not the primary.
ShardState Without(ShardState state, std::string_view name);
ShardState With(ShardState state, std::string_view name);

}  // namespace replicated_kv

#endif  // VERBENA_EXAMPLES_REPLICATED_KV_SHARD_STATE_H_
