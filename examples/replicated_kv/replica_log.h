// ReplicaLog: a replica's log: how far it goes, how far the disk has it, and its last entries in
// memory, for backups that were away for a moment.
//
// RocksDB has a log of its own, so entries go to the disk once, as data (replica_store.h). The tail
// in memory is bounded (limits.h) and starts empty with the process. All on one executor.

#ifndef VERBENA_EXAMPLES_REPLICATED_KV_REPLICA_LOG_H_
#define VERBENA_EXAMPLES_REPLICATED_KV_REPLICA_LOG_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "examples/replicated_kv/limits.h"
#include "examples/replicated_kv/replica_store.h"
#include "examples/replicated_kv/replicated_kv.pb.h"
#include "examples/replicated_kv/shard_state.h"
#include "fmt/format.h"
#include "verbena/rpc/log.h"
#include "verbena/rpc/task.h"

namespace replicated_kv {

class ReplicaLog {
 public:
  // Begins where the store is. Writes run in `writes`; store and scope must outlive the log.
  ReplicaLog(ReplicaStore& store, verbena::TaskScope& writes)
      : store_(store),
        writes_(writes),
        before_tail_(store.position().value_or(LogPosition())),
        last_(before_tail_),
        durable_(before_tail_),
        complete_(store.position().has_value()) {}

  LogPosition last() const { return last_; }
  LogPosition durable() const { return durable_; }
  // False: the store has lost its data, or has part of a copy.
  bool complete() const { return complete_; }
  // Not OK once the disk has failed: the log goes no further then.
  const absl::Status& failure() const { return failure_.ok() ? store_.failure() : failure_; }
  bool has_room() const { return last_.sequence - durable_.sequence < kMaxUnwritten; }

  // Whether memory has the entry at that position. If so, the log has all entries before it.
  bool Has(LogPosition position) const {
    if (position == before_tail_) return true;
    const std::shared_ptr<const v1::Entry> entry = Find(position.sequence);
    return entry != nullptr && entry->epoch() == position.epoch;
  }
  // nullptr: not in memory.
  std::shared_ptr<const v1::Entry> Find(uint64_t sequence) const {
    if (sequence <= before_tail_.sequence || sequence > last_.sequence) return nullptr;
    return tail_[sequence - before_tail_.sequence - 1];
  }

  // INVALID_ARGUMENT: a primary of `epoch` cannot send an entry of position `next` now, or begin a
  // copy there.
  absl::Status CheckNext(LogPosition next, uint64_t epoch, bool copy_begins = false) const {
    const bool in_order = copy_begins
                              ? next.sequence < kMaxSequence
                              : next.sequence == last_.sequence + 1 && next.epoch >= last_.epoch;
    if (in_order && next.epoch <= epoch) return absl::OkStatus();
    return absl::InvalidArgumentError(
        fmt::format("{} {} of epoch {} after {} of epoch {}, from a primary of epoch {}",
                    copy_begins ? "a copy from" : "entry", next.sequence, next.epoch,
                    last_.sequence, last_.epoch, epoch));
  }
  // Precondition: it follows last(), in an epoch that is no older.
  void Append(std::shared_ptr<const v1::Entry> entry) {
    VERBENA_CHECK(entry->sequence() == last_.sequence + 1 && entry->epoch() >= last_.epoch)
        << "entry " << entry->sequence() << " of epoch " << entry->epoch() << " after "
        << last_.sequence << " of epoch " << last_.epoch;
    last_ = PositionOf(*entry);
    tail_.push_back(entry);
    tail_bytes_ += entry->ByteSizeLong();
    // Prepare() is called now, so that names and position follow the order of the log, not that of
    // the disk.
    writes_.Spawn(WriteDown(store_.Prepare(std::move(entry), complete_)));
    Trim();
    Notify();
  }
  // Erases the store, and then goes on behind `position`, up to which a copy's pages have the
  // entries. The log is not complete until Complete(). Nothing may be appended meanwhile.
  // Precondition: nothing is on its way to the disk.
  verbena::Task<absl::Status> BeginCopy(LogPosition position) {
    VERBENA_CHECK(durable_ == last_) << "a copy began while entries were written";
    complete_ = false;
    VERBENA_CO_RETURN_IF_ERROR(co_await store_.Clear());
    tail_.clear();
    tail_bytes_ = 0;
    before_tail_ = last_ = durable_ = position;
    Notify();
    co_return absl::OkStatus();
  }
  // Waits for the disk, and makes the copy count.
  verbena::Task<absl::Status> Complete() {
    VERBENA_CO_RETURN_IF_ERROR(co_await Drain());
    VERBENA_CO_RETURN_IF_ERROR(co_await store_.WritePosition(last_));
    complete_ = true;
    Notify();
    co_return absl::OkStatus();
  }

  // Waits until the disk has the whole log. Fails if the disk does.
  verbena::Task<absl::Status> Drain() {
    while (failure().ok() && durable_ < last_) {
      VERBENA_CO_RETURN_IF_ERROR(co_await Changed());
    }
    co_return failure();
  }
  // Waits until the log has changed, or somebody has called Notify().
  verbena::Task<absl::Status> Changed() { co_return co_await changed_.Wait(); }
  void Notify() {
    changed_.Set();
    changed_.Reset();
  }

 private:
  static constexpr uint64_t kMaxUnwritten = 1024;
  // No log gets as long.
  static constexpr uint64_t kMaxSequence = uint64_t{1} << 62;

  verbena::Task<void> WriteDown(ReplicaStore::Batch batch) {
    const LogPosition position = PositionOf(*batch.entry);
    const absl::Status written = co_await store_.Write(std::move(batch));
    if (!written.ok() && failure_.ok()) failure_ = written;
    if (failure().ok()) durable_ = std::max(durable_, position);
    Notify();
  }
  void Trim() {
    while (!tail_.empty() && (tail_.size() > kMaxTailEntries || tail_bytes_ > kMaxTailBytes)) {
      before_tail_ = PositionOf(*tail_.front());
      tail_bytes_ -= tail_.front()->ByteSizeLong();
      tail_.pop_front();
    }
  }

  ReplicaStore& store_;
  verbena::TaskScope& writes_;
  LogPosition before_tail_;  // of the entry before the first in memory
  std::deque<std::shared_ptr<const v1::Entry>> tail_;
  size_t tail_bytes_ = 0;
  LogPosition last_;
  LogPosition durable_;
  bool complete_;
  absl::Status failure_;  // of a write of the log, or why it was cut off
  verbena::Event changed_;
};

}  // namespace replicated_kv

#endif  // VERBENA_EXAMPLES_REPLICATED_KV_REPLICA_LOG_H_
