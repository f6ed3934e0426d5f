#include "verbena/transport/base/retry_after.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "verbena/transport/base/check.h"

namespace verbena::internal {
namespace {

// Its value is a number of microseconds in decimal digits.
constexpr char kRetryAfterUrl[] = "type.verbena/retry_after_us";

}  // namespace

void SetRetryAfter(absl::Status& status, Duration delay) {
  VERBENA_CHECK(delay >= Duration::zero()) << delay.count() << " ns";
  if (status.ok()) return;
  const std::string delay_us =
      fmt::format("{}", std::chrono::ceil<std::chrono::microseconds>(delay).count());
  status.SetPayload(kRetryAfterUrl, absl::Cord(delay_us));
}

std::optional<Duration> ReadRetryAfter(const absl::Status& status) {
  const auto payload = status.GetPayload(kRetryAfterUrl);
  uint64_t delay_us = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &delay_us)) {
    return std::nullopt;
  }
  return SaturatingCast(std::chrono::duration<uint64_t, std::micro>(delay_us));
}

}  // namespace verbena::internal
