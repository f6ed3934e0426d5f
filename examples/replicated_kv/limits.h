// The bounds of the replicated store. The .proto tells the first two to users.

#ifndef VERBENA_EXAMPLES_REPLICATED_KV_LIMITS_H_
#define VERBENA_EXAMPLES_REPLICATED_KV_LIMITS_H_

#include <chrono>
#include <cstddef>

#include "verbena/rpc/task.h"

namespace replicated_kv {

inline constexpr size_t kMaxKeyBytes = 120;
inline constexpr size_t kMaxValueBytes = size_t{64} << 10;

// The log in memory, from which a backup that was away for a moment catches up. (start)
inline constexpr size_t kMaxTailEntries = 16384;
inline constexpr size_t kMaxTailBytes = size_t{16} << 20;
// Writes that wait for the disk or for backups; further ones are refused. (start)
inline constexpr size_t kMaxUncommitted = 4096;
// A client that has written nothing for so long may be forgotten if there are too many. No request
// takes as long from its client into the log: twice DedupeOptions::keep_for. (start)
inline constexpr verbena::Duration kKeepNames = std::chrono::minutes(10);
// A page of a copy.
inline constexpr size_t kMaxPageBytes = size_t{64} << 10;
// How far behind a replica may be when writes begin to wait for it, so that it can join the in-sync
// set. Small beside kMaxUncommitted, so that there is room for writes meanwhile. (start)
inline constexpr uint64_t kMaxLagToJoin = kMaxUncommitted / 4;

// A backup says at least this often how far it is. A backup that says nothing for kPatience is
// lost.
inline constexpr verbena::Duration kSayEvery = std::chrono::milliseconds(200);
inline constexpr verbena::Duration kPatience = std::chrono::seconds(1);
// A backup whose disk does not have an entry this long after it was sent is lost, too. (start)
inline constexpr verbena::Duration kDiskPatience = std::chrono::seconds(5);
// The pause before a failed operation is tried again.
inline constexpr verbena::Duration kPause = std::chrono::milliseconds(100);
// A replica lets another one with a longer log become primary first, for this long.
inline constexpr verbena::Duration kDeference = std::chrono::milliseconds(300);
// A replica that has just started waits this long for others in sync that do not answer. (start)
inline constexpr verbena::Duration kRestartPatience = std::chrono::seconds(10);
// A primary tells etcd this often how far its log is committed, if it goes on. (start)
inline constexpr verbena::Duration kTellCommittedEvery = std::chrono::seconds(2);

}  // namespace replicated_kv

#endif  // VERBENA_EXAMPLES_REPLICATED_KV_LIMITS_H_
