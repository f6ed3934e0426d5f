#include "verbena/rpc/retry_after.h"

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "fmt/format.h"
#include "verbena/transport/base/check.h"

namespace verbena {
namespace {

// Its value is a number of microseconds in decimal digits.
constexpr char kUrl[] = "type.verbena/retry_after_us";

}  // namespace

absl::Status WithRetryAfter(absl::Status status, Duration delay) {
  VERBENA_CHECK(delay >= Duration::zero()) << delay.count() << " ns";
  if (status.ok()) return status;
  const std::string delay_us =
      fmt::format("{}", std::chrono::ceil<std::chrono::microseconds>(delay).count());
  status.SetPayload(kUrl, absl::Cord(delay_us));
  return status;
}

std::optional<Duration> RetryAfterOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kUrl);
  uint64_t delay_us = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &delay_us)) {
    return std::nullopt;
  }
  return internal::SaturatingCast(std::chrono::duration<uint64_t, std::micro>(delay_us));
}

}  // namespace verbena
