// RetryPolicy, HedgingPolicy, RetryBudget: when a channel makes further attempts at a call by
// itself. RetryStats: how often it did.
//
// An attempt is one try at a call. A retry is an attempt that follows one which has failed; a hedge
// is an attempt that begins beside one which has not ended.
//
// A unary call has a further attempt only if that cannot run a mutation twice: if the failure
// says that the call did not run (Outcome::kNotExecuted), if the method's idempotency_level in its
// .proto is NO_SIDE_EFFECTS or IDEMPOTENT, or if it is deduplicated (dedupe.h). A call is hedged
// only if its method is NO_SIDE_EFFECTS, and not deduplicated. No policy can lift this. Values; a
// channel takes a copy of them (service_config.h).
//
//   Channel channel(*runtime, target,
//                   {.service_config = {.methods = {{.retry = RetryPolicy{.max_attempts = 4}}}}});

#ifndef VERBENA_RPC_RETRY_H_
#define VERBENA_RPC_RETRY_H_

#include <chrono>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "verbena/transport/base/clock.h"

namespace verbena {

// One attempt after another. A further attempt follows if the last one failed with a code of
// retryable_codes or passed attempt_timeout, the rule at the top of this page allows it, the budget
// has tokens, and the pause ends before the call's deadline. Otherwise the caller gets the last
// attempt's Status at once. A server's retry_after (retry_after.h) is obeyed: the pause lasts at
// least that long.
//
// Each attempt goes to a server that the call has not tried yet, if another one is ready. A
// deduplicated call that may have run stays with its server, which alone knows whether it has run.
// If it has, and the server has kept its failure, no attempt follows that failure. The memory of
// CallOptions::request_payload and response_payload_into serves for each attempt; if the server of
// a failed attempt may still use it, no other attempt follows.
struct RetryPolicy {
  // The most attempts that a call may have, whatever the policy.
  static constexpr int kMaxAttempts = 5;

  // Attempts of one call, the first included: 2 to kMaxAttempts.
  int max_attempts = 3;
  // The pause before the second attempt: more than 0. Each pause varies at random by up to a fifth.
  Duration initial_backoff = std::chrono::milliseconds(10);
  // The longest pause, initial_backoff or more. A retry_after may be longer.
  Duration max_backoff = std::chrono::seconds(1);
  // Each pause is this many times the one before: 1 to 1000.
  double backoff_multiplier = 2;
  // The failures that may pass. Not empty, and without OK.
  std::vector<absl::StatusCode> retryable_codes = {absl::StatusCode::kUnavailable,
                                                   absl::StatusCode::kResourceExhausted};
  // Not 0: an attempt that has not ended by then is cancelled, and counts as failed. The call's own
  // deadline holds for all attempts together. Only this deadline cancels the handler of a
  // deduplicated call: after attempt_timeout the handler goes on, for the next attempt.
  Duration attempt_timeout = std::chrono::seconds(0);
};

// Further attempts while the first one has not ended; the first good answer wins, and the others
// are cancelled. For methods that are NO_SIDE_EFFECTS; calls of other methods, and calls with
// request_payload or response_payload_into, have one attempt.
//
// A failed attempt whose code is in non_fatal_codes makes the next one begin at once. A failure
// with any other code ends the call. A server's retry_after, or a budget without tokens, stops
// further attempts of the call.
struct HedgingPolicy {
  // Attempts of one call, the first included: 2 to RetryPolicy::kMaxAttempts.
  int max_attempts = 2;
  // How long after an attempt the next one begins, if none has ended: 0 or more. 0 begins all at
  // once. A good value is the method's latency at the 95th percentile.
  Duration delay = std::chrono::milliseconds(10);
  // The failures after which other attempts may do better. Without OK.
  std::vector<absl::StatusCode> non_fatal_codes = {absl::StatusCode::kUnavailable,
                                                   absl::StatusCode::kResourceExhausted};
};

// Bounds the load that further attempts add while many calls fail. Each executor has a count of
// tokens for the channel, which begins at max_tokens. A failure that may pass takes one, and a call
// that ends well gives token_ratio back. While there are max_tokens / 2 or fewer, no call has a
// further attempt. Calls of methods without a policy do not count.
struct RetryBudget {
  // 0 to 1000; 0 is no bound.
  double max_tokens = 100;
  // 0.001 to 1000, of which three decimals count: with 0.1, a lasting overload makes servers work
  // at most a tenth more.
  double token_ratio = 0.1;
};

// Counts of the calls of a channel that may have several attempts: those of methods with a
// RetryPolicy, and those that their HedgingPolicy applies to.
struct RetryStats {
  // Unary calls, and waits of streams for a link.
  uint64_t calls = 0;
  // All that these calls had: calls + retries + hedges.
  uint64_t attempts = 0;
  uint64_t retries = 0;
  uint64_t hedges = 0;
  // Attempts that the budget did not allow.
  uint64_t refused_by_budget = 0;
  // Failures that might pass, but after which a further attempt might have run a mutation twice.
  uint64_t refused_as_unsafe = 0;
};

}  // namespace verbena

#endif  // VERBENA_RPC_RETRY_H_
