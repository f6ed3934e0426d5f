// The wait that a Status asks for before the next attempt, as a payload of it. verbena/rpc/status.h
// has the form for users.

#ifndef VERBENA_TRANSPORT_BASE_RETRY_AFTER_H_
#define VERBENA_TRANSPORT_BASE_RETRY_AFTER_H_

#include <optional>

#include "absl/status/status.h"
#include "verbena/transport/base/clock.h"

namespace verbena::internal {

// Replaces the wait that `status` had. `delay` is not negative, and is rounded up to microseconds.
// OK stays OK.
void SetRetryAfter(absl::Status& status, Duration delay);

// None if `status` asks for none, or a peer sent one that is no number.
std::optional<Duration> ReadRetryAfter(const absl::Status& status);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_BASE_RETRY_AFTER_H_
