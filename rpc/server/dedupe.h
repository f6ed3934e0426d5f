// Deduplicated calls of a server: DedupeTable, the parts that it consists of (DedupeShard), and
// what a part remembers.
//
// The Server owns the table; any thread, under the lock of a part. DedupeLimits bounds results,
// bytes and time.

#ifndef VERBENA_RPC_SERVER_DEDUPE_H_
#define VERBENA_RPC_SERVER_DEDUPE_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/call/context_block.h"
#include "verbena/rpc/dedupe.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/connect/peer.h"
#include "verbena/transport/coro/sync.h"
#include "verbena/transport/executor/executor.h"

namespace verbena::internal {

// The memberships of results and of records in their client's lists.
struct DedupeResultNode : IntrusiveNode<DedupeResultNode> {};
struct DedupeIdleNode : IntrusiveNode<DedupeIdleNode> {};

// Orders parts by weight, the heaviest last. Of those that weigh alike, the oldest comes last.
struct DedupeByWeight {
  template <typename Part>
  bool operator()(const Part* a, const Part* b) const {
    return a->weight != b->weight ? a->weight < b->weight : a->serial > b->serial;
  }
};

struct DedupeSource;

// One client's part.
struct DedupeOwner {
  RuntimeId runtime;
  DedupeSource* source = nullptr;
  uint64_t serial = 0;  // in the order in which parts are made
  size_t weight = 0;
  IntrusiveList<DedupeResultNode> results;  // that are kept, the oldest first
  // Records of names without results and calls, or what DroppedNames has left of them. The oldest
  // come first.
  IntrusiveList<DedupeIdleNode> idle;
};

struct DedupeSource {
  std::string address;
  uint64_t serial = 0;
  size_t weight = 0;
  absl::flat_hash_map<RuntimeId, std::unique_ptr<DedupeOwner>> owners;
  absl::btree_set<DedupeOwner*, DedupeByWeight> by_weight;
};

// DedupeShares: whose results a table of deduplicated calls drops first, so that no client pushes
// out the results of clients that have fewer.
//
// A client is a runtime, and belongs to the source address that it first came from. Each result and
// each record of names weighs on its client and on the client's source. The heaviest client of the
// heaviest source loses first, and the oldest one among those that weigh alike. Owned by a
// DedupeShard, under its lock.
class DedupeShares {
 public:
  // The part of a runtime at an address. It goes when its weight is 0 again.
  DedupeOwner& Of(const std::string& address, const RuntimeId& runtime) {
    std::unique_ptr<DedupeSource>& source = sources_[address];
    if (source == nullptr) {
      source = std::make_unique<DedupeSource>();
      source->address = address;
      source->serial = next_serial_++;
      by_weight_.insert(source.get());
    }
    std::unique_ptr<DedupeOwner>& owner = source->owners[runtime];
    if (owner == nullptr) {
      owner = std::make_unique<DedupeOwner>();
      owner->runtime = runtime;
      owner->source = source.get();
      owner->serial = next_serial_++;
      source->by_weight.insert(owner.get());
    }
    return *owner;
  }

  void Add(DedupeOwner& owner, size_t weight) {
    SetWeight(owner, owner.weight + weight, owner.source->weight + weight);
  }
  // Destroys `owner` if that was all.
  void Remove(DedupeOwner& owner, size_t weight) {
    DedupeSource& source = *owner.source;
    VERBENA_CHECK(owner.weight >= weight && source.weight >= weight)
        << weight << " of " << owner.weight << " and " << source.weight;
    SetWeight(owner, owner.weight - weight, source.weight - weight);
    if (owner.weight > 0) return;
    source.by_weight.erase(&owner);
    source.owners.erase(RuntimeId(owner.runtime));
    if (!source.owners.empty()) return;
    by_weight_.erase(&source);
    sources_.erase(std::string(source.address));
  }

  // The first that loses among those for which `has_some` holds; null if there are none.
  template <typename HasSome>
  DedupeOwner* Heaviest(HasSome has_some) const {
    for (auto source = by_weight_.rbegin(); source != by_weight_.rend(); ++source) {
      const auto& owners = (*source)->by_weight;
      for (auto owner = owners.rbegin(); owner != owners.rend(); ++owner) {
        if (has_some(**owner)) return *owner;
      }
    }
    return nullptr;
  }

 private:
  void SetWeight(DedupeOwner& owner, size_t weight, size_t of_source) {
    DedupeSource& source = *owner.source;
    source.by_weight.erase(&owner);
    by_weight_.erase(&source);
    owner.weight = weight;
    source.weight = of_source;
    source.by_weight.insert(&owner);
    by_weight_.insert(&source);
  }

  absl::flat_hash_map<std::string, std::unique_ptr<DedupeSource>> sources_;  // by address
  absl::btree_set<DedupeSource*, DedupeByWeight> by_weight_;
  uint64_t next_serial_ = 0;
};

// KeptResult: how a deduplicated call ended, for requests that repeat it.
//
// Unchanged once it is shared; any thread.
struct KeptResult {
  absl::Status status;
  Outcome outcome = Outcome::kExecuted;
  std::string reply;                   // serialized; empty after a failure
  std::optional<std::string> payload;  // of the response
  Metadata trailing;                   // that the handler gave
  bool is_final = true;                // false: a further request may run the call

  size_t bytes() const {
    size_t bytes = status.message().size() + reply.size() + trailing.bytes();
    if (payload.has_value()) bytes += payload->size();
    status.ForEachPayload([&bytes](absl::string_view url, const absl::Cord& value) {
      bytes += url.size() + value.size();
    });
    return bytes;
  }
};

// DedupeWaiter: a request that repeats a call while that runs.
//
// Shared by the request, on its executor's thread, and by the table until the call has ended.
// Tell() may be called once, on any thread.
class DedupeWaiter final : public std::enable_shared_from_this<DedupeWaiter> {
 public:
  // `executor` outlives the running call.
  explicit DedupeWaiter(Executor& executor) : executor_(executor) {}

  Event& told() { return told_; }
  // Precondition: told().
  const KeptResult& result() const {
    VERBENA_CHECK(result_ != nullptr) << "nobody has told the result yet";
    return *result_;
  }

  void Tell(std::shared_ptr<const KeptResult> result) {
    executor_.PostFunction([self = shared_from_this(), result = std::move(result)]() mutable {
      self->result_ = std::move(result);
      self->told_.Set();
    });
  }

 private:
  Executor& executor_;
  Event told_;
  std::shared_ptr<const KeptResult> result_;
};

// The calls of a client that may have run, as far as its record does not know them.
struct UnprovenCalls {
  uint64_t below = 0;  // calls with lower numbers
  // Calls with any number that came until then. None: there are no such calls.
  std::optional<TimePoint> any_until = {};

  bool Contains(uint64_t number) const { return any_until.has_value() || number < below; }
};

// DroppedNames: the clients whose records of names a table has dropped, each with its calls that
// may have run.
//
// Bounded: as with results, the runtime that has the most entries loses its oldest one first
// (DedupeShares). A name is good for one runtime. So a lost entry makes only clients of its own
// runtime doubtful while that runtime has other entries, and clients of every runtime after that.
// Part of a DedupeShard, under its lock.
class DroppedNames {
 public:
  using Client = std::array<uint8_t, 16>;

  // Keeps `most` of them, at least 1.
  explicit DroppedNames(size_t most) : most_(most) {}

  // The record of a client of `runtime`, which came from `source`, was dropped. The client has had
  // no call since `last`.
  void Add(const Client& client, const std::string& source, const RuntimeId& runtime,
           const UnprovenCalls& unproven, TimePoint last) {
    // An entry of another runtime that has given the same name makes way.
    if (const auto other = entries_.find(client); other != entries_.end()) Forget(*other->second);
    auto entry = std::make_unique<Entry>();
    entry->client = client;
    entry->owner = &shares_.Of(source, runtime);
    entry->unproven = unproven;
    entry->last = last;
    entry->owner->idle.PushBack(*entry);
    shares_.Add(*entry->owner, 1);
    ++runtimes_[runtime].entries;
    entries_.emplace(client, std::move(entry));
    if (entries_.size() <= most_) return;
    DedupeOwner* heaviest = shares_.Heaviest([](const DedupeOwner&) { return true; });
    Forget(*static_cast<Entry*>(heaviest->idle.Front()));
  }
  // Returns the calls that may have run of a client without a record.
  UnprovenCalls UnprovenOf(const Client& client, const RuntimeId& runtime) const {
    const auto entry = entries_.find(client);
    const bool is_known = entry != entries_.end() && entry->second->owner->runtime == runtime;
    if (is_known) return entry->second->unproven;
    const auto lost = runtimes_.find(runtime);
    if (lost == runtimes_.end()) return {.any_until = forgotten_last_};
    return {.any_until = std::max(forgotten_last_, lost->second.forgotten_last)};
  }
  // The client has a record again.
  void Remove(const Client& client, const RuntimeId& runtime) {
    const auto entry = entries_.find(client);
    const bool is_known = entry != entries_.end() && entry->second->owner->runtime == runtime;
    if (is_known) Remove(*entry->second);
  }
  size_t size() const { return entries_.size(); }

 private:
  struct Entry : DedupeIdleNode {
    Client client{};
    DedupeOwner* owner = nullptr;
    UnprovenCalls unproven;
    TimePoint last{};
  };
  struct Lost {
    size_t entries = 0;  // that are left of the runtime
    // The runtime's forgotten clients have had no call since then. None: it has no such clients.
    std::optional<TimePoint> forgotten_last;
  };

  // Destroys `entry`. Each unknown client of the runtime may be the one of `entry` from now on.
  void Forget(const Entry& entry) {
    std::optional<TimePoint>& last = runtimes_[entry.owner->runtime].forgotten_last;
    last = std::max(last, std::optional<TimePoint>(entry.last));
    Remove(entry);
  }
  // Destroys `entry`.
  void Remove(const Entry& entry) {
    DedupeOwner& owner = *entry.owner;
    const auto lost = runtimes_.find(owner.runtime);
    if (--lost->second.entries == 0) {
      forgotten_last_ = std::max(forgotten_last_, lost->second.forgotten_last);
      runtimes_.erase(lost);
    }
    entries_.erase(Client(entry.client));
    shares_.Remove(owner, 1);
  }

  const size_t most_;
  DedupeShares shares_;  // each entry weighs 1
  absl::flat_hash_map<Client, std::unique_ptr<Entry>> entries_;
  absl::flat_hash_map<RuntimeId, Lost> runtimes_;  // that have entries
  std::optional<TimePoint> forgotten_last_;        // of all other runtimes
};

// SequenceSet: a set of numbers that mostly follow each other, as ranges.
//
// Bounded: if it would need more than kMaxRanges, the numbers between its two lowest ranges join
// it, so that it may hold more than was added, never less. A value; one thread.
class SequenceSet {
 public:
  static constexpr size_t kMaxRanges = 64;

  bool Contains(uint64_t number) const {
    const auto next = FirstBehind(number);
    return next != ranges_.begin() && number < (next - 1)->end;
  }

  // Precondition: number + 1 does not wrap around.
  void Add(uint64_t number) {
    VERBENA_CHECK(number + 1 != 0) << number;
    if (Contains(number)) return;
    auto next = ranges_.begin() + (FirstBehind(number) - ranges_.begin());
    const bool joins_before = next != ranges_.begin() && (next - 1)->end == number;
    const bool joins_next = next != ranges_.end() && next->begin == number + 1;
    if (joins_before && joins_next) {
      (next - 1)->end = next->end;
      ranges_.erase(next);
    } else if (joins_before) {
      ++(next - 1)->end;
    } else if (joins_next) {
      --next->begin;
    } else {
      ranges_.insert(next, {number, number + 1});
      if (ranges_.size() > kMaxRanges) JoinLowest();
    }
  }

  // Removes all numbers below `limit`.
  void RemoveBelow(uint64_t limit) {
    const auto kept = std::find_if(ranges_.begin(), ranges_.end(),
                                   [limit](const Range& range) { return range.end > limit; });
    ranges_.erase(ranges_.begin(), kept);
    if (!ranges_.empty()) ranges_.front().begin = std::max(ranges_.front().begin, limit);
  }

  size_t ranges() const { return ranges_.size(); }

 private:
  // Numbers from `begin` to before `end`.
  struct Range {
    uint64_t begin;
    uint64_t end;
  };

  // The first range that begins behind `number`.
  std::vector<Range>::const_iterator FirstBehind(uint64_t number) const {
    return std::upper_bound(ranges_.begin(), ranges_.end(), number,
                            [](uint64_t value, const Range& range) { return value < range.begin; });
  }
  void JoinLowest() {
    ranges_[1].begin = ranges_[0].begin;
    ranges_.erase(ranges_.begin());
  }

  std::vector<Range> ranges_;  // ascending; none touches the next
};

struct DedupeLimits {
  size_t max_results = 0;
  size_t max_bytes = 0;
  Duration keep_for{};
  bool has_store = false;
};

// A request with a name.
struct DedupeRequest {
  DedupeName name;
  // The client's, as its handshake claims, and the address that it came from.
  RuntimeId runtime;
  std::string source;
  uint64_t method = 0;       // MethodId()
  uint32_t fingerprint = 0;  // CRC32C of the request and its payload
};

// The decision about a request.
struct DedupeClaim {
  enum class Verdict : uint8_t {
    kRun,      // run the handler; call End() when nothing of the run goes on
    kLookUp,   // ask the store; run the handler if it has no result; then call End() as for kRun
    kWait,     // for `waiter`
    kKept,     // answer with `result`
    kRefused,  // with `refusal` and `outcome`
  };

  Verdict verdict = Verdict::kRun;
  std::shared_ptr<const KeptResult> result = {};
  std::shared_ptr<DedupeWaiter> waiter = {};
  absl::Status refusal = {};
  Outcome outcome = Outcome::kNotExecuted;
};

using DedupeWaiters = absl::InlinedVector<std::shared_ptr<DedupeWaiter>, 1>;

// DedupeShard: the deduplicated calls of some of a server's clients: those that run, and the
// results of those that have ended.
//
// Owned by a DedupeTable, which holds its lock around each call. Bounded in results, bytes and time
// as DedupeLimits says, and in records of clients' names by max_results, too. Each record remembers
// which numbers have run, so that no call is taken for a new one because its result was dropped.
// For max_results dropped records the table keeps the highest number (DroppedNames). A client
// beyond these may have been forgotten. It tells which numbers it had given, in its first request
// that left it after all calls that may have been forgotten.
class DedupeShard {
 public:
  // `incarnation` is the server's.
  DedupeShard(const DedupeLimits& limits, uint64_t incarnation);
  ~DedupeShard();

  // A request has come whose waiter, if it waits, is on `executor`.
  DedupeClaim Begin(const DedupeRequest& request, Executor& executor, TimePoint now);
  // The call of a request for which Begin() said kRun or kLookUp has ended. A result that is not
  // final is not kept. Returns those that wait for it.
  DedupeWaiters End(const RequestId& id, const std::shared_ptr<const KeptResult>& result,
                    TimePoint now);

  size_t results() const { return results_; }
  size_t bytes() const { return bytes_; }
  size_t records() const { return records_.size(); }

 private:
  static constexpr size_t kFirstLook = 8;
  // Results, and records, that one request drops because their time is over: it adds one at most,
  // and others wait for the lock.
  static constexpr size_t kMostExpired = 64;

  struct Record;
  struct AgeNode : IntrusiveNode<AgeNode> {};
  struct IdleAgeNode : IntrusiveNode<IdleAgeNode> {};
  // A call that runs, or whose result is kept.
  struct Call : DedupeResultNode, AgeNode {
    Record* record = nullptr;
    uint64_t number = 0;
    uint64_t method = 0;
    uint32_t fingerprint = 0;
    std::shared_ptr<const KeptResult> result;  // null while it runs
    DedupeWaiters waiters;
    size_t next_look = kFirstLook;  // for waiters that are gone, when there are as many
    size_t bytes = 0;
    TimePoint ended{};
  };
  // The names of one channel of a client's.
  struct Record : DedupeIdleNode, IdleAgeNode {
    RequestId client;  // its number is 0
    DedupeOwner* owner = nullptr;
    uint64_t acknowledged_below = 0;
    UnprovenCalls unproven;          // the client may have had a record before, which was dropped
    uint64_t began_below = 0;        // as far as numbers of calls went here
    SequenceSet forgotten;           // numbers that have run, and whose results were dropped
    std::map<uint64_t, Call> calls;  // by number
    TimePoint idle_since{};
  };

  static DedupeClaim Refused(absl::Status refusal, Outcome outcome);
  static void DropGoneWaiters(Call& call);
  static DedupeClaim Found(const DedupeRequest& request, Call& call, Executor& executor);
  DedupeClaim BeginUnknown(const DedupeRequest& request, Record* record, TimePoint now);
  // A request of the client has come. If it left the client after all calls that may have run had
  // come, their numbers are at most the highest one that the request tells. Otherwise it proves
  // nothing: requests need not come in the order of their numbers, so a call with a higher number
  // may have overtaken this one, run, and be forgotten.
  void Prove(const DedupeName& name, TimePoint now, UnprovenCalls& unproven) const;
  void Acknowledge(Record& record, uint64_t below, TimePoint now);
  // A record for the request's client; null if there is no room.
  Record* AddRecord(const DedupeRequest& request, const UnprovenCalls& unproven, TimePoint now);
  void Keep(Call& call, const std::shared_ptr<const KeptResult>& result, TimePoint now);
  // `forgets`: its number stays known as one that has run.
  void DropResult(Call& call, bool forgets, TimePoint now);
  void RemoveCall(Call& call, TimePoint now);
  void NoteIdle(Record& record, TimePoint now);
  void DropRecord(Record& record);
  void Expire(TimePoint now);
  void EnforceBounds(TimePoint now);
  size_t WeightOf(const Call& call) const { return call.bytes + entry_weight_; }

  const DedupeLimits limits_;
  const uint64_t incarnation_;
  const size_t entry_weight_;
  DedupeShares shares_;
  absl::flat_hash_map<std::array<uint8_t, 16>, std::unique_ptr<Record>> records_;
  IntrusiveList<AgeNode> by_age_;           // results, the oldest first
  IntrusiveList<IdleAgeNode> idle_by_age_;  // records
  size_t results_ = 0;
  size_t bytes_ = 0;
  DroppedNames dropped_;  // of clients that were known
};

// INVALID_ARGUMENT, which names the field, if one is out of its range.
absl::Status CheckDedupe(const DedupeOptions& options);

struct DedupeTableStats {
  size_t results = 0;
  size_t bytes = 0;
  uint64_t repeated = 0;
  uint64_t unproven = 0;
};

// DedupeTable: the deduplicated calls of a server, on all its executors.
//
// A repeated request may come over another link, to another executor than the first. So one table
// serves all: its parts hold the calls of some clients each, by the client's random bits, and each
// part has a mutex. Only deduplicated calls take it, twice each and briefly: nothing is awaited or
// copied under it. Owned by the Server; any thread. A part has its share of each bound.
class DedupeTable {
 public:
  // Precondition: CheckDedupe(options). Draws the server's incarnation.
  explicit DedupeTable(const DedupeOptions& options);

  uint64_t incarnation() const { return incarnation_; }
  // Null if the service stores no names.
  DedupeStore* store() const { return options_.store; }
  size_t max_result_bytes() const { return options_.max_result_bytes; }
  Duration keep_for() const { return options_.keep_for; }

  // A request has come to `executor`, on whose thread this is called.
  DedupeClaim Begin(const DedupeRequest& request, Executor& executor);
  // The call of a request that Begin() let run has ended, on `executor`, and nothing of it goes on:
  // tells those who wait.
  void End(const RequestId& id, const std::shared_ptr<const KeptResult>& result,
           const Executor& executor);

  // Memory for a piece of a payload that a handler writes, until its call ends and gives back all
  // that it took. False: such calls have as much as results may have. Any thread.
  bool TakeUnfinished(size_t bytes);
  void ReturnUnfinished(size_t bytes) {
    unfinished_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  }

  // True once for each of the server's methods, by its id: its handler has ended with a failure
  // that may pass, and that is kept. Any thread.
  bool FirstKeptOf(uint64_t method);

  DedupeTableStats stats() const;

 private:
  struct Part {
    Part(const DedupeLimits& limits, uint64_t incarnation) : shard(limits, incarnation) {}
    std::mutex mutex;
    DedupeShard shard;
  };

  Part& PartOf(const RequestId& id) const;

  const DedupeOptions options_;
  const uint64_t incarnation_;
  std::vector<std::unique_ptr<Part>> parts_;
  std::atomic<size_t> unfinished_bytes_ = 0;
  std::atomic<uint64_t> repeated_ = 0;
  std::atomic<uint64_t> unproven_ = 0;
  std::mutex kept_mutex_;
  absl::flat_hash_set<uint64_t> kept_methods_;  // FirstKeptOf(); under kept_mutex_
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_DEDUPE_H_
