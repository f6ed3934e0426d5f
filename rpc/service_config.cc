#include "verbena/rpc/policy.h"

#include <set>

#include "fmt/format.h"
#include "verbena/transport/base/status.h"

namespace verbena::internal {
namespace {

absl::Status Wrong(const std::string& method, const std::string& what) {
  return absl::InvalidArgumentError(fmt::format("service_config: \"{}\": {}", method, what));
}

absl::Status CheckAttempts(const MethodConfig& method, int attempts) {
  if (attempts >= 2 && attempts <= RetryPolicy::kMaxAttempts) return absl::OkStatus();
  return Wrong(method.name, fmt::format("max_attempts is {}, its range 2 to {}", attempts,
                                        RetryPolicy::kMaxAttempts));
}

absl::Status CheckCodes(const MethodConfig& method, const char* field,
                        const std::vector<absl::StatusCode>& codes) {
  for (const absl::StatusCode code : codes) {
    if (static_cast<int>(code) > 0 && static_cast<int>(code) <= 16) continue;
    return Wrong(method.name, fmt::format("{} has {}, which is no code of a failure", field,
                                          static_cast<int>(code)));
  }
  return absl::OkStatus();
}

absl::Status CheckRetry(const MethodConfig& method, const RetryPolicy& retry) {
  VERBENA_RETURN_IF_ERROR(CheckAttempts(method, retry.max_attempts));
  if (retry.initial_backoff <= Duration::zero() || retry.max_backoff < retry.initial_backoff) {
    return Wrong(method.name,
                 fmt::format("initial_backoff is {} ns and max_backoff {} ns: initial_backoff is "
                             "more than 0, and max_backoff at least as long",
                             retry.initial_backoff.count(), retry.max_backoff.count()));
  }
  if (!(retry.backoff_multiplier >= 1 && retry.backoff_multiplier <= 1000)) {
    return Wrong(method.name, fmt::format("backoff_multiplier is {}, its range 1 to 1000",
                                          retry.backoff_multiplier));
  }
  if (retry.retryable_codes.empty()) {
    return Wrong(method.name, "retryable_codes is empty: no failure would be retried");
  }
  if (retry.attempt_timeout < Duration::zero()) {
    return Wrong(method.name, fmt::format("attempt_timeout is {} ns: it is 0 or more",
                                          retry.attempt_timeout.count()));
  }
  return CheckCodes(method, "retryable_codes", retry.retryable_codes);
}

absl::Status CheckHedging(const MethodConfig& method, const HedgingPolicy& hedging) {
  VERBENA_RETURN_IF_ERROR(CheckAttempts(method, hedging.max_attempts));
  if (hedging.delay < Duration::zero()) {
    return Wrong(method.name,
                 fmt::format("delay is {} ns: it is 0 or more", hedging.delay.count()));
  }
  return CheckCodes(method, "non_fatal_codes", hedging.non_fatal_codes);
}

absl::Status CheckMethod(const MethodConfig& method) {
  if (method.retry.has_value() && method.hedging.has_value()) {
    return Wrong(method.name, "retry and hedging are both set: a method has at most one of them");
  }
  if (method.timeout < Duration::zero()) {
    return Wrong(method.name,
                 fmt::format("timeout is {} ns: it is 0 or more", method.timeout.count()));
  }
  if (method.retry.has_value()) VERBENA_RETURN_IF_ERROR(CheckRetry(method, *method.retry));
  if (method.hedging.has_value()) VERBENA_RETURN_IF_ERROR(CheckHedging(method, *method.hedging));
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckServiceConfig(const ServiceConfig& config) {
  if (config.methods.size() > ServiceConfig::kMaxMethods) {
    return absl::InvalidArgumentError(fmt::format("service_config has {} methods, at most {} fit",
                                                  config.methods.size(),
                                                  ServiceConfig::kMaxMethods));
  }
  std::set<std::string_view> names;
  for (const MethodConfig& method : config.methods) {
    if (!names.insert(method.name).second) return Wrong(method.name, "this name is there twice");
    VERBENA_RETURN_IF_ERROR(CheckMethod(method));
  }
  const RetryBudget& budget = config.budget;
  if (!(budget.max_tokens >= 0 && budget.max_tokens <= 1000)) {
    return absl::InvalidArgumentError(
        fmt::format("service_config: max_tokens is {}, its range 0 to 1000", budget.max_tokens));
  }
  if (!(budget.token_ratio >= 0.001 && budget.token_ratio <= 1000)) {
    return absl::InvalidArgumentError(fmt::format(
        "service_config: token_ratio is {}, its range 0.001 to 1000", budget.token_ratio));
  }
  return absl::OkStatus();
}

}  // namespace verbena::internal
