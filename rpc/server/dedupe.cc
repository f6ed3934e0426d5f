#include "verbena/rpc/server/dedupe.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/cord.h"
#include "fmt/format.h"
#include "verbena/rpc/call/status_codec.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/connect/peer.h"
#include "verbena/transport/coro/context.h"

namespace verbena::internal {
namespace {

DedupeClaim Unproven(const std::string& why) {
  absl::Status refusal = absl::AbortedError(fmt::format(
      "the server cannot prove that the call has not run before, and has not run it now: {}. Find "
      "out by reading what it would have changed, or give ServerOptions::dedupe a store",
      why));
  refusal.SetPayload(kUnprovenPayloadUrl, absl::Cord());
  return {.verdict = DedupeClaim::Verdict::kRefused,
          .refusal = std::move(refusal),
          .outcome = Outcome::kMaybeExecuted};
}

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

// A result weighs its bytes, and as much as its place would hold on average: so the bounds of
// results and of bytes count alike.
DedupeShard::DedupeShard(const DedupeLimits& limits, uint64_t incarnation)
    : limits_(limits),
      incarnation_(incarnation),
      entry_weight_(
          std::max<size_t>(1, limits.max_bytes / std::max<size_t>(1, limits.max_results))),
      dropped_(std::max<size_t>(1, limits.max_results)) {}

DedupeShard::~DedupeShard() = default;

DedupeClaim DedupeShard::Refused(absl::Status refusal, Outcome outcome) {
  return {
      .verdict = DedupeClaim::Verdict::kRefused, .refusal = std::move(refusal), .outcome = outcome};
}

DedupeClaim DedupeShard::Begin(const DedupeRequest& request, Executor& executor, TimePoint now) {
  Expire(now);
  const DedupeName& name = request.name;
  const auto known = records_.find(name.id.client);
  Record* record = known == records_.end() ? nullptr : known->second.get();
  if (record != nullptr) {
    if (record->owner->runtime != request.runtime) {
      return Refused(absl::PermissionDeniedError(
                         "the call has the name of a call of another client: a name is good for "
                         "calls of the runtime that made its channel"),
                     Outcome::kNotExecuted);
    }
    Acknowledge(*record, name.acknowledged_below, now);
    if (name.id.number < record->acknowledged_below) {
      return Refused(absl::FailedPreconditionError(fmt::format(
                         "call {} came after its client had acknowledged the results below {}",
                         name.id.number, record->acknowledged_below)),
                     Outcome::kMaybeExecuted);
    }
    const auto call = record->calls.find(name.id.number);
    if (call != record->calls.end()) return Found(request, call->second, executor);
  }
  return BeginUnknown(request, record, now);
}

// A request that has ended, as with its link, leaves its waiter to the table alone. Each look is at
// twice as many as the last one left, so that a request pays for few.
void DedupeShard::DropGoneWaiters(Call& call) {
  if (call.waiters.size() < call.next_look) return;
  const auto gone = std::remove_if(
      call.waiters.begin(), call.waiters.end(),
      [](const std::shared_ptr<DedupeWaiter>& each) { return each.use_count() == 1; });
  call.waiters.erase(gone, call.waiters.end());
  call.next_look = std::max(kFirstLook, 2 * call.waiters.size());
}

DedupeClaim DedupeShard::Found(const DedupeRequest& request, Call& call, Executor& executor) {
  const bool same = call.method == request.method && call.fingerprint == request.fingerprint;
  if (!same) {
    return Refused(
        absl::InvalidArgumentError(fmt::format(
            "call {} was repeated with another {}: take a fresh DedupeToken for another call",
            call.number, call.method == request.method ? "request" : "method")),
        Outcome::kNotExecuted);
  }
  if (call.result != nullptr) {
    return {.verdict = DedupeClaim::Verdict::kKept, .result = call.result};
  }
  DropGoneWaiters(call);
  auto waiter = std::make_shared<DedupeWaiter>(executor);
  call.waiters.push_back(waiter);
  return {.verdict = DedupeClaim::Verdict::kWait, .waiter = std::move(waiter)};
}

DedupeClaim DedupeShard::BeginUnknown(const DedupeRequest& request, Record* record, TimePoint now) {
  const DedupeName& name = request.name;
  const bool repeated = name.earlier != 0;
  const bool forgotten = record != nullptr && record->forgotten.Contains(name.id.number);
  const bool elsewhere = repeated && name.earlier != incarnation_;
  UnprovenCalls entered;
  if (record == nullptr) entered = dropped_.UnprovenOf(name.id.client, request.runtime);
  UnprovenCalls& unproven = record == nullptr ? entered : record->unproven;
  Prove(name, now, unproven);
  const bool lost = repeated && unproven.Contains(name.id.number);
  if ((forgotten || elsewhere || lost) && !limits_.has_store) {
    return Unproven(forgotten ? "it has dropped the result (DedupeOptions)"
                    : elsewhere
                        ? "an earlier attempt went to another server, or to this one before "
                          "it restarted"
                        : "it has dropped what it knew of the client (DedupeOptions)");
  }
  if (record == nullptr) record = AddRecord(request, entered, now);
  if (record == nullptr) {
    return Refused(absl::ResourceExhaustedError(
                       "the server runs deduplicated calls of as many clients as it may: retry "
                       "later, or raise DedupeOptions::max_results"),
                   Outcome::kNotExecuted);
  }
  static_cast<DedupeIdleNode&>(*record).Unlink();
  static_cast<IdleAgeNode&>(*record).Unlink();
  record->began_below = std::max(record->began_below, name.id.number + 1);
  Call& call = record->calls[name.id.number];
  call.record = record;
  call.number = name.id.number;
  call.method = request.method;
  call.fingerprint = request.fingerprint;
  const bool asks = limits_.has_store && (repeated || forgotten);
  return {.verdict = asks ? DedupeClaim::Verdict::kLookUp : DedupeClaim::Verdict::kRun};
}

void DedupeShard::Acknowledge(Record& record, uint64_t below, TimePoint now) {
  const uint64_t before = record.acknowledged_below;
  if (below <= before) return;
  record.acknowledged_below = below;
  record.forgotten.RemoveBelow(below);
  // Calls below `before` still run, and are not looked at each time.
  for (auto call = record.calls.lower_bound(before);
       call != record.calls.end() && call->first < below;) {
    Call& each = call->second;
    ++call;
    // One that runs is dropped when it ends.
    if (each.result != nullptr) DropResult(each, /*forgets=*/false, now);
  }
}

DedupeShard::Record* DedupeShard::AddRecord(const DedupeRequest& request,
                                            const UnprovenCalls& unproven, TimePoint now) {
  const auto has_some = [](const DedupeOwner& owner) {
    return !owner.idle.empty() || !owner.results.empty();
  };
  while (records_.size() >= limits_.max_results) {
    DedupeOwner* owner = shares_.Heaviest(has_some);
    if (owner == nullptr) return nullptr;
    if (DedupeIdleNode* idle = owner->idle.Front()) {
      DropRecord(*static_cast<Record*>(idle));
    } else {
      DropResult(*static_cast<Call*>(owner->results.Front()), /*forgets=*/true, now);
    }
  }
  auto record = std::make_unique<Record>();
  record->client = {.client = request.name.id.client};
  record->owner = &shares_.Of(request.source, request.runtime);
  record->acknowledged_below = request.name.acknowledged_below;
  record->unproven = unproven;
  dropped_.Remove(request.name.id.client, request.runtime);
  shares_.Add(*record->owner, entry_weight_);
  return (records_[request.name.id.client] = std::move(record)).get();
}

DedupeWaiters DedupeShard::End(const RequestId& id, const std::shared_ptr<const KeptResult>& result,
                               TimePoint now) {
  const auto known = records_.find(id.client);
  VERBENA_CHECK(known != records_.end()) << "call " << id.number << " of an unknown client ended";
  const auto found = known->second->calls.find(id.number);
  VERBENA_CHECK(found != known->second->calls.end()) << "call " << id.number << " did not run";
  Call& call = found->second;
  DedupeWaiters waiters = std::move(call.waiters);
  call.waiters.clear();
  if (!result->is_final || id.number < call.record->acknowledged_below) {
    RemoveCall(call, now);
  } else {
    Keep(call, result, now);
    EnforceBounds(now);
  }
  return waiters;
}

void DedupeShard::Keep(Call& call, const std::shared_ptr<const KeptResult>& result, TimePoint now) {
  call.result = result;
  call.bytes = result->bytes();
  call.ended = now;
  call.record->owner->results.PushBack(call);
  by_age_.PushBack(call);
  ++results_;
  bytes_ += call.bytes;
  shares_.Add(*call.record->owner, WeightOf(call));
}

void DedupeShard::DropResult(Call& call, bool forgets, TimePoint now) {
  Record& record = *call.record;
  VERBENA_CHECK(results_ > 0 && bytes_ >= call.bytes)
      << results_ << " results of " << bytes_ << " bytes, one of " << call.bytes;
  --results_;
  bytes_ -= call.bytes;
  if (forgets) record.forgotten.Add(call.number);
  // The record weighs, too, so that its owner stays.
  shares_.Remove(*record.owner, WeightOf(call));
  RemoveCall(call, now);
}

void DedupeShard::RemoveCall(Call& call, TimePoint now) {
  Record& record = *call.record;
  record.calls.erase(call.number);
  if (record.calls.empty()) NoteIdle(record, now);
}

void DedupeShard::NoteIdle(Record& record, TimePoint now) {
  record.idle_since = now;
  record.owner->idle.PushBack(record);
  idle_by_age_.PushBack(record);
}

void DedupeShard::Prove(const DedupeName& name, TimePoint now, UnprovenCalls& unproven) const {
  if (!unproven.any_until.has_value() || name.highest == 0) return;
  // The request may have been on its way for keep_for, and RunOnce() lets it wait as long.
  const TimePoint proven =
      SaturatingAdd(SaturatingAdd(*unproven.any_until, limits_.keep_for), limits_.keep_for);
  if (proven >= now) return;
  unproven.below = std::max(unproven.below, name.highest + 1);
  unproven.any_until.reset();
}

void DedupeShard::DropRecord(Record& record) {
  DedupeOwner& owner = *record.owner;
  record.unproven.below = std::max(record.unproven.below, record.began_below);
  dropped_.Add(record.client.client, owner.source->address, owner.runtime, record.unproven,
               record.idle_since);
  records_.erase(std::array<uint8_t, 16>(record.client.client));
  shares_.Remove(owner, entry_weight_);
}

void DedupeShard::Expire(TimePoint now) {
  for (size_t dropped = 0; dropped < kMostExpired && !by_age_.empty(); ++dropped) {
    Call& call = *static_cast<Call*>(by_age_.Front());
    if (SaturatingAdd(call.ended, limits_.keep_for) > now) break;
    DropResult(call, /*forgets=*/true, now);
  }
  for (size_t dropped = 0; dropped < kMostExpired && !idle_by_age_.empty(); ++dropped) {
    Record& record = *static_cast<Record*>(idle_by_age_.Front());
    if (SaturatingAdd(record.idle_since, limits_.keep_for) > now) break;
    DropRecord(record);
  }
}

void DedupeShard::EnforceBounds(TimePoint now) {
  const auto has_results = [](const DedupeOwner& owner) { return !owner.results.empty(); };
  while (results_ > limits_.max_results || bytes_ > limits_.max_bytes) {
    DedupeOwner* owner = shares_.Heaviest(has_results);
    DropResult(*static_cast<Call*>(owner->results.Front()), /*forgets=*/true, now);
  }
}

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

bool DedupeTable::FirstKeptOf(uint64_t method) {
  std::lock_guard<std::mutex> lock(kept_mutex_);
  return kept_methods_.insert(method).second;
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
