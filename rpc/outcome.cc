#include "verbena/rpc/outcome.h"

#include <string>

#include "absl/strings/cord.h"
#include "verbena/rpc/call/status_codec.h"

namespace verbena {

Outcome OutcomeOf(const absl::Status& status) {
  if (status.ok()) return Outcome::kExecuted;
  const auto payload = status.GetPayload(internal::kOutcomePayloadUrl);
  if (!payload.has_value() || payload->empty()) return Outcome::kMaybeExecuted;
  switch ((*payload)[0]) {
    case 'n':
      return Outcome::kNotExecuted;
    case 'e':
      return Outcome::kExecuted;
    default:
      return Outcome::kMaybeExecuted;
  }
}

absl::Status WithOutcome(absl::Status status, Outcome outcome) {
  if (status.ok()) return status;
  status.SetPayload(internal::kOutcomePayloadUrl, absl::Cord(OutcomeName(outcome)));
  return status;
}

const char* OutcomeName(Outcome outcome) {
  switch (outcome) {
    case Outcome::kNotExecuted:
      return "not_executed";
    case Outcome::kExecuted:
      return "executed";
    case Outcome::kMaybeExecuted:
      return "maybe_executed";
  }
  return "maybe_executed";
}

}  // namespace verbena
