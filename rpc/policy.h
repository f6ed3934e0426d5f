// Policies of a channel: how it chooses among the servers of a set, and when it tries again.
//
//   RetryPolicy, HedgingPolicy, RetryBudget   further attempts at a call; RetryStats counts them
//   MethodConfig, ServiceConfig               policies by method, also from gRPC's JSON
//                                             (ParseServiceConfig)
//   Balancing                                 how a call finds its server
//   EjectionOptions                           which servers take no calls for a while
//   ChannelServer                             what a channel knows of one server
//
//   Channel channel(*runtime, "static:a:4000,b:4000",
//                   {.balancing = Balancing::kLeastInFlight,
//                    .service_config = {.methods = {{.retry = RetryPolicy{.max_attempts = 4}}}}});

#ifndef VERBENA_RPC_POLICY_H_
#define VERBENA_RPC_POLICY_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/resolver.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/export.h"

namespace verbena {

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
// channel takes a copy of them (ServiceConfig).
//
// Without any policy, too, a unary call is made once more if its link is lost before the request
// has left, as while it waits for room: no server has seen it. It goes over the next link, or to
// another server of a set. This takes no token and counts as no attempt, and interceptors do not
// see it. Such a call fails nevertheless if it must stay with its server, or if the lost link may
// still open its response_payload_into, which a frame cannot bring. Streams are not made again.

// RetryPolicy: one attempt after another. A further attempt follows if the last one failed with a
// code of retryable_codes or passed attempt_timeout, a further attempt cannot run a mutation twice,
// the RetryBudget has tokens, and the pause ends before the call's deadline. Otherwise the caller
// gets the last attempt's Status at once, which ends with "no further attempt:" and the reason if
// the policy would have retried it. A server's retry_after (status.h) is obeyed: the pause
// lasts at least that long.
//
// Each attempt goes to another server than those that the call has tried, if one is ready. All
// executors of a server count as that server. If a method is IDEMPOTENT and not deduplicated, an
// attempt begins at a server when no handler of an earlier attempt of the call runs or will begin
// there, and no change of a file that such a handler has left. Until then, or until its own
// deadline, the call waits: give it a deadline. A deduplicated call that may have run stays with
// its server, which alone knows whether it has run. If it has, and the server has kept its failure,
// no attempt follows that failure. The memory of CallOptions::request_payload and
// response_payload_into serves for each attempt. An attempt sends the payload even if a lost server
// may still read it; such a payload does not come back (returned_payload). If the server of a
// failed attempt may still write to response_payload_into, no other attempt follows, and the Status
// says so; with max_response_payload each attempt has memory of its own.
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
  // Not 0: an attempt that has not ended by then is cancelled, and counts as failed. A wait for a
  // server is a part of the attempt, so it bounds wait_for_ready, too: calls that should wait
  // through a restart need more attempts, or 0 here. The call's own deadline holds for all
  // attempts together. An attempt of an IDEMPOTENT call whose handler does not heed this goes on,
  // unless another server is ready: if it ends well, that is the call's answer. Only this deadline
  // cancels the handler of a deduplicated call: after attempt_timeout the handler goes on, for the
  // next attempt.
  Duration attempt_timeout = std::chrono::seconds(0);
};

// HedgingPolicy: further attempts while the first one has not ended; the first good answer wins,
// and the others are cancelled. For methods that are NO_SIDE_EFFECTS; calls of other methods, and
// calls with request_payload or response_payload_into, have one attempt.
//
// A failed attempt whose code is in non_fatal_codes makes the next one begin at once. A failure
// with any other code ends the call. A server's retry_after, or a budget without tokens, stops
// further attempts of the call.
struct HedgingPolicy {
  // Attempts of one call, the first included: 2 to RetryPolicy::kMaxAttempts.
  int max_attempts = 2;
  // How long after an attempt has its server the next one begins, if none has ended: 0 or more. 0
  // begins all at once. A good value is the method's latency at the 95th percentile.
  Duration delay = std::chrono::milliseconds(10);
  // The failures after which other attempts may do better. Without OK.
  std::vector<absl::StatusCode> non_fatal_codes = {absl::StatusCode::kUnavailable,
                                                   absl::StatusCode::kResourceExhausted};
};

// Bounds the load that further attempts add while many calls fail. Each executor has a count of
// tokens for the channel, which begins at max_tokens. A failure that may pass takes one, but a call
// that reaches its deadline takes none, and all calls that a lost link ends take one together. A
// call that ends well, and a stream that has found its link, give token_ratio back. While there are
// max_tokens / 2 or fewer, no call has a further attempt. Calls of methods without a policy do not
// count.
//
// So at most max_tokens / 2 failures that servers answer with are followed by further attempts, and
// then one for each 1 / token_ratio calls that end well and streams that find a link. As many lost
// links are, however many calls each of them had: what those add is bounded by max_attempts alone.
// If servers crash or stand still again and again, while calls between end well, the servers that
// are left may work up to max_attempts times as much.
struct RetryBudget {
  // 0 to 1000; 0 is no bound.
  double max_tokens = 100;
  // 0.001 to 1000, of which three decimals count: with 0.1, a lasting overload that servers refuse
  // makes them work at most a tenth more.
  double token_ratio = 0.1;
};

// Counts of the calls of a channel that may have several attempts: those of methods with a
// RetryPolicy, and those that their HedgingPolicy applies to.
struct RetryStats {
  // Unary calls, and streams that could not have a link at once.
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

// The policies of one method, of one service, or of all others: a part of ServiceConfig.
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

// The policies of a channel's methods, and the budget that they share.
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
VERBENA_EXPORT absl::StatusOr<ServiceConfig> ParseServiceConfig(std::string_view json);

// Balancing: how a channel to a set of servers chooses the server of a call.
//
// Each executor chooses by itself, among the servers that it has a link to (ready). A stream
// chooses once, when it begins.
enum class Balancing : uint8_t {
  // The first server, in the order of the set, that can be reached. A later one is connected only
  // while each before it fails, or has been connecting for a quarter of a second: for a primary and
  // its stand-ins. Calls come back to an earlier one as soon as it is ready. While a later one
  // serves, only the first four before it are tried again.
  kPickFirst,
  // One after another.
  kRoundRobin,
  // One after another, each as often as its weight says.
  kWeighted,
  // The one of two random servers that has fewer calls of this executor in flight, in proportion to
  // its weight: for calls that differ in cost, and servers that differ in speed.
  kLeastInFlight,
  // By CallOptions::route_key, among the servers that are ready here and, with
  // ChannelOptions::zone, in that zone. Executors that see the same servers send a key to the same
  // one. When a server comes or goes, only its own keys move (rendezvous hashing). While a key's
  // server is not connected, as at the start, its calls go to another one: use keys for caches, not
  // for ownership. A server gets keys in proportion to its weight. Calls without a key take turns,
  // as with kRoundRobin. With ChannelOptions::executors_per_server, a key has an executor of its
  // own, too.
  kRouteKey,
};

// A server that fails or is slow, while the others are not, gets no calls for some time. It stays
// connected (ChannelServer::State::kEjected), and gets calls again when the time is over. Each
// executor judges for itself, once in each interval, by the calls that it made. With
// ChannelOptions::executors_per_server it judges each executor of a server by itself: one of them
// may hang while the others answer.
//
// A failure is a link that was lost under calls, a deadline that passed before the server answered
// (of the call, of its attempt, or of the Task that makes it), or an answer of UNAVAILABLE or
// INTERNAL with Outcome::kMaybeExecuted, as of a handler that threw. Any other answer is no
// failure, whatever its code: an application's errors eject nobody. A fault that more than half of
// the servers share ejects nobody, either. Streams that a deadline ends count nothing.
//
//   Channel channel(*runtime, target, {.ejection = {.interval = 1s, .latency_factor = 5}});
struct EjectionOptions {
  // 0, the default: nobody is ejected, and no call pays for it. Otherwise 1 ms to 1 h.
  Duration interval = std::chrono::seconds(0);
  // This many failures, without an answer in between, eject a server. 0: not judged by this.
  uint32_t consecutive_failures = 5;
  // Ejects a server if at least this many percent of its calls failed in an interval, 1 to 100. 0:
  // not judged by this.
  uint32_t failure_percent = 50;
  // failure_percent does not judge a server that had fewer calls in an interval. At least 1.
  uint32_t min_calls = 20;
  // Ejects a server whose calls took longer on average than the median of the servers' averages, by
  // this factor: 1.5 to 1000. One call in 16 is timed. A server needs 4 timed calls in an interval
  // to be judged. 0, the default: not judged by this. For servers and calls that should not differ
  // much.
  double latency_factor = 0;
  // The length of the first ejection; the n-th is n times as long. The count falls by one if the
  // server is not ejected again for as long as its last ejection took. 1 ms to longest_ejection.
  Duration first_ejection = std::chrono::seconds(10);
  // At most 24 h.
  Duration longest_ejection = std::chrono::minutes(5);
  // At most this many percent of the ready servers are ejected at once: 1 to 50. Of three or more,
  // one may be ejected, whatever the percentage.
  uint32_t max_ejected_percent = 50;
};

// One server of a channel's set, as one executor sees it (Channel::Servers()). A value.
struct ChannelServer {
  enum class State : uint8_t {
    kIdle,        // no link is wanted yet
    kConnecting,  // the first attempt, or the first after a link was lost
    kReady,       // takes calls
    kFailing,     // the last attempt failed, and further ones follow
    kEjected,  // connected, but takes no calls for a while (EjectionOptions); last_error says why
  };

  ResolvedServer server = {};
  State state = State::kIdle;
  // Calls and streams of this executor, of all channels that share the connection.
  uint32_t in_flight = 0;
  // Attempts to connect that have failed since the last link was usable.
  uint32_t failures = 0;
  // Why the last attempt failed, why the server is ejected, or why it is not connected though the
  // policy wants it. OK otherwise.
  absl::Status last_error = {};
};

}  // namespace verbena

#endif  // VERBENA_RPC_POLICY_H_
