// CheckLog: refuses a store whose log, or list of files, has lost entries that were synced.
//
// A power cut may leave the last write of a log torn. Such a log must open, and a log that was
// damaged must not. None of RocksDB's WALRecoveryModes tells torn logs from damaged ones.
// kPointInTimeRecovery opens both, kAbsoluteConsistency refuses both, kTolerateCorruptedTailRecords
// refuses some torn tails, and opens some damaged logs. None sees a page of zeros that begins where
// a record does.
//
// So the log is read once before RocksDB replays it, without a change to any file. A durable store
// has synced each batch before it writes the next. Its log is damaged
//   - if entries are missing, and later ones are there; or
//   - if it ends before the SyncedMark.
// Otherwise only the last batch can be incomplete, and was never acknowledged.
//
// One case stays open. RocksDB reads no further in a block of 32 KiB that has damage, and a power
// cut may leave an old mark. So damage behind that mark looks like a torn write if the damage lies
// in the block in which the last whole batch begins, or behind this block.

#ifndef VERBENA_EXAMPLES_KV_LOG_CHECK_H_
#define VERBENA_EXAMPLES_KV_LOG_CHECK_H_

#include <memory>
#include <string>

#include "absl/status/status.h"

namespace rocksdb {
class Env;
class WalFilter;
}  // namespace rocksdb

namespace kv {

// Checks the store in `directory`, which nobody may have open. DATA_LOSS names the directory, what
// is missing, and what to do; also if the store has no column family `family`, which RocksDB would
// make anew. OK if the directory has no SyncedMark: nothing is known of its log. Blocks: it reads
// the whole log.
absl::Status CheckLog(rocksdb::Env& env, const std::string& directory, const std::string& family);

// For DBOptions::wal_filter: ends the replay where entries are missing, so that a store never has
// an entry without those before it.
std::unique_ptr<rocksdb::WalFilter> MakeReplayFilter();

}  // namespace kv

#endif  // VERBENA_EXAMPLES_KV_LOG_CHECK_H_
