// Log: the one place where Verbena says something that no caller asked for.
//
// Messages are rare (set-up, teardown, refused peers), never one per call. The default sink writes
// a line to standard error, with the time in UTC; an embedding program sets its own, and adds the
// time itself. Safe from any thread.
//
//   2026-11-29T13:04:59.042Z verbena: warning: SRQ shrunk to 4096 receives: …
//
//   Log(LogLevel::kWarning, fmt::format("SRQ shrunk to {} receives: …", depth));

#ifndef VERBENA_TRANSPORT_BASE_LOG_H_
#define VERBENA_TRANSPORT_BASE_LOG_H_

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

#include "verbena/transport/base/export.h"

namespace verbena {

enum class LogLevel { kInfo, kWarning, kError };

// Called from any thread, perhaps from several at once; must not call back into Verbena.
using LogSink = void (*)(LogLevel level, const std::string& message);

// nullptr restores the default sink, which prints kWarning and worse (all, when VERBENA_LOG=info is
// set).
VERBENA_EXPORT void SetLogSink(LogSink sink);

// From any thread. An exception of the sink is dropped: no operation may fail because of its log
// line.
VERBENA_EXPORT void Log(LogLevel level, const std::string& message) noexcept;

}  // namespace verbena

namespace verbena::internal {

// ThrottledLog: a log for events that a peer can cause as often as it likes.
//
// In each interval it prints the first few lines and counts the others; the next line that is
// printed says how many were left out. So a flood costs a few lines, with counts. Safe from any
// thread.
//
//   ThrottledLog refusals({.lines = 4});
//   refusals.Write(LogLevel::kWarning, executor.now(), fmt::format("{} is refused: …", peer));
class VERBENA_EXPORT ThrottledLog {
 public:
  using Time = std::chrono::time_point<std::chrono::steady_clock, std::chrono::nanoseconds>;

  struct Limits {
    int lines = 4;  // per interval
    std::chrono::nanoseconds interval = std::chrono::seconds(5);
  };

  explicit ThrottledLog(const Limits& limits) : limits_(limits) {}

  void Write(LogLevel level, Time now, const std::string& message);
  // Begins a new interval, for tests that look at each line.
  void Reset();

 private:
  const Limits limits_;
  std::mutex mutex_;
  // Under mutex_.
  Time interval_begin_{};
  int printed_ = 0;  // in this interval
  uint64_t left_out_ = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_BASE_LOG_H_
