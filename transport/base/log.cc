#include "verbena/transport/base/log.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <ctime>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "fmt/format.h"
#include "verbena/transport/base/letters_apart.h"
#include "verbena/transport/base/status.h"

namespace verbena {
namespace {

constexpr std::array<std::string_view, 5> kLevelNames = {"debug", "info", "warning", "error",
                                                         "off"};
constexpr std::array<std::string_view, internal::kLogComponents> kComponentNames = {
    "executor", "memory", "device", "connect", "link",  "file",
    "runtime",  "client", "server", "naming",  "admin", "application"};
// The most characters of a wrong word that an error shows: the word may come from a peer.
constexpr size_t kShownOfWord = 40;
constexpr LogLevel kUsualLevel = LogLevel::kWarning;

// The least level by component, as SetLogLevels() reads it; none where the text says nothing.
using ReadLevels = std::array<std::optional<LogLevel>, internal::kLogComponents>;

void PrintToStderr(const LogRecord& record) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm utc{};
  gmtime_r(&now.tv_sec, &utc);
  fmt::print(stderr, "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z verbena: {}: {}: {}\n",
             utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
             now.tv_nsec / 1'000'000, LogLevelName(record.level),
             LogComponentName(record.component), internal::EscapeControls(record.text));
}

// Those who write hold the mutex shared, so that whoever replaces the sink waits for them.
struct Sink {
  std::shared_mutex mutex;
  LogSink sink;  // empty: PrintToStderr()
};

// Kept for ever: threads log while the process exits.
Sink& TheSink() {
  static auto* const sink = new Sink;
  return *sink;
}

std::string_view Stripped(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

std::optional<size_t> IndexOf(std::string_view word, std::span<const std::string_view> words) {
  const auto found = std::find(words.begin(), words.end(), word);
  if (found == words.end()) return std::nullopt;
  return static_cast<size_t>(found - words.begin());
}

absl::Status NoSuchWord(std::string_view what, std::string_view word,
                        std::span<const std::string_view> words) {
  const std::string_view shown = word.substr(0, kShownOfWord);
  const auto nearest =
      std::min_element(words.begin(), words.end(), [shown](std::string_view a, std::string_view b) {
        return internal::LettersApart(shown, a) < internal::LettersApart(shown, b);
      });
  return absl::InvalidArgumentError(fmt::format("\"{}{}\" is no {}: write \"{}\", or another of {}",
                                                absl::CHexEscape({shown.data(), shown.size()}),
                                                shown.size() < word.size() ? "…" : "", what,
                                                *nearest, fmt::join(words, ", ")));
}

absl::StatusOr<LogLevel> ParseLevel(std::string_view text, std::string_view whose) {
  const std::optional<size_t> level = IndexOf(text, kLevelNames);
  if (level.has_value()) return static_cast<LogLevel>(*level);
  return NoSuchWord(fmt::format("level of {}", whose), text, kLevelNames);
}

// One item: "warning", "link=debug".
absl::Status ParseItem(std::string_view item, ReadLevels& levels) {
  const size_t equals = item.find('=');
  if (equals == std::string_view::npos) {
    if (IndexOf(item, kComponentNames).has_value()) {
      return absl::InvalidArgumentError(
          fmt::format("\"{0}\" has no level: write {0}=LEVEL, LEVEL one of {1}", item,
                      fmt::join(kLevelNames, ", ")));
    }
    VERBENA_ASSIGN_OR_RETURN(const LogLevel level, ParseLevel(item, "the log"));
    levels.fill(level);
    return absl::OkStatus();
  }
  const std::string_view name = Stripped(item.substr(0, equals));
  const std::optional<size_t> component = IndexOf(name, kComponentNames);
  if (!component.has_value()) return NoSuchWord("component of the log", name, kComponentNames);
  VERBENA_ASSIGN_OR_RETURN(levels[*component], ParseLevel(Stripped(item.substr(equals + 1)), name));
  return absl::OkStatus();
}

absl::StatusOr<ReadLevels> ParseLevels(std::string_view text) {
  ReadLevels levels;
  while (true) {
    const size_t comma = text.find(',');
    VERBENA_RETURN_IF_ERROR(ParseItem(Stripped(text.substr(0, comma)), levels));
    if (comma == std::string_view::npos) return levels;
    text.remove_prefix(comma + 1);
  }
}

void Apply(const ReadLevels& levels) {
  for (size_t i = 0; i < levels.size(); ++i) {
    if (!levels[i].has_value()) continue;
    internal::log_thresholds[i].store(static_cast<uint8_t>(1 + static_cast<uint8_t>(*levels[i])),
                                      std::memory_order_relaxed);
  }
}

// Sets each level once, as VERBENA_LOG says or as usual: others may read them meanwhile.
absl::Status ApplyEnvironment() {
  ReadLevels levels;
  absl::Status status;
  const char* text = std::getenv("VERBENA_LOG");
  if (text != nullptr && *text != '\0') {
    const absl::StatusOr<ReadLevels> wanted = ParseLevels(text);
    status = wanted.status();
    if (wanted.ok()) levels = *wanted;
  }
  for (std::optional<LogLevel>& each : levels) each = each.value_or(kUsualLevel);
  Apply(levels);
  return status;
}

// Once, ahead of all who read or set levels.
void ReadEnvironment() {
  static const auto& read = *new absl::Status(ApplyEnvironment());
  if (read.ok()) [[likely]]
    return;
  // Not while others wait for `read`: the sink may wait for one of them.
  static std::atomic<bool> told = false;
  if (told.exchange(true)) return;
  internal::WriteLog(LogComponent::kRuntime, LogLevel::kWarning,
                     fmt::format("VERBENA_LOG does not count: {}", std::string(read.message())));
}

}  // namespace

std::string_view LogLevelName(LogLevel level) { return kLevelNames[static_cast<size_t>(level)]; }

std::string_view LogComponentName(LogComponent component) {
  return kComponentNames[static_cast<size_t>(component)];
}

void SetLogSink(LogSink sink) {
  Sink& the = TheSink();
  {
    std::unique_lock lock(the.mutex);
    std::swap(the.sink, sink);
  }
  // The former one ends here, without the lock: what it holds may log.
}

absl::Status SetLogLevels(std::string_view text) {
  VERBENA_ASSIGN_OR_RETURN(const ReadLevels levels, ParseLevels(text));
  ReadEnvironment();
  Apply(levels);
  return absl::OkStatus();
}

std::string LogLevels() {
  ReadEnvironment();
  std::vector<std::string> items;
  for (size_t i = 0; i < internal::kLogComponents; ++i) {
    const uint8_t least = internal::log_thresholds[i].load(std::memory_order_relaxed);
    items.push_back(fmt::format("{}={}", kComponentNames[i], kLevelNames[least - 1]));
  }
  return fmt::format("{}", fmt::join(items, ","));
}

}  // namespace verbena

namespace verbena::internal {

constinit std::atomic<uint8_t> log_thresholds[kLogComponents] = {};

bool IsLoggedAtFirst(LogComponent component, LogLevel level) {
  ReadEnvironment();
  return IsLogged(component, level);
}

void WriteLog(LogComponent component, LogLevel level, const std::string& text,
              std::initializer_list<LogField> fields) noexcept {
  const LogRecord record{.level = level, .component = component, .text = text, .fields = fields};
  try {
    Sink& the = TheSink();
    std::shared_lock lock(the.mutex);
    if (the.sink) {
      the.sink(record);
    } else {
      PrintToStderr(record);
    }
  } catch (...) {  // NOLINT(bugprone-empty-catch): there is nowhere to tell of it
  }
}

std::string EscapeControls(std::string_view text) {
  std::string escaped;
  escaped.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7f) {
      escaped += c;
    } else if (c == '\n') {
      escaped += "\\n";
    } else if (c == '\t') {
      escaped += "\\t";
    } else if (c == '\r') {
      escaped += "\\r";
    } else {
      escaped += fmt::format("\\x{:02x}", byte);
    }
  }
  return escaped;
}

void ThrottledLog::Reset() {
  std::lock_guard lock(mutex_);
  printed_ = 0;
  left_out_ = 0;
}

bool ThrottledLog::AdmitsAnother(LogLevel level, Time now) {
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
      return false;
    }
    ++printed_;
  }
  if (left_out > 0) {
    WriteLog(component_, level,
             fmt::format("{} more lines like the next were left out in {} s", left_out,
                         std::chrono::duration_cast<std::chrono::seconds>(since).count()),
             {{"left_out", left_out}});
  }
  return true;
}

}  // namespace verbena::internal
