#include "verbena/rpc/status.h"

#include <string>

#include "absl/strings/cord.h"
#include "fmt/format.h"
#include "verbena/rpc/call/status_codec.h"
#include "verbena/transport/base/retry_after.h"

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

absl::Status Annotate(const absl::Status& status, std::string_view what) {
  if (status.ok()) return status;
  absl::Status annotated(status.code(), fmt::format("{}: {}", what, std::string(status.message())));
  status.ForEachPayload([&annotated](absl::string_view url, const absl::Cord& payload) {
    annotated.SetPayload(url, payload);
  });
  return annotated;
}

absl::Status WithRetryAfter(absl::Status status, Duration delay) {
  internal::SetRetryAfter(status, delay);
  return status;
}

std::optional<Duration> RetryAfterOf(const absl::Status& status) {
  return internal::ReadRetryAfter(status);
}

}  // namespace verbena
