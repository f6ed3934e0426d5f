#include "verbena/transport/base/log.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <utility>

#include "fmt/format.h"

namespace verbena {
namespace {

bool InfoWanted() {
  const char* level = std::getenv("VERBENA_LOG");
  return level != nullptr && std::strcmp(level, "info") == 0;
}

void PrintToStderr(LogLevel level, const std::string& message) {
  static const bool info_wanted = InfoWanted();
  if (level == LogLevel::kInfo && !info_wanted) return;
  static constexpr const char* kNames[] = {"info", "warning", "error"};
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm utc{};
  gmtime_r(&now.tv_sec, &utc);
  fmt::print(stderr, "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z verbena: {}: {}\n",
             utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
             now.tv_nsec / 1'000'000, kNames[static_cast<int>(level)], message);
}

std::atomic<LogSink> log_sink{&PrintToStderr};

}  // namespace

void SetLogSink(LogSink sink) { log_sink.store(sink != nullptr ? sink : &PrintToStderr); }

void Log(LogLevel level, const std::string& message) noexcept {
  try {
    log_sink.load()(level, message);
  } catch (...) {  // NOLINT(bugprone-empty-catch): there is nowhere to tell of it
  }
}

}  // namespace verbena

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
