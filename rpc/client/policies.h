// Decisions about further attempts of calls: the rules that say which are safe; RetryAccount and
// RetrySeries, which say whether one follows; CallPolicies, which has a channel's policies by
// method.
//
// A policy's max_attempts bounds the attempts of a call.

#ifndef VERBENA_RPC_CLIENT_POLICIES_H_
#define VERBENA_RPC_CLIENT_POLICIES_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/policy.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/random.h"

namespace verbena::internal {

// The rules by which a call may have a further attempt without running a mutation twice.
//
// Policies choose among the attempts that these rules allow, and never go beyond them. Pure
// functions.

// Whether a call of `method` may be sent a second time after it has run, perhaps in part. The
// server runs a deduplicated one once, however often it is sent.
inline bool MayRunTwice(const MethodDescriptor& method) {
  return method.idempotency != Idempotency::kUnknown || method.dedupe;
}

// Whether a call of `method` may have a further attempt after one that ended with `failure`.
inline bool MayRunAgain(const MethodDescriptor& method, const absl::Status& failure) {
  return OutcomeOf(failure) == Outcome::kNotExecuted || MayRunTwice(method);
}

// Whether a further attempt must go to the server of an attempt that may have run: no other server
// knows that the call is a repetition.
inline bool StaysWithItsServer(const MethodDescriptor& method) {
  if (method.dedupe) return true;
  return method.idempotency == Idempotency::kUnknown;
}

// Whether each further attempt would end with the same `failure`: the server keeps the result of a
// deduplicated call. If only its answer was lost on its way, the outcome is kMaybeExecuted.
inline bool IsKept(const MethodDescriptor& method, const absl::Status& failure) {
  return method.dedupe && OutcomeOf(failure) == Outcome::kExecuted;
}

// Whether attempts of a call may run side by side. Two idempotent attempts may still mix their
// writes in an order that no single attempt has. A deduplicated call must not go to two servers.
inline bool MayRunAtOnce(const MethodDescriptor& method) {
  if (method.dedupe) return false;
  return method.idempotency == Idempotency::kNoSideEffects;
}

inline bool HasCode(const std::vector<absl::StatusCode>& codes, const absl::Status& failure) {
  return std::find(codes.begin(), codes.end(), failure.code()) != codes.end();
}

// The outcome of a call that has had several attempts: what all of them together may have done.
class CombinedOutcome {
 public:
  void Add(const absl::Status& attempt) {
    const Outcome outcome = OutcomeOf(attempt);
    if (outcome == Outcome::kMaybeExecuted || outcome_ == Outcome::kNotExecuted) outcome_ = outcome;
  }
  bool may_have_run() const { return outcome_ != Outcome::kNotExecuted; }
  // The call's `failure` with the outcome of all attempts.
  absl::Status Of(absl::Status failure) const {
    if (OutcomeOf(failure) == outcome_) return failure;
    return WithOutcome(std::move(failure), outcome_);
  }

 private:
  Outcome outcome_ = Outcome::kNotExecuted;
};

// RetryAccount: one executor's part of a channel's retry budget, and its counts.
//
// The tokens are gRPC's: a failure that may pass takes one, success gives a part of one back, and
// there are further attempts only while more than half of them are left. A lost link is one
// failure, however many calls it had: those calls say nothing of the servers that get their next
// attempts. So the account bounds how many lost links have further attempts, and max_attempts how
// many attempts their calls have. Used on its executor's thread; AddTo() reads the counts from any
// thread.
class RetryAccount {
 public:
  enum class Count : uint8_t { kCalls, kRetries, kHedges, kRefusedByBudget, kRefusedAsUnsafe };

  explicit RetryAccount(const RetryBudget& budget)
      : max_(Thousandths(budget.max_tokens)),
        ratio_(Thousandths(budget.token_ratio)),
        tokens_(max_) {}

  void OnSuccess() { tokens_ = std::min(tokens_ + ratio_, max_); }
  // An attempt has ended with `failure`, which may pass.
  void OnFailure(const absl::Status& failure) {
    if (!IsOfKnownLink(failure)) tokens_ = std::max<int64_t>(tokens_ - kToken, 0);
  }
  // Whether the budget allows a further attempt. Counts a refusal.
  bool MayTakeMore() {
    if (max_ == 0 || tokens_ > max_ / 2) return true;
    Add(Count::kRefusedByBudget);
    return false;
  }
  // The budget's max_tokens, for messages.
  double max_tokens() const { return static_cast<double>(max_) / kToken; }

  // Only the executor's thread writes.
  void Add(Count count) {
    std::atomic<uint64_t>& counter = counts_[static_cast<int>(count)];
    counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  void AddTo(RetryStats& stats) const {
    const auto value = [this](Count count) {
      return counts_[static_cast<int>(count)].load(std::memory_order_relaxed);
    };
    stats.calls += value(Count::kCalls);
    stats.retries += value(Count::kRetries);
    stats.hedges += value(Count::kHedges);
    stats.refused_by_budget += value(Count::kRefusedByBudget);
    stats.refused_as_unsafe += value(Count::kRefusedAsUnsafe);
    stats.attempts = stats.calls + stats.retries + stats.hedges;
  }

 private:
  static constexpr int64_t kToken = 1000;
  // A link that is lost before so many others, and whose calls end only now, takes another token.
  static constexpr size_t kLostLinks = 16;

  static int64_t Thousandths(double value) { return std::llround(value * kToken); }
  // Whether a lost link made `failure` which has taken its token. From now on it has.
  bool IsOfKnownLink(const absl::Status& failure);

  const int64_t max_;
  const int64_t ratio_;
  int64_t tokens_;
  std::array<uint64_t, kLostLinks> lost_links_ = {};  // 0: none
  size_t next_lost_link_ = 0;                         // in lost_links_
  std::atomic<uint64_t> counts_[5] = {};
};

// RetrySeries: decides after each failed attempt of a call whether another one follows, and when.
//
// Lives in the frame of the coroutine that makes the call; on its executor's thread.
class RetrySeries {
 public:
  struct Failure {
    const absl::Status& status;
    bool timed_out = false;       // by RetryPolicy::attempt_timeout
    bool has_its_buffers = true;  // the next attempt can use the caller's memory
    TimePoint now;
    TimePoint deadline = kNever;  // the call's
  };

  // All references outlive the series. The first attempt begins.
  RetrySeries(const RetryPolicy& policy, const MethodDescriptor& method, RetryAccount& account,
              Random& random = Random::Real());

  // The pause before the next attempt; nothing if none follows.
  std::optional<Duration> After(const Failure& failure);
  // The pause is over, and the next attempt begins.
  void Begin();
  // How many attempts have begun.
  int attempts() const { return attempts_; }
  // Whether another attempt would have followed, had it had the caller's memory.
  bool lacked_memory() const { return end_ == End::kNoMemory; }
  // The last failure, with the reason at its end why no further attempt follows. Nothing is added
  // if the policy does not retry it, and if memory is lacking, of which the caller knows more.
  absl::Status Explained(const absl::Status& failure) const;

 private:
  // Why no further attempt follows.
  enum class End : uint8_t {
    kNone,  // one may, or the policy does not retry the failure
    kMaxAttempts,
    kKept,
    kUnsafe,
    kNoMemory,
    kDeadline,
    kBudget,
  };

  // Why none follows `failure`, which the policy retries; kNone if one may.
  End EndAfter(const Failure& failure);
  std::string Reason(const absl::Status& failure) const;
  Duration NextBackoff();
  Duration PauseAfter(const absl::Status& failure);

  const RetryPolicy& policy_;
  const MethodDescriptor& method_;
  RetryAccount& account_;
  Random& random_;
  Duration backoff_;
  Duration pause_{};  // before the next attempt, as After() has chosen it
  int attempts_ = 1;
  End end_ = End::kNone;
};

// `failure` with the reason at its end why no further attempt follows.
absl::Status NoFurtherAttempt(const absl::Status& failure, std::string_view reason);
// The reason if the budget refuses an attempt.
std::string BudgetIsUsedUp(const RetryAccount& account);

// CallPolicies: a channel's ServiceConfig, looked up by method, and the account of each executor.
//
// Owned by the channel, which has none without a ServiceConfig. The lookup is for any thread.
class CallPolicies {
 public:
  // `config`, which was checked, outlives it.
  CallPolicies(const ServiceConfig& config, size_t executors);

  // The policies of `method`; nullptr if it has none.
  const MethodConfig* Of(const MethodDescriptor& method) const;
  // By the executor's number, on its thread.
  RetryAccount& account(size_t executor) { return accounts_[executor]; }
  // The sum of all executors.
  RetryStats stats() const;

 private:
  const MethodConfig* Named(std::string_view name) const;

  absl::flat_hash_map<std::string_view, const MethodConfig*> by_name_;
  std::deque<RetryAccount> accounts_;  // which cannot move
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_POLICIES_H_
