// RetryAfter: how long the caller of a failed call should wait before the next attempt, as the
// server says.
//
// Travels as a detail of the Status, and survives Annotate(). Pure functions; any thread.
//
//   co_return context.NotExecuted(WithRetryAfter(absl::UnavailableError("rebuilding"), 50ms));
//   …
//   if (auto delay = RetryAfterOf(status)) co_await Sleep(*delay);

#ifndef VERBENA_RPC_RETRY_AFTER_H_
#define VERBENA_RPC_RETRY_AFTER_H_

#include <optional>

#include "absl/status/status.h"
#include "verbena/transport/base/clock.h"

namespace verbena {

// `status` with `delay`, rounded up to microseconds, instead of any that it had. OK stays OK. A
// check aborts if `delay` is negative.
absl::Status WithRetryAfter(absl::Status status, Duration delay);

// The delay that `status` asks for. None if it asks for none, or a peer sent one that is no number.
std::optional<Duration> RetryAfterOf(const absl::Status& status);

}  // namespace verbena

#endif  // VERBENA_RPC_RETRY_AFTER_H_
