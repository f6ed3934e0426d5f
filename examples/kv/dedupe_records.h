// DedupeRecords: which of kv's calls have run, and their replies, kept as records of a Store. A
// call that is repeated after a crash gets the reply of the one that ran.
//
// A record is written in the same step as the data, and removed with a later write of its client
// once the client has acknowledged it. A client that leaves more than half of `max_names`
// unacknowledged is refused. Clients that are gone acknowledge nothing: beyond `max_names` in all,
// those that have been idle longest are dropped. After that a missing record proves that a call has
// not run only in two cases: its client was known before the drop and ever since; or the client
// gave the call its number after a proving request. That is one that tells the highest number, and
// that left the client when all names that it may have lost were written. A restart keeps the proof
// for names above all that the store still has of the client, unless a name is left from before the
// proving request. Then the client's next request proves it anew.
//
// On any executor; a mutex is held for a few look-ups in the names, which are in memory, too. The
// store must outlive it, and have no other DedupeRecords.
//
//   DedupeRecords records(store);
//   runtime.BlockOn(records.Load());
//   Server::Start(runtime, {&service}, {.dedupe = {.store = &records}});

#ifndef VERBENA_EXAMPLES_KV_DEDUPE_RECORDS_H_
#define VERBENA_EXAMPLES_KV_DEDUPE_RECORDS_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/kv/store.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/dedupe.h"
#include "verbena/rpc/task.h"

namespace kv {

class DedupeRecords final : public verbena::DedupeStore {
 public:
  static constexpr size_t kMaxNames = size_t{1} << 17;  // (start)
  // The most records that one write removes.
  static constexpr size_t kMaxRemoved = 16;
  // A request is no longer on its way from its client to Write(): twice the default of
  // DedupeOptions::keep_for, once for each half of the way.
  static constexpr verbena::Duration kMostUnderWay = std::chrono::minutes(10);

  // `clock` outlives this.
  explicit DedupeRecords(Store& store, size_t max_names = kMaxNames,
                         verbena::Clock& clock = verbena::Clock::Real())
      : store_(store), max_names_(max_names), clock_(clock) {}

  // Reads the names that the store has. Call it before the first call comes. Fails as the store
  // does.
  verbena::Task<absl::Status> Load();

  // A call, and its serialized replies if its key is new, and if it existed.
  struct Call {
    verbena::RequestId name;
    uint64_t acknowledged_below = 0;
    uint64_t highest = 0;  // ServerContext::dedupe_highest()
    std::string_view reply_if_new = {};
    std::string_view reply_if_existed = {};
  };
  // Stores `write` and the record of `call`. Fails as Store::Write() does, and with
  // RESOURCE_EXHAUSTED and Outcome::kNotExecuted if the client acknowledges too little.
  verbena::Task<absl::StatusOr<bool>> Write(StoreWrite write, Call call);
  // ABORTED if the name may be one of those that were dropped.
  verbena::Task<absl::StatusOr<std::optional<verbena::DedupeResult>>> Lookup(
      verbena::RequestId name) override;

 private:
  using ClientId = std::array<uint8_t, 16>;
  struct Client {
    absl::btree_set<uint64_t> numbers;
    uint64_t unproven_below = 0;  // such numbers may be among the dropped ones
    // The client came after some names were dropped, whose numbers are below this. 0: not known.
    uint64_t entered_below = 0;
    bool is_anew = false;  // any number may be a dropped one: the client came after a drop
    // dropped_last_ when the client came. Also none if the client came before Load().
    std::optional<verbena::TimePoint> dropped_last;
    verbena::TimePoint last{};  // its last write, or Load()
    std::list<ClientId>::iterator age;
  };

  // Names that are removed from the store, from the lowest on. Those of a dropped client are in one
  // write at a time, so the highest is the last to go: it tells Load() which names were dropped.
  struct Removal {
    ClientId client;
    absl::btree_set<uint64_t> numbers;
    size_t in_write = 0;  // so many of them, from the lowest on, go with the write that has this
  };
  // Changes of records, beside the one that a write adds.
  struct Changes {
    std::string client;  // what the record says of its client
    std::vector<Removal> removals = {};
    bool dropped = false;  // some of the names may be unacknowledged
  };

  absl::StatusOr<Changes> Begin(const Call& call);
  // Keeps what is still to be removed after the write.
  void End(Changes changes, bool stored);
  // Whether a name without a record is that of a call that has not run.
  bool IsProven(const verbena::RequestId& name);
  // Under the mutex.
  Client& ClientOf(const ClientId& id);
  // The client may have had names before, which were dropped. `call` proves that numbers above its
  // highest one are not among them, if it left its client after they were written.
  static void Prove(const Call& call, verbena::TimePoint now, Client& client);
  Removal Acknowledge(const Call& call, Client& client);
  void DropIdlest();

  Store& store_;
  const size_t max_names_;
  verbena::Clock& clock_;
  std::mutex mutex_;
  absl::flat_hash_map<ClientId, Client> clients_;
  std::list<ClientId> by_age_;     // the longest idle first
  std::deque<Removal> leftovers_;  // without a client, in no write
  size_t names_ = 0;               // of all clients
  bool dropped_ = false;           // unacknowledged names were dropped
  // The last write of any client that was dropped since Load().
  std::optional<verbena::TimePoint> dropped_last_;
};

}  // namespace kv

#endif  // VERBENA_EXAMPLES_KV_DEDUPE_RECORDS_H_
