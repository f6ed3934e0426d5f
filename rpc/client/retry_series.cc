#include "verbena/rpc/client/retry_series.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "verbena/rpc/client/retry_rules.h"
#include "verbena/rpc/retry_after.h"

namespace verbena::internal {
namespace {

// The longest retry_after that is waited for; a peer may send any. Deadlines are shorter.
constexpr Duration kMaxPause = std::chrono::hours(24);

}  // namespace

RetrySeries::RetrySeries(const RetryPolicy& policy, const MethodDescriptor& method,
                         RetryAccount& account, Random& random)
    : policy_(policy),
      method_(method),
      account_(account),
      random_(random),
      backoff_(policy.initial_backoff) {}

Duration RetrySeries::NextBackoff() {
  const Duration backoff = backoff_;
  const double longer = static_cast<double>(backoff.count()) * policy_.backoff_multiplier;
  backoff_ = longer >= static_cast<double>(policy_.max_backoff.count())
                 ? policy_.max_backoff
                 : Duration(static_cast<int64_t>(longer));
  return backoff;
}

Duration RetrySeries::PauseAfter(const absl::Status& failure) {
  const Duration backoff = NextBackoff();
  const auto fifth = static_cast<uint64_t>(backoff.count() / 5);
  const Duration jitter(random_.Below(2 * fifth + 1));
  const Duration pause = backoff - Duration(fifth) + jitter;
  const std::optional<Duration> asked = RetryAfterOf(failure);
  if (!asked.has_value()) return pause;
  // Later than asked, at random, so that those who were refused together do not come together.
  return std::max(pause, std::min(*asked, kMaxPause) + jitter);
}

std::optional<Duration> RetrySeries::After(const Failure& failure) {
  if (!failure.timed_out && !HasCode(policy_.retryable_codes, failure.status)) return std::nullopt;
  account_.OnFailure();
  if (attempts_ == policy_.max_attempts || IsKept(method_, failure.status)) return std::nullopt;
  if (!MayRunAgain(method_, failure.status)) {
    account_.Add(RetryAccount::Count::kRefusedAsUnsafe);
    return std::nullopt;
  }
  if (!failure.has_its_buffers) return std::nullopt;
  const Duration pause = PauseAfter(failure.status);
  // The caller learns now what it would learn at its deadline.
  if (SaturatingAdd(failure.now, pause) >= failure.deadline) return std::nullopt;
  if (!account_.MayTakeMore()) return std::nullopt;
  return pause;
}

void RetrySeries::Begin() {
  account_.Add(RetryAccount::Count::kRetries);
  ++attempts_;
}

}  // namespace verbena::internal
