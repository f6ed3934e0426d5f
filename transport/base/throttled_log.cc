#include "verbena/transport/base/throttled_log.h"

#include <utility>

#include "fmt/format.h"

namespace verbena::internal {

void ThrottledLog::Reset() {
  std::lock_guard lock(mutex_);
  printed_ = 0;
  left_out_ = 0;
}

void ThrottledLog::Write(LogLevel level, Time now, const std::string& message) {
  uint64_t left_out = 0;
  std::chrono::nanoseconds since{};
  {
    std::lock_guard lock(mutex_);
    if (now - interval_begin_ >= limits_.interval) {
      since = now - interval_begin_;
      left_out = std::exchange(left_out_, 0);
      interval_begin_ = now;
      printed_ = 0;
    }
    if (printed_ >= limits_.lines) {
      ++left_out_;
      return;
    }
    ++printed_;
  }
  if (left_out > 0) {
    Log(level, fmt::format("{} more lines like the next were left out in {} s", left_out,
                           std::chrono::duration_cast<std::chrono::seconds>(since).count()));
  }
  Log(level, message);
}

}  // namespace verbena::internal
