// ReplicaLog: a replica's log: how far it goes, how far the disk has it, and its last entries in
// memory, for backups that were away for a moment.
//
// RocksDB has a log of its own, so entries go to the disk once, as data (replica_store.h). The tail
// in memory is bounded (limits.h) and starts empty with the process. All on one executor.
//
//   log.Append(entry);                                    // on its way to the disk
//   while (log.durable().sequence < entry->sequence()) {
//     VERBENA_CO_RETURN_IF_ERROR(co_await log.Changed());
//   }

#ifndef VERBENA_EXAMPLES_REPLICATED_KV_REPLICA_LOG_H_
#define VERBENA_EXAMPLES_REPLICATED_KV_REPLICA_LOG_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "absl/status/status.h"
#include "examples/replicated_kv/replica_store.h"
#include "examples/replicated_kv/replicated_kv.pb.h"
#include "examples/replicated_kv/shard_state.h"
#include "verbena/rpc/sync.h"
#include "verbena/rpc/task.h"

namespace replicated_kv {

class ReplicaLog {
 public:
  // Begins where the store is. Writes run in `writes`; store and scope must outlive the log.
  ReplicaLog(ReplicaStore& store, verbena::TaskScope& writes);

  LogPosition last() const { return last_; }
  LogPosition durable() const { return durable_; }
  // False: the store has lost its data, or has part of a copy.
  bool complete() const { return complete_; }
  // Not OK once the disk has failed: the log goes no further then.
  const absl::Status& failure() const { return failure_; }
  bool has_room() const { return last_.sequence - durable_.sequence < kMaxUnwritten; }

  // Whether memory has the entry at that position. If so, the log has all entries before it.
  bool Has(LogPosition position) const;
  // nullptr: not in memory.
  std::shared_ptr<const v1::Entry> Find(uint64_t sequence) const;

  // INVALID_ARGUMENT: no primary of `epoch` sends an entry, or begins a copy, of that position now.
  absl::Status CheckNext(LogPosition next, uint64_t epoch, bool copy_begins = false) const;
  // Precondition: it follows last(), in an epoch that is no older.
  void Append(std::shared_ptr<const v1::Entry> entry);
  // Goes on after a copy, whose entries up to `position` are in the store. It is not complete until
  // Complete(). Precondition: nothing is on its way to the disk.
  void BeginCopy(LogPosition position);
  // Waits for the disk, and makes the copy count.
  verbena::Task<absl::Status> Complete();

  // Waits until the disk has the whole log. Fails if the disk does.
  verbena::Task<absl::Status> Drain();
  // Waits until the log has changed, or somebody has called Notify().
  verbena::Task<absl::Status> Changed();
  void Notify();

 private:
  static constexpr uint64_t kMaxUnwritten = 1024;
  // No log is as long.
  static constexpr uint64_t kMaxSequence = uint64_t{1} << 62;

  verbena::Task<void> WriteDown(ReplicaStore::Batch batch);
  void Trim();

  ReplicaStore& store_;
  verbena::TaskScope& writes_;
  LogPosition before_tail_;  // of the entry before the first in memory
  std::deque<std::shared_ptr<const v1::Entry>> tail_;
  size_t tail_bytes_ = 0;
  LogPosition last_;
  LogPosition durable_;
  bool complete_;
  absl::Status failure_;
  verbena::Event changed_;
};

}  // namespace replicated_kv

#endif  // VERBENA_EXAMPLES_REPLICATED_KV_REPLICA_LOG_H_
