#include "verbena/rpc/server/dedupe_table.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/hash/hash.h"
#include "fmt/format.h"
#include "verbena/transport/connect/runtime_id.h"

namespace verbena::internal {
namespace {

constexpr size_t kMaxResults = size_t{1} << 24;
constexpr size_t kMaxParts = 16;
// A part holds at least so many results: small tables have one part, whose bounds are exact.
constexpr size_t kLeastResultsOfAPart = 1024;

// Neither 0 nor DedupeName::kSeveral, which names use otherwise.
uint64_t DrawIncarnation() {
  uint64_t drawn = 0;
  while (drawn == 0 || drawn == DedupeName::kSeveral) {
    const RuntimeId bits = RuntimeId::Random();
    std::copy_n(bits.bytes.begin(), sizeof(drawn), reinterpret_cast<uint8_t*>(&drawn));
  }
  return drawn;
}

}  // namespace

absl::Status CheckDedupe(const DedupeOptions& options) {
  if (options.max_results == 0 || options.max_results > kMaxResults) {
    return absl::InvalidArgumentError(
        fmt::format("DedupeOptions::max_results is {}: its range is 1 to {}", options.max_results,
                    kMaxResults));
  }
  if (options.max_result_bytes > options.max_bytes) {
    return absl::InvalidArgumentError(fmt::format(
        "DedupeOptions::max_result_bytes is {}: its range is 0 to max_bytes, which is {}",
        options.max_result_bytes, options.max_bytes));
  }
  if (options.keep_for <= Duration::zero()) {
    return absl::InvalidArgumentError(fmt::format(
        "DedupeOptions::keep_for is {} ns: it must be positive", options.keep_for.count()));
  }
  return absl::OkStatus();
}

DedupeTable::DedupeTable(const DedupeOptions& options)
    : options_(options), incarnation_(DrawIncarnation()) {
  const size_t parts = std::clamp<size_t>(
      std::min(options.max_results / kLeastResultsOfAPart,
               options.max_bytes / std::max<size_t>(1, options.max_result_bytes)),
      1, kMaxParts);
  const DedupeLimits limits{.max_results = std::max<size_t>(1, options.max_results / parts),
                            .max_bytes = options.max_bytes / parts,
                            .keep_for = options.keep_for,
                            .has_store = options.store != nullptr};
  for (size_t i = 0; i < parts; ++i) {
    parts_.push_back(std::make_unique<Part>(limits, incarnation_));
  }
}

DedupeTable::Part& DedupeTable::PartOf(const RequestId& id) const {
  return *parts_[absl::HashOf(id.client) % parts_.size()];
}

DedupeClaim DedupeTable::Begin(const DedupeRequest& request, Executor& executor) {
  const TimePoint now = executor.now();
  Part& part = PartOf(request.name.id);
  DedupeClaim claim;
  {
    std::lock_guard<std::mutex> lock(part.mutex);
    claim = part.shard.Begin(request, executor, now);
  }
  using enum DedupeClaim::Verdict;
  if (claim.verdict == kWait || claim.verdict == kKept) {
    repeated_.fetch_add(1, std::memory_order_relaxed);
  } else if (claim.verdict == kRefused && claim.outcome == Outcome::kMaybeExecuted) {
    unproven_.fetch_add(1, std::memory_order_relaxed);
  }
  return claim;
}

void DedupeTable::End(const RequestId& id, const std::shared_ptr<const KeptResult>& result,
                      const Executor& executor) {
  const TimePoint now = executor.now();
  Part& part = PartOf(id);
  DedupeWaiters waiters;
  {
    std::lock_guard<std::mutex> lock(part.mutex);
    waiters = part.shard.End(id, result, now);
  }
  for (const std::shared_ptr<DedupeWaiter>& waiter : waiters) waiter->Tell(result);
}

bool DedupeTable::TakeUnfinished(size_t bytes) {
  const size_t before = unfinished_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  if (before + bytes <= options_.max_bytes) return true;
  ReturnUnfinished(bytes);
  return false;
}

DedupeTableStats DedupeTable::stats() const {
  DedupeTableStats sum;
  for (const std::unique_ptr<Part>& part : parts_) {
    std::lock_guard<std::mutex> lock(part->mutex);
    sum.results += part->shard.results();
    sum.bytes += part->shard.bytes();
  }
  sum.repeated = repeated_.load(std::memory_order_relaxed);
  sum.unproven = unproven_.load(std::memory_order_relaxed);
  return sum;
}

}  // namespace verbena::internal
