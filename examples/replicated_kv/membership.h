// CommitPoint and Membership: what is committed, and the in-sync set of a shard as its primary
// changes it.
//
// A backup that is lost leaves the set in etcd first, and only then does the commit point go on
// without it. A backup that joins counts from before the transaction that adds it, and has by then
// all that is or may be committed: the commit point waits for it, so that it gets there beside a
// primary whose disk is quicker. So at each moment every member that etcd knows has all that is
// committed. One change at a time. A primary has one Membership for each of its epochs. One
// executor.

#ifndef VERBENA_EXAMPLES_REPLICATED_KV_MEMBERSHIP_H_
#define VERBENA_EXAMPLES_REPLICATED_KV_MEMBERSHIP_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "examples/replicated_kv/limits.h"
#include "examples/replicated_kv/shard_directory.h"
#include "examples/replicated_kv/shard_state.h"
#include "fmt/format.h"
#include "verbena/rpc/task.h"

namespace replicated_kv {

// How far the log is committed: each replica that counts has it on its disk. Those are the in-sync
// set, and a replica that is about to join it. It never goes back.
class CommitPoint {
 public:
  // The primary of `epoch` makes one. Earlier epochs may have committed the log up to `inherited`.
  CommitPoint(LogPosition inherited, uint64_t epoch) : inherited_(inherited), epoch_(epoch) {}

  void SetMembers(std::vector<std::string> members) {
    members_ = std::move(members);
    Advance();
  }
  // A replica's disk has the log up to `sequence`. 0: it has nothing, or lost what it had.
  void NoteDurable(std::string_view name, uint64_t sequence) {
    durable_.insert_or_assign(std::string(name), sequence);
    Advance();
    noted_.Set();
    noted_.Reset();
  }
  uint64_t DurableAt(std::string_view name) const {
    const auto found = durable_.find(name);
    return found == durable_.end() ? 0 : found->second;
  }
  uint64_t sequence() const { return sequence_; }
  // The last entry that is committed. {}: it was made before `inherited`, so its epoch is not
  // known.
  LogPosition position() const {
    if (sequence_ > inherited_.sequence) return {.epoch = epoch_, .sequence = sequence_};
    return sequence_ == inherited_.sequence ? inherited_ : LogPosition();
  }
  // Whether a replica's disk has all that may be committed, in this epoch or before it.
  bool HasAll(std::string_view name) const {
    return DurableAt(name) >= std::max(sequence_, inherited_.sequence);
  }
  // Waits until HasAll(name). A replica that does not count may never get there.
  verbena::Task<absl::Status> AwaitAll(std::string name) {
    while (!HasAll(name)) VERBENA_CO_RETURN_IF_ERROR(co_await noted_.Wait());
    co_return absl::OkStatus();
  }

 private:
  void Advance() {
    if (members_.empty()) return;
    uint64_t least = UINT64_MAX;
    for (const std::string& name : members_) least = std::min(least, DurableAt(name));
    sequence_ = std::max(sequence_, least);
  }

  const LogPosition inherited_;
  const uint64_t epoch_;
  std::vector<std::string> members_;
  std::map<std::string, uint64_t, std::less<>> durable_;
  uint64_t sequence_ = 0;
  verbena::Event noted_;  // set and reset at each NoteDurable()
};

// Whether a backup's disk takes what the backup is sent. A backup that goes on to answer, but whose
// disk is stuck, would hold up each write for as long as it is in sync.
class BackupProgress {
 public:
  // For each answer: the backup was sent entries up to `sent`, and has those up to `durable` on its
  // disk. True if its disk lacks an entry that it was sent more than kDiskPatience ago. Since only
  // answers tell, this may take twice as long.
  bool IsStuck(uint64_t sent, uint64_t durable, verbena::TimePoint now) {
    if (durable >= awaited_) {
      awaited_ = sent;
      since_ = now;
    }
    return durable < awaited_ && now - since_ > kDiskPatience;
  }

 private:
  uint64_t awaited_ = 0;  // the last entry when the disk was last seen to have all awaited before
  verbena::TimePoint since_{};
};

// The reasons why a backup is not in sync that the log has. A reason that comes again and again is
// logged once, as are those that differ in numbers alone.
class LoggedReasons {
 public:
  // A backup has so many different reasons at most. (start)
  static constexpr size_t kMaxReasons = 16;

  // Whether to log why the backup was lost. If so, it counts as logged.
  bool IsNew(const absl::Status& lost) {
    std::string words(lost.message());
    std::erase_if(words, absl::ascii_isdigit);
    return logged_.size() < kMaxReasons && logged_.insert(std::move(words)).second;
  }
  // The backup was in sync since.
  void Clear() { logged_.clear(); }

 private:
  std::set<std::string> logged_;  // without digits
};

class Membership {
 public:
  Membership(ShardDirectory& directory, CommitPoint& point, SeenState seen, int64_t lease)
      : directory_(directory), point_(point), seen_(std::move(seen)), lease_(lease) {
    Count();
  }

  const ShardState& state() const { return seen_.state; }

  // Each of these tells etcd how far the log is committed, too. They return when etcd has the
  // change, and try again until etcd answers. ABORTED: another primary has taken over, or the lease
  // has ended; then this Membership is over. CANCELLED: the Task is cancelled, and etcd may have
  // either set. A replica that may be in the set counts, until Remove().
  verbena::Task<absl::Status> Remove(std::string name) {
    VERBENA_CO_ASSIGN_OR_RETURN(const verbena::MutexLock lock, co_await changing_.Lock());
    if (IsInSync(state(), name) || unsure_) {
      VERBENA_CO_RETURN_IF_ERROR(
          co_await Change([&](ShardState from) { return Without(std::move(from), name); }));
    }
    joining_.erase(name);
    Count();
    co_return absl::OkStatus();
  }
  // The replica counts from now on, and etcd is asked once its disk has all that may be committed.
  // UNAVAILABLE: it took longer than kDiskPatience, and counts no more. Call it when the replica is
  // close, since writes wait for it.
  verbena::Task<absl::Status> Add(std::string name) {
    if (IsInSync(state(), name) && !unsure_) co_return absl::OkStatus();
    joining_.insert(name);
    Count();
    absl::Cleanup leave = [&] {
      joining_.erase(name);
      Count();
    };
    // Without a turn: another change must not wait for this disk.
    const absl::Status reached =
        co_await verbena::WithDeadline(point_.AwaitAll(name), kDiskPatience);
    if (absl::IsDeadlineExceeded(reached)) co_return IsBehind(name);
    VERBENA_CO_RETURN_IF_ERROR(reached);
    VERBENA_CO_ASSIGN_OR_RETURN(const verbena::MutexLock lock, co_await changing_.Lock());
    if (IsInSync(state(), name) && !unsure_) co_return absl::OkStatus();
    // A disk that has lost entries meanwhile does not join.
    if (!point_.HasAll(name)) co_return IsBehind(name);
    // From now on the transaction may take effect at any moment, so it counts until Remove().
    std::move(leave).Cancel();
    VERBENA_CO_RETURN_IF_ERROR(
        co_await Change([&](ShardState from) { return With(std::move(from), name); }));
    joining_.erase(name);
    Count();
    co_return absl::OkStatus();
  }
  // Changes no set.
  verbena::Task<absl::Status> TellCommitted() {
    VERBENA_CO_ASSIGN_OR_RETURN(const verbena::MutexLock lock, co_await changing_.Lock());
    if (point_.position() <= state().committed) co_return absl::OkStatus();
    VERBENA_CO_RETURN_IF_ERROR(co_await Change([](ShardState from) { return from; }));
    Count();
    co_return absl::OkStatus();
  }

 private:
  template <typename NextOf>
  verbena::Task<absl::Status> Change(NextOf next_of) {
    for (;;) {
      ShardState next = next_of(state());
      next.committed = std::max(next.committed, point_.position());
      unsure_ = true;
      absl::StatusOr<SeenState> now = co_await directory_.Replace(seen_, next, lease_);
      // An answer that is older than seen_ proves nothing.
      const bool stale = now.ok() && now->revision < seen_.revision;
      if (!now.ok() || stale) {
        VERBENA_CO_RETURN_IF_ERROR(co_await verbena::Sleep(kPause));
        continue;
      }
      if (now->state.epoch != state().epoch || now->holder_lease != lease_) {
        co_return absl::AbortedError(fmt::format("epoch {} is over: etcd has '{}', under {} lease",
                                                 state().epoch, ShardStateText(now->state),
                                                 now->holder_lease == 0 ? "no" : "another"));
      }
      // Only the primary of an epoch changes its set. If etcd has another state than the one asked
      // for, an earlier change made it, whose answer was lost.
      seen_ = *std::move(now);
      unsure_ = false;
      if (state() == next) co_return absl::OkStatus();
    }
  }
  void Count() {
    std::vector<std::string> counted = state().in_sync;
    counted.insert(counted.end(), joining_.begin(), joining_.end());
    point_.SetMembers(std::move(counted));
  }
  absl::Status IsBehind(std::string_view name) const {
    return absl::UnavailableError(
        fmt::format("{} has entries up to {} on its disk, and later ones may be committed", name,
                    point_.DurableAt(name)));
  }

  ShardDirectory& directory_;
  CommitPoint& point_;
  SeenState seen_;
  const int64_t lease_;
  bool unsure_ = false;  // whether etcd has more than is seen
  // Replicas that count and may not be in the set that is seen.
  std::set<std::string> joining_;
  verbena::Mutex changing_;
};

}  // namespace replicated_kv

#endif  // VERBENA_EXAMPLES_REPLICATED_KV_MEMBERSHIP_H_
