#include "verbena/rpc/naming/service_config.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "fmt/format.h"
#include "verbena/rpc/naming/located_json.h"
#include "verbena/rpc/policy.h"
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

namespace verbena {
namespace internal {
namespace {

using Kind = LocatedJson::Kind;
using Read = absl::FunctionRef<absl::Status(const LocatedJson&)>;

// By number.
constexpr std::array<std::string_view, 17> kCodes = {
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
};

struct Member {
  std::string_view key;
  bool required;
  Read read;
};

absl::Status CheckKind(const LocatedJson& value, Kind kind, std::string_view wanted) {
  if (value.kind == kind) return absl::OkStatus();
  return value.place.Wrong(fmt::format("{} is wanted here", wanted));
}

absl::Status ReadObject(const LocatedJson& object, std::initializer_list<Member> members) {
  VERBENA_RETURN_IF_ERROR(CheckKind(object, Kind::kObject, "an object in braces"));
  for (const LocatedJson& each : object.items) {
    const auto* known = std::find_if(members.begin(), members.end(), [&each](const Member& member) {
      return member.key == each.key;
    });
    if (known != members.end()) {
      VERBENA_RETURN_IF_ERROR(known->read(each));
      continue;
    }
    std::string keys;
    for (const Member& member : members) {
      keys += fmt::format("{}{}", keys.empty() ? "" : ", ", member.key);
    }
    return each.key_place.Wrong(
        fmt::format("the key {} is not known here; these are: {}", Quoted(each.key), keys));
  }
  for (const Member& member : members) {
    const bool is_there =
        std::any_of(object.items.begin(), object.items.end(),
                    [&member](const LocatedJson& each) { return each.key == member.key; });
    if (member.required && !is_there) {
      return object.place.Wrong(fmt::format("the key \"{}\" is missing", member.key));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadArray(const LocatedJson& array, Read read) {
  VERBENA_RETURN_IF_ERROR(CheckKind(array, Kind::kArray, "a list in brackets"));
  for (const LocatedJson& each : array.items) VERBENA_RETURN_IF_ERROR(read(each));
  return absl::OkStatus();
}

absl::Status ReadNumber(const LocatedJson& value, double least, double most, double& number) {
  VERBENA_RETURN_IF_ERROR(CheckKind(value, Kind::kNumber, "a number"));
  if (!(value.number >= least && value.number <= most)) {
    return value.place.Wrong(
        fmt::format("{} is out of range: {} to {}", Quoted(value.text), least, most));
  }
  number = value.number;
  return absl::OkStatus();
}

absl::Status ReadAttempts(const LocatedJson& value, int& attempts) {
  double number = 0;
  VERBENA_RETURN_IF_ERROR(ReadNumber(value, 2, 1e9, number));
  if (number != std::floor(number)) {
    return value.place.Wrong(fmt::format("{} is no whole number", Quoted(value.text)));
  }
  attempts = static_cast<int>(std::min<double>(number, RetryPolicy::kMaxAttempts));
  return absl::OkStatus();
}

bool IsDigits(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// "1s", "0.25s": at most nine decimals, and ten digits before them.
absl::Status ReadDuration(const LocatedJson& value, bool may_be_zero, Duration& duration) {
  VERBENA_RETURN_IF_ERROR(CheckKind(value, Kind::kString, "a time such as \"0.25s\""));
  const std::string_view text = value.text;
  const std::string_view number = text.substr(0, text.empty() ? 0 : text.size() - 1);
  const size_t point = std::min(number.find('.'), number.size());
  const std::string_view seconds = number.substr(0, point);
  std::string decimals(number.substr(std::min(point + 1, number.size())));
  const bool has_point = point < number.size();
  if (text.empty() || text.back() != 's' || !IsDigits(seconds) || seconds.size() > 9 ||
      has_point != IsDigits(decimals) || decimals.size() > 9) {
    return value.place.Wrong(
        fmt::format("{} is no time: write seconds, with at most nine digits before and behind the "
                    "point, as \"0.25s\"",
                    Quoted(text)));
  }
  decimals.resize(9, '0');
  int64_t whole = 0;
  int64_t nanos = 0;
  std::from_chars(seconds.data(), seconds.data() + seconds.size(), whole);
  std::from_chars(decimals.data(), decimals.data() + decimals.size(), nanos);
  duration = std::chrono::seconds(whole) + std::chrono::nanoseconds(nanos);
  if (duration > Duration::zero() || may_be_zero) return absl::OkStatus();
  return value.place.Wrong(fmt::format("{} is out of range: it must be more than 0", Quoted(text)));
}

// A name in capitals, or its number; OK is none.
absl::Status ReadCode(const LocatedJson& value, std::vector<absl::StatusCode>& codes) {
  size_t code = 0;
  if (value.kind == Kind::kString) {
    const auto* named = std::find(kCodes.begin(), kCodes.end(), value.text);
    code = named == kCodes.end() ? 0 : static_cast<size_t>(std::distance(kCodes.begin(), named));
  } else if (value.kind == Kind::kNumber && value.number == std::floor(value.number) &&
             value.number > 0 && value.number < static_cast<double>(kCodes.size())) {
    code = static_cast<size_t>(value.number);
  }
  if (code == 0) {
    return value.place.Wrong(
        fmt::format("{} is no code of a failure: write one such as "
                    "\"UNAVAILABLE\"",
                    Quoted(value.text)));
  }
  // Once, however often it is there.
  const auto found = static_cast<absl::StatusCode>(code);
  if (std::find(codes.begin(), codes.end(), found) == codes.end()) codes.push_back(found);
  return absl::OkStatus();
}

absl::Status ReadCodes(const LocatedJson& value, std::vector<absl::StatusCode>& codes) {
  codes.clear();
  return ReadArray(value, [&](const LocatedJson& each) { return ReadCode(each, codes); });
}

absl::Status ReadRetry(const LocatedJson& value, RetryPolicy& retry) {
  VERBENA_RETURN_IF_ERROR(ReadObject(
      value,
      {{"maxAttempts", true,
        [&](const LocatedJson& v) { return ReadAttempts(v, retry.max_attempts); }},
       {"initialBackoff", true,
        [&](const LocatedJson& v) { return ReadDuration(v, false, retry.initial_backoff); }},
       {"maxBackoff", true,
        [&](const LocatedJson& v) { return ReadDuration(v, false, retry.max_backoff); }},
       {"backoffMultiplier", true,
        [&](const LocatedJson& v) { return ReadNumber(v, 1, 1000, retry.backoff_multiplier); }},
       {"retryableStatusCodes", true,
        [&](const LocatedJson& v) { return ReadCodes(v, retry.retryable_codes); }},
       {"perAttemptRecvTimeout", false,
        [&](const LocatedJson& v) { return ReadDuration(v, false, retry.attempt_timeout); }}}));
  if (retry.retryable_codes.empty()) {
    return value.place.Wrong("retryableStatusCodes is empty: no failure would be retried");
  }
  // gRPC lets the longest pause hold from the first one on.
  retry.initial_backoff = std::min(retry.initial_backoff, retry.max_backoff);
  return absl::OkStatus();
}

absl::Status ReadHedging(const LocatedJson& value, HedgingPolicy& hedging) {
  hedging.delay = Duration::zero();
  hedging.non_fatal_codes.clear();
  return ReadObject(
      value, {{"maxAttempts", true,
               [&](const LocatedJson& v) { return ReadAttempts(v, hedging.max_attempts); }},
              {"hedgingDelay", false,
               [&](const LocatedJson& v) { return ReadDuration(v, true, hedging.delay); }},
              {"nonFatalStatusCodes", false,
               [&](const LocatedJson& v) { return ReadCodes(v, hedging.non_fatal_codes); }}});
}

absl::Status ReadText(const LocatedJson& value, std::string& text) {
  VERBENA_RETURN_IF_ERROR(CheckKind(value, Kind::kString, "a string"));
  text = value.text;
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadName(const LocatedJson& value) {
  std::string service;
  std::string method;
  VERBENA_RETURN_IF_ERROR(ReadObject(
      value, {{"service", false, [&](const LocatedJson& v) { return ReadText(v, service); }},
              {"method", false, [&](const LocatedJson& v) { return ReadText(v, method); }}}));
  if (method.empty()) return service;
  if (service.empty()) return value.place.Wrong("a method needs its service");
  return service + "/" + method;
}

absl::Status AddMethods(const LocatedJson& value, ServiceConfig& config) {
  MethodConfig method;
  std::vector<std::string> names;
  const auto read_name = [&](const LocatedJson& each) -> absl::Status {
    // Before the name is compared with all of them.
    if (config.methods.size() + names.size() == ServiceConfig::kMaxMethods) {
      return each.place.Wrong(fmt::format("more than {} names: name services instead of methods",
                                          ServiceConfig::kMaxMethods));
    }
    VERBENA_ASSIGN_OR_RETURN(std::string name, ReadName(each));
    const bool taken =
        std::any_of(config.methods.begin(), config.methods.end(),
                    [&name](const MethodConfig& other) { return other.name == name; });
    if (taken || std::find(names.begin(), names.end(), name) != names.end()) {
      return each.place.Wrong(fmt::format("the name {} is there twice", Quoted(name)));
    }
    names.push_back(std::move(name));
    return absl::OkStatus();
  };
  const auto read_wait = [&](const LocatedJson& v) -> absl::Status {
    VERBENA_RETURN_IF_ERROR(CheckKind(v, Kind::kBool, "true or false"));
    method.wait_for_ready = v.boolean;
    return absl::OkStatus();
  };
  VERBENA_RETURN_IF_ERROR(ReadObject(
      value, {{"name", true, [&](const LocatedJson& v) { return ReadArray(v, read_name); }},
              {"timeout", false,
               [&](const LocatedJson& v) { return ReadDuration(v, false, method.timeout); }},
              {"waitForReady", false, read_wait},
              {"retryPolicy", false,
               [&](const LocatedJson& v) { return ReadRetry(v, method.retry.emplace()); }},
              {"hedgingPolicy", false,
               [&](const LocatedJson& v) { return ReadHedging(v, method.hedging.emplace()); }}}));
  if (method.retry.has_value() && method.hedging.has_value()) {
    return value.place.Wrong("retryPolicy and hedgingPolicy are both here: keep one of them");
  }
  for (std::string& name : names) {
    method.name = std::move(name);
    config.methods.push_back(method);
  }
  return absl::OkStatus();
}

absl::Status ReadThrottling(const LocatedJson& value, RetryBudget& budget) {
  return ReadObject(
      value, {{"maxTokens", true,
               [&](const LocatedJson& v) { return ReadNumber(v, 1, 1000, budget.max_tokens); }},
              {"tokenRatio", true, [&](const LocatedJson& v) {
                 return ReadNumber(v, 0.001, 1000, budget.token_ratio);
               }}});
}

}  // namespace
}  // namespace internal

absl::StatusOr<ServiceConfig> ParseServiceConfig(std::string_view json) {
  VERBENA_ASSIGN_OR_RETURN(const internal::LocatedJson root, internal::ParseLocatedJson(json));
  ServiceConfig config;
  const auto add = [&](const internal::LocatedJson& each) {
    return internal::AddMethods(each, config);
  };
  VERBENA_RETURN_IF_ERROR(internal::ReadObject(
      root, {{"methodConfig", false,
              [&](const internal::LocatedJson& v) { return internal::ReadArray(v, add); }},
             {"retryThrottling", false, [&](const internal::LocatedJson& v) {
                return internal::ReadThrottling(v, config.budget);
              }}}));
  return config;
}

}  // namespace verbena
