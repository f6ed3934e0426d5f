#include "verbena/rpc/client/policies.h"

#include <chrono>

#include "verbena/transport/base/check.h"

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
  if (!failure.has_its_buffers) {
    lacked_memory_ = true;
    return std::nullopt;
  }
  const Duration pause = PauseAfter(failure.status);
  // The caller learns now what it would learn at its deadline.
  if (SaturatingAdd(failure.now, pause) >= failure.deadline) return std::nullopt;
  if (!account_.MayTakeMore()) return std::nullopt;
  return pause;
}

void RetrySeries::Begin() {
  VERBENA_CHECK(attempts_ < policy_.max_attempts) << attempts_;
  account_.Add(RetryAccount::Count::kRetries);
  ++attempts_;
}

CallPolicies::CallPolicies(const ServiceConfig& config, size_t executors) {
  for (const MethodConfig& method : config.methods) by_name_.emplace(method.name, &method);
  for (size_t i = 0; i < executors; ++i) accounts_.emplace_back(config.budget);
}

const MethodConfig* CallPolicies::Named(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

const MethodConfig* CallPolicies::Of(const MethodDescriptor& method) const {
  const std::string_view name = method.full_name;
  if (const MethodConfig* own = Named(name)) return own;
  if (const MethodConfig* service = Named(name.substr(0, name.find('/')))) return service;
  return Named("");
}

RetryStats CallPolicies::stats() const {
  RetryStats stats;
  for (const RetryAccount& account : accounts_) account.AddTo(stats);
  return stats;
}

}  // namespace verbena::internal
