#include "verbena/transport/base/log.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

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
  fmt::print(stderr, "verbena: {}: {}\n", kNames[static_cast<int>(level)], message);
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
