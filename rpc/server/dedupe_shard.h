// DedupeShard: the deduplicated calls of some of a server's clients: those that run, and the
// results of those that have ended.
//
// Owned by a DedupeTable, which holds its lock around each call. Bounded in results, bytes and time
// as DedupeLimits says, and in records of clients' names by max_results, too. Each record remembers
// which numbers have run, so that no call is taken for a new one because its result was dropped. Of
// records that were dropped, the latest max_results leave their highest number (dropped_names.h).

#ifndef VERBENA_RPC_SERVER_DEDUPE_SHARD_H_
#define VERBENA_RPC_SERVER_DEDUPE_SHARD_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "verbena/rpc/call/context_format.h"
#include "verbena/rpc/call_context.h"
#include "verbena/rpc/outcome.h"
#include "verbena/rpc/server/dedupe_result.h"
#include "verbena/rpc/server/dedupe_shares.h"
#include "verbena/rpc/server/dropped_names.h"
#include "verbena/rpc/server/sequence_set.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/intrusive_list.h"
#include "verbena/transport/connect/runtime_id.h"
#include "verbena/transport/executor/executor.h"

namespace verbena::internal {

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
    kRun,      // run the handler, then call End()
    kLookUp,   // ask the store; run the handler if it has no result; then call End()
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
    // The client may have had a record before, which was dropped, with calls of these numbers.
    uint64_t unproven_below = 0;
    uint64_t began_below = 0;        // as far as numbers of calls went here
    SequenceSet forgotten;           // numbers that have run, and whose results were dropped
    std::map<uint64_t, Call> calls;  // by number
    TimePoint idle_since{};
  };

  static DedupeClaim Refused(absl::Status refusal, Outcome outcome);
  static void DropGoneWaiters(Call& call);
  static DedupeClaim Found(const DedupeRequest& request, Call& call, Executor& executor);
  DedupeClaim BeginUnknown(const DedupeRequest& request, Record* record, TimePoint now);
  // Calls of a client without a record may have run if their numbers are below it. `number`: that
  // of a call for which the client may have had a record that is not among the dropped ones.
  uint64_t UnprovenBelow(const RequestId& id, uint64_t number) const;
  void Acknowledge(Record& record, uint64_t below, TimePoint now);
  // A record for the request's client; null if there is no room.
  Record* AddRecord(const DedupeRequest& request, TimePoint now);
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

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_DEDUPE_SHARD_H_
