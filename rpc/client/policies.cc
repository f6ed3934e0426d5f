#include "verbena/rpc/client/policies.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "fmt/format.h"
#include "verbena/rpc/call/status_codec.h"
#include "verbena/transport/base/check.h"

namespace verbena::internal {

namespace {

// The longest retry_after that is waited for; a peer may send any. Deadlines are shorter.
constexpr Duration kMaxPause = std::chrono::hours(24);

// The number of the lost link that ended a call so; 0 if none did.
uint64_t LostLinkOf(const absl::Status& failure) {
  const auto payload = failure.GetPayload(kLostLinkPayloadUrl);
  uint64_t number = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &number)) return 0;
  return number;
}

}  // namespace

bool RetryAccount::IsOfKnownLink(const absl::Status& failure) {
  const uint64_t link = LostLinkOf(failure);
  if (link == 0) return false;
  if (std::find(lost_links_.begin(), lost_links_.end(), link) != lost_links_.end()) return true;
  lost_links_[next_lost_link_] = link;
  next_lost_link_ = (next_lost_link_ + 1) % kLostLinks;
  return false;
}

absl::Status NoFurtherAttempt(const absl::Status& failure, std::string_view reason) {
  absl::Status explained(failure.code(), fmt::format("{}; no further attempt: {}",
                                                     std::string(failure.message()), reason));
  failure.ForEachPayload([&explained](absl::string_view url, const absl::Cord& payload) {
    explained.SetPayload(url, payload);
  });
  return explained;
}

std::string BudgetIsUsedUp(const RetryAccount& account) {
  return fmt::format("the retry budget is used up (RetryBudget::max_tokens is {})",
                     account.max_tokens());
}

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

RetrySeries::End RetrySeries::EndAfter(const Failure& failure) {
  if (IsKept(method_, failure.status)) return End::kKept;
  if (attempts_ == policy_.max_attempts) return End::kMaxAttempts;
  if (!MayRunAgain(method_, failure.status)) {
    account_.Add(RetryAccount::Count::kRefusedAsUnsafe);
    return End::kUnsafe;
  }
  if (!failure.has_its_buffers) return End::kNoMemory;
  pause_ = PauseAfter(failure.status);
  // The caller learns now what it would learn at its deadline.
  if (SaturatingAdd(failure.now, pause_) >= failure.deadline) return End::kDeadline;
  return account_.MayTakeMore() ? End::kNone : End::kBudget;
}

std::optional<Duration> RetrySeries::After(const Failure& failure) {
  end_ = End::kNone;
  if (!failure.timed_out && !HasCode(policy_.retryable_codes, failure.status)) return std::nullopt;
  account_.OnFailure(failure.status);
  end_ = EndAfter(failure);
  return end_ == End::kNone ? std::optional(pause_) : std::nullopt;
}

std::string RetrySeries::Reason(const absl::Status& failure) const {
  using std::chrono::milliseconds;
  switch (end_) {
    case End::kMaxAttempts:
      return fmt::format("RetryPolicy::max_attempts is {}", policy_.max_attempts);
    case End::kKept:
      return "the server keeps this result of the deduplicated call";
    case End::kUnsafe:
      return fmt::format("{} is neither idempotent nor deduplicated, and the outcome is {}",
                         method_.full_name, OutcomeName(OutcomeOf(failure)));
    case End::kDeadline:
      return fmt::format("the pause of {} ms before it would outlast the call's deadline",
                         std::chrono::duration_cast<milliseconds>(pause_).count());
    case End::kBudget:
      return BudgetIsUsedUp(account_);
    case End::kNone:
    case End::kNoMemory:
      break;
  }
  return "";
}

absl::Status RetrySeries::Explained(const absl::Status& failure) const {
  const std::string reason = Reason(failure);
  return reason.empty() ? failure : NoFurtherAttempt(failure, reason);
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
