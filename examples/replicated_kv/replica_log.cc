#include "examples/replicated_kv/replica_log.h"

#include <algorithm>
#include <utility>

#include "examples/replicated_kv/limits.h"
#include "fmt/format.h"
#include "verbena/rpc/log.h"
#include "verbena/transport/log/mutant.h"

namespace replicated_kv {

using verbena::Task;

ReplicaLog::ReplicaLog(ReplicaStore& store, verbena::TaskScope& writes)
    : store_(store),
      writes_(writes),
      before_tail_(store.position().value_or(LogPosition())),
      last_(before_tail_),
      durable_(before_tail_),
      complete_(store.position().has_value()) {}

bool ReplicaLog::Has(LogPosition position) const {
  if (position == before_tail_) return true;
  const std::shared_ptr<const v1::Entry> entry = Find(position.sequence);
  return entry != nullptr && entry->epoch() == position.epoch;
}

std::shared_ptr<const v1::Entry> ReplicaLog::Find(uint64_t sequence) const {
  if (sequence <= before_tail_.sequence || sequence > last_.sequence) return nullptr;
  return tail_[sequence - before_tail_.sequence - 1];
}

absl::Status ReplicaLog::CheckNext(LogPosition next, uint64_t epoch, bool copy_begins) const {
  const bool in_order =
      copy_begins ? next.sequence < kMaxSequence
                  : next.sequence == last_.sequence + 1 &&
                        (next.epoch >= last_.epoch || VERBENA_MUTANT(kEntryOfPastEpochTaken));
  if (in_order && next.epoch <= epoch) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("{} {} of epoch {} after {} of epoch {}, from a primary of epoch {}",
                  copy_begins ? "a copy from" : "entry", next.sequence, next.epoch, last_.sequence,
                  last_.epoch, epoch));
}

void ReplicaLog::Append(std::shared_ptr<const v1::Entry> entry) {
  VERBENA_CHECK(entry->sequence() == last_.sequence + 1 && entry->epoch() >= last_.epoch)
      << "entry " << entry->sequence() << " of epoch " << entry->epoch() << " after "
      << last_.sequence << " of epoch " << last_.epoch;
  last_ = PositionOf(*entry);
  tail_.push_back(entry);
  tail_bytes_ += entry->ByteSizeLong();
  // Now, so that names and position follow the order of the log, not that of the disk.
  writes_.Spawn(WriteDown(store_.Prepare(std::move(entry), complete_)));
  Trim();
  Notify();
}

Task<void> ReplicaLog::WriteDown(ReplicaStore::Batch batch) {
  const LogPosition position = PositionOf(*batch.entry);
  const absl::Status written = co_await store_.Write(std::move(batch));
  if (!written.ok()) {
    if (failure_.ok()) failure_ = written;
  } else if (failure_.ok()) {
    durable_ = std::max(durable_, position);
  }
  Notify();
}

void ReplicaLog::Trim() {
  while (!tail_.empty() && (tail_.size() > kMaxTailEntries || tail_bytes_ > kMaxTailBytes)) {
    before_tail_ = PositionOf(*tail_.front());
    tail_bytes_ -= tail_.front()->ByteSizeLong();
    tail_.pop_front();
  }
}

void ReplicaLog::BeginCopy(LogPosition position) {
  VERBENA_CHECK(durable_ == last_) << "a copy began while entries were written";
  tail_.clear();
  tail_bytes_ = 0;
  before_tail_ = last_ = durable_ = position;
  complete_ = false;
}

Task<absl::Status> ReplicaLog::Complete() {
  VERBENA_CO_RETURN_IF_ERROR(co_await Drain());
  VERBENA_CO_RETURN_IF_ERROR(co_await store_.WritePosition(last_));
  complete_ = true;
  Notify();
  co_return absl::OkStatus();
}

Task<absl::Status> ReplicaLog::Drain() {
  while (failure_.ok() && durable_ < last_) {
    VERBENA_CO_RETURN_IF_ERROR(co_await Changed());
  }
  co_return failure_;
}

Task<absl::Status> ReplicaLog::Changed() { co_return co_await changed_.Wait(); }

void ReplicaLog::Notify() {
  changed_.Set();
  changed_.Reset();
}

}  // namespace replicated_kv
