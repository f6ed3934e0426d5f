// Status: what is known about a call that failed, beside its code and its message.
//
// Verbena's functions return absl::Status. The outcome and the delay travel as details of the
// Status, so they survive being passed up and annotated. Pure functions; any thread.
//
//   OutcomeOf, WithOutcome          did the call run?
//   Annotate                        more text, and everything else as it was
//   RetryAfterOf, WithRetryAfter    how long the caller should wait before the next attempt
//
//   if (!reply.ok() && OutcomeOf(reply.status()) == Outcome::kNotExecuted) Retry();
//
//   precondition                             how it is checked   test
//   WithRetryAfter() of a delay, 0 or more   a check aborts      handlers_refusal_test

#ifndef VERBENA_RPC_STATUS_H_
#define VERBENA_RPC_STATUS_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/export.h"

namespace verbena {

// Did a call that failed run? A storage system that retries a mutation must know.
enum class Outcome : uint8_t {
  // The call changed nothing: the request never left, the server did not start the handler, or the
  // handler says so (ServerContext::NotExecuted()).
  kNotExecuted = 1,
  // The handler ran to its end: the server says so. Also for every OK status.
  kExecuted = 2,
  // Everything else. A posted request may have run, also when its work request was flushed; or the
  // handler says that it cannot tell (ServerContext::MaybeExecuted()).
  kMaybeExecuted = 3,
};

// The outcome of a Status that a call returned. kMaybeExecuted if the Status carries none, since
// nothing is known.
VERBENA_EXPORT Outcome OutcomeOf(const absl::Status& status);

// `status` with `outcome` attached. OK stays OK. For the calling side, as in a wrapper or a test:
// if a handler returns this Status, its caller still hears kExecuted, unless the handler calls
// ServerContext::NotExecuted() or MaybeExecuted().
VERBENA_EXPORT absl::Status WithOutcome(absl::Status status, Outcome outcome);

// "not_executed", "executed" or "maybe_executed".
VERBENA_EXPORT const char* OutcomeName(Outcome outcome);

// `status` with the message "<what>: <message>", and with its code and details. OK stays OK. A new
// Status built from code and message alone would lose the Outcome, by which callers decide about
// retries, and the details of the peer.
//
//   if (!status.ok()) return Annotate(status, "Write of volume 'db'");
VERBENA_EXPORT absl::Status Annotate(const absl::Status& status, std::string_view what);

// `status` which also says that its caller should wait for `delay` before the next attempt. The
// delay is rounded up to microseconds, and replaces any that `status` had. OK stays OK. A check
// aborts if `delay` is negative.
//
//   co_return context.NotExecuted(WithRetryAfter(absl::UnavailableError("rebuilding"), 50ms));
VERBENA_EXPORT absl::Status WithRetryAfter(absl::Status status, Duration delay);

// The delay that `status` asks for. None if it asks for none, or a peer sent one that is no number.
//
//   if (auto delay = RetryAfterOf(status)) co_await Sleep(*delay);
VERBENA_EXPORT std::optional<Duration> RetryAfterOf(const absl::Status& status);

}  // namespace verbena

#endif  // VERBENA_RPC_STATUS_H_
