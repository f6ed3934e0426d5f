// ServiceConfig: retries, hedging and time limits of the calls of a channel, by method; also read
// from the JSON that gRPC calls a service config.
//
// Fixed when the channel is made (ChannelOptions::service_config). A value; any thread.
//
//   VERBENA_ASSIGN_OR_RETURN(ServiceConfig config, ParseServiceConfig(R"({
//     "methodConfig": [{
//       "name": [{"service": "blocks.Blocks"}],
//       "timeout": "1s",
//       "retryPolicy": {"maxAttempts": 3, "initialBackoff": "0.01s", "maxBackoff": "1s",
//                       "backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"]}}]})"));
//   Channel channel(*runtime, target, {.service_config = std::move(config)});

#ifndef VERBENA_RPC_SERVICE_CONFIG_H_
#define VERBENA_RPC_SERVICE_CONFIG_H_

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/retry.h"
#include "verbena/transport/base/clock.h"

namespace verbena {

struct MethodConfig {
  // "package.Service/Method", or "package.Service" for its other methods, or "" for all others.
  // Only the MethodConfig with the longest name that fits a method applies to it. A name that no
  // method has is no error, because one config may serve several programs: mind the spelling.
  std::string name = "";
  // At most one of these two. Streams do not use `hedging`. They use `retry` only as long as no
  // link to a server could be had, which is before their first message leaves.
  std::optional<RetryPolicy> retry = {};
  std::optional<HedgingPolicy> hedging = {};
  // Not 0: the longest time that a call or stream may take, all attempts included. An earlier
  // deadline of its own, of the channel or of its Task holds.
  Duration timeout = std::chrono::seconds(0);
  // As CallOptions::wait_for_ready, for calls that leave it false.
  bool wait_for_ready = false;
};

struct ServiceConfig {
  // The most entries of `methods`.
  static constexpr size_t kMaxMethods = 1024;

  std::vector<MethodConfig> methods = {};
  RetryBudget budget = {};
};

// Reads gRPC's service config: methodConfig (name, timeout, waitForReady, retryPolicy with
// perAttemptRecvTimeout, hedgingPolicy) and retryThrottling, which is the budget. INVALID_ARGUMENT
// for anything else, with "line:column: " and the key or the value. As in gRPC, more than 5
// attempts count as 5, and initialBackoff is at most maxBackoff. A hedgingPolicy without
// hedgingDelay begins all attempts at once; one without nonFatalStatusCodes lets any failure end
// the call.
absl::StatusOr<ServiceConfig> ParseServiceConfig(std::string_view json);

namespace internal {

// INVALID_ARGUMENT if a field is out of its range; the message names the field and the range.
absl::Status CheckServiceConfig(const ServiceConfig& config);

}  // namespace internal
}  // namespace verbena

#endif  // VERBENA_RPC_SERVICE_CONFIG_H_
