// DedupeTable: the deduplicated calls of a server, on all its executors.
//
// A repeated request may come over another link, to another executor than the first. So one table
// serves all: its parts hold the calls of some clients each, by the client's random bits, and each
// part has a mutex. Only deduplicated calls take it, twice each and briefly: nothing is awaited or
// copied under it. Owned by the Server; any thread. A part has its share of each bound.

#ifndef VERBENA_RPC_SERVER_DEDUPE_TABLE_H_
#define VERBENA_RPC_SERVER_DEDUPE_TABLE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "verbena/rpc/dedupe.h"
#include "verbena/rpc/server/dedupe_result.h"
#include "verbena/rpc/server/dedupe_shard.h"

namespace verbena::internal {

// INVALID_ARGUMENT, which names the field, if one is out of its range.
absl::Status CheckDedupe(const DedupeOptions& options);

struct DedupeTableStats {
  size_t results = 0;
  size_t bytes = 0;
  uint64_t repeated = 0;
  uint64_t unproven = 0;
};

class DedupeTable {
 public:
  // Precondition: CheckDedupe(options). Draws the server's incarnation.
  explicit DedupeTable(const DedupeOptions& options);

  uint64_t incarnation() const { return incarnation_; }
  // Null if the service stores no names.
  DedupeStore* store() const { return options_.store; }
  size_t max_result_bytes() const { return options_.max_result_bytes; }

  // A request has come to `executor`, on whose thread this is called.
  DedupeClaim Begin(const DedupeRequest& request, Executor& executor);
  // The call of a request that Begin() let run has ended, on `executor`: tells those who wait.
  void End(const RequestId& id, const std::shared_ptr<const KeptResult>& result,
           const Executor& executor);

  // Memory for a piece of a payload that a handler writes, until its call ends and gives back all
  // that it took. False: such calls have as much as results may have. Any thread.
  bool TakeUnfinished(size_t bytes);
  void ReturnUnfinished(size_t bytes) {
    unfinished_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  }

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
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_DEDUPE_TABLE_H_
