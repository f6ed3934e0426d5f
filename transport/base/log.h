// Log: the one place where Verbena says something that no caller asked for.
//
// A line is a sentence, with a level, the component that writes it, and fields: the parts of the
// sentence that a program may want to filter by. Lines are rare (set-up, teardown, refused peers),
// never one per call. Each component has a least level, which may change at any time; a line below
// it costs a load and a branch, and is not formatted. Safe from any thread.
//
//   2026-11-29T13:04:59.042Z verbena: warning: link: 10.0.0.7:4000 breaks the protocol, …
//
//   VERBENA_LOG_LINE(kLink, kWarning, fmt::format("{} breaks the protocol, …", peer),
//                    {{"peer", peer}, {"link", qpn}});

#ifndef VERBENA_TRANSPORT_BASE_LOG_H_
#define VERBENA_TRANSPORT_BASE_LOG_H_

#include <atomic>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "verbena/transport/base/export.h"

namespace verbena {

// kOff is no level of a line: a component whose least level it is writes none.
enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError, kOff };

// Which part of Verbena writes a line.
enum class LogComponent : uint8_t {
  kExecutor,     // loops, their threads and tasks
  kMemory,       // pools, budgets, registered memory
  kDevice,       // NICs and the software RNIC
  kConnect,      // listening, handshakes, rdma_cm
  kLink,         // queue pairs: opened, lost, broken by a peer
  kFile,         // files
  kRuntime,      // the runtime, devices that it opens and opens again
  kClient,       // channels: connections, the choice among devices and servers
  kServer,       // accepting, handlers, shutdown
  kNaming,       // resolvers and registration, etcd
  kAdmin,        // the admin server
  kApplication,  // lines of the program itself: Log() of rpc/log.h
};

// "debug", "info", "warning", "error" or "off".
VERBENA_EXPORT std::string_view LogLevelName(LogLevel level);
// "executor", "memory", …: the enumerator's name, in small letters.
VERBENA_EXPORT std::string_view LogComponentName(LogComponent component);

// A part of a line's sentence, by name. docs/guide.md lists the keys that Verbena uses.
struct LogField {
  LogField(std::string_view key, std::string_view value) : key(key), value(value) {}
  template <std::integral T>
  LogField(std::string_view key, T value) : key(key), value(std::to_string(value)) {}

  std::string_view key;
  std::string value;
};

// One line, valid while the sink runs. `text` is whole without the fields.
struct LogRecord {
  LogLevel level;
  LogComponent component;
  std::string_view text;
  std::span<const LogField> fields;
};

// Takes each line that the levels admit, and adds the time if it wants to. It is called from any
// thread, perhaps from several at once. It must not call Verbena. It may hold data: what its
// closure captures lives as long as the sink.
using LogSink = std::function<void(const LogRecord& record)>;

// From now on, lines go to `sink`. An empty one restores the default, which writes to standard
// error, a line each (internal::EscapeControls()), with the time in UTC. When this returns, the
// former sink runs on no thread and is destroyed. So the caller must not hold a mutex that the
// former sink takes, and must not be the sink.
VERBENA_EXPORT void SetLogSink(LogSink sink);

// Sets the least levels of components. `text` has items, parted by commas: a level, which counts
// for all components, or component=level. A later item replaces an earlier one. INVALID_ARGUMENT,
// which names the item and the nearest right word, if one is wrong: then no level changes. From any
// thread, while others log.
//
//   SetLogLevels("warning,link=debug,file=off");
//
// Without a call, the levels are those of the environment variable VERBENA_LOG, and "warning" if
// that is unset or wrong. It is read once, ahead of the first line.
VERBENA_EXPORT absl::Status SetLogLevels(std::string_view text);

// The least level of each component, as SetLogLevels() takes it.
VERBENA_EXPORT std::string LogLevels();

}  // namespace verbena

namespace verbena::internal {

inline constexpr size_t kLogComponents = static_cast<size_t>(LogComponent::kApplication) + 1;

// By component: 0 until the environment has been read, otherwise 1 + the least level. Programs do
// not use it, so that a later version may have more components.
VERBENA_EXPORT extern std::atomic<uint8_t> log_thresholds[kLogComponents];

// Reads the environment if nobody has yet. Returns the same as IsLogged() from then on.
[[gnu::cold]] VERBENA_EXPORT bool IsLoggedAtFirst(LogComponent component, LogLevel level);

// Whether lines of `level` are written now.
inline bool IsLogged(LogComponent component, LogLevel level) {
  const uint8_t least =
      log_thresholds[static_cast<size_t>(component)].load(std::memory_order_relaxed);
  if (static_cast<uint8_t>(level) + 1 < least) return false;
  return least != 0 || IsLoggedAtFirst(component, level);
}

// Writes the line, whatever the levels say. An exception of the sink is dropped: no operation may
// fail because of its log line.
[[gnu::cold]] VERBENA_EXPORT void WriteLog(LogComponent component, LogLevel level,
                                           const std::string& text,
                                           std::initializer_list<LogField> fields = {}) noexcept;

// `text` as one line that no terminal obeys: control characters as "\\n", "\\t", "\\x1b". Text of
// peers may have any.
VERBENA_EXPORT std::string EscapeControls(std::string_view text);

// ThrottledLog: a log for events that a peer can cause as often as it likes.
//
// In each interval it writes the first few lines and counts the others; the next line that is
// written says how many were left out. So a flood costs a few lines, with counts, and lines that
// are left out are not formatted. Lines below the component's level count nowhere. Safe from any
// thread.
//
//   ThrottledLog refusals(LogComponent::kServer, {.lines = 4});
//   VERBENA_LOG_THROTTLED(refusals, kWarning, executor.now(), fmt::format("{} is refused: …",
//   peer),
//                         {{"peer", peer}});
class VERBENA_EXPORT ThrottledLog {
 public:
  using Time = std::chrono::time_point<std::chrono::steady_clock, std::chrono::nanoseconds>;

  struct Limits {
    int lines = 4;  // per interval
    std::chrono::nanoseconds interval = std::chrono::seconds(5);
  };

  ThrottledLog(LogComponent component, const Limits& limits)
      : component_(component), limits_(limits) {}

  // Whether a line of `level` is to be written. Counts it.
  bool Admits(LogLevel level, Time now) {
    return IsLogged(component_, level) && AdmitsAnother(level, now);
  }
  // Precondition: Admits() has just said so.
  void Write(LogLevel level, const std::string& text, std::initializer_list<LogField> fields = {}) {
    WriteLog(component_, level, text, fields);
  }
  // Begins a new interval, for tests that look at each line.
  void Reset();

 private:
  [[gnu::cold]] bool AdmitsAnother(LogLevel level, Time now);

  const LogComponent component_;
  const Limits limits_;
  std::mutex mutex_;
  // Under mutex_.
  Time interval_begin_{};
  int printed_ = 0;  // in this interval
  uint64_t left_out_ = 0;
};

}  // namespace verbena::internal

// Writes a line: VERBENA_LOG_LINE(component, level, text) or (component, level, text, {{key,
// value}, …}). `component` and `level` are enumerators without their type. The text and the fields
// are evaluated only if the line is written.
#define VERBENA_LOG_LINE(component, level, ...)                                                  \
  (::verbena::internal::IsLogged(::verbena::LogComponent::component, ::verbena::LogLevel::level) \
       ? ::verbena::internal::WriteLog(::verbena::LogComponent::component,                       \
                                       ::verbena::LogLevel::level, __VA_ARGS__)                  \
       : static_cast<void>(0))

// The same for a ThrottledLog, `log`, which is evaluated twice.
#define VERBENA_LOG_THROTTLED(log, level, now, ...)           \
  ((log).Admits(::verbena::LogLevel::level, now)              \
       ? (log).Write(::verbena::LogLevel::level, __VA_ARGS__) \
       : static_cast<void>(0))

#endif  // VERBENA_TRANSPORT_BASE_LOG_H_
