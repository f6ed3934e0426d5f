// Outcome: what is known about a call that failed: did it run?
//
// A storage system that retries a mutation must know. Travels as a detail of the failed
// absl::Status, so it survives being passed up. Any thread.
//
//   if (!reply.ok() && OutcomeOf(reply.status()) == Outcome::kNotExecuted) Retry();

#ifndef VERBENA_RPC_OUTCOME_H_
#define VERBENA_RPC_OUTCOME_H_

#include <cstdint>

#include "absl/status/status.h"

namespace verbena {

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
Outcome OutcomeOf(const absl::Status& status);

// `status` with `outcome` attached. OK stays OK. For the calling side, as in a wrapper or a test:
// if a handler returns this Status, its caller still hears kExecuted, unless the handler calls
// ServerContext::NotExecuted() or MaybeExecuted().
absl::Status WithOutcome(absl::Status status, Outcome outcome);

// "not_executed", "executed" or "maybe_executed".
const char* OutcomeName(Outcome outcome);

}  // namespace verbena

#endif  // VERBENA_RPC_OUTCOME_H_
