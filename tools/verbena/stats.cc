#include "tools/verbena/stats.h"

#include <unistd.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <iostream>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "tools/verbena/admin_client.h"
#include "tools/verbena/printable.h"
#include "verbena/transport/base/status.h"

namespace verbena::command {
namespace {

namespace json = boost::json;

using internal::MethodReport;
using internal::QuantileOf;
using internal::SlotsSince;
using internal::TimeSlot;
using internal::TimeText;

constexpr const char* kStatusPage = "/status.json";

// Takes fields of JSON, and keeps the name of the first one that is not as it must be.
class StatusReader {
 public:
  const std::string& wrong() const { return wrong_; }

  const json::array& Array(const json::value& in, std::string_view key) {
    static const json::array& none = *new json::array;
    const json::value* found = Find(in, key);
    return found != nullptr && found->is_array() ? *found->if_array() : (Note(key), none);
  }
  const json::object& Object(const json::value& in, std::string_view key) {
    static const json::object& none = *new json::object;
    const json::value* found = Find(in, key);
    return found != nullptr && found->is_object() ? *found->if_object() : (Note(key), none);
  }
  std::string Text(const json::value& in, std::string_view key) {
    const json::value* found = Find(in, key);
    if (found != nullptr && found->is_string()) return TextOf(*found);
    Note(key);
    return "";
  }
  bool Bool(const json::value& in, std::string_view key) {
    const json::value* found = Find(in, key);
    if (found != nullptr && found->is_bool()) return *found->if_bool();
    Note(key);
    return false;
  }
  template <typename Number>
  Number NumberAt(const json::value& in, std::string_view key) {
    const json::value* found = Find(in, key);
    return found != nullptr ? As<Number>(*found, key) : (Note(key), Number{});
  }
  // `key` is where it comes from.
  template <typename Number>
  Number As(const json::value& value, std::string_view key) {
    boost::system::error_code failed;
    const Number number = value.to_number<Number>(failed);
    return failed ? (Note(key), Number{}) : number;
  }
  std::vector<std::string> Texts(const json::value& in, std::string_view key) {
    std::vector<std::string> texts;
    for (const json::value& each : Array(in, key)) {
      if (!each.is_string()) Note(key);
      if (each.is_string()) texts.push_back(TextOf(each));
    }
    return texts;
  }
  std::vector<TimeSlot> Times(const json::value& in, std::string_view key) {
    std::vector<TimeSlot> slots;
    for (const json::value& each : Array(in, key)) {
      const json::array* const slot = each.if_array();
      if (slot == nullptr || slot->size() != 3) {
        Note(key);
        break;
      }
      slots.push_back({.begin = As<double>((*slot)[0], key),
                       .end = As<double>((*slot)[1], key),
                       .count = As<uint64_t>((*slot)[2], key)});
    }
    return slots;
  }

 private:
  static std::string TextOf(const json::value& value) {
    const json::string& text = *value.if_string();
    return Printable(std::string_view(text.data(), text.size()));
  }
  const json::value* Find(const json::value& in, std::string_view key) {
    const json::object* const object = in.if_object();
    return object == nullptr ? nullptr : object->if_contains({key.data(), key.size()});
  }
  void Note(std::string_view key) {
    if (wrong_.empty()) wrong_ = key;
  }

  std::string wrong_;
};

MethodReport MethodOf(const json::value& from, StatusReader& reader) {
  MethodReport method{.name = reader.Text(from, "method"),
                      .is_served = reader.Text(from, "side") == "server",
                      .begun = reader.NumberAt<uint64_t>(from, "begun")};
  for (const auto& each : reader.Object(from, "failed")) {
    method.failed.emplace_back(Printable(std::string_view(each.key().data(), each.key().size())),
                               reader.As<uint64_t>(each.value(), "failed"));
  }
  method.times = reader.Times(from, "times");
  return method;
}

std::string MebibytesText(uint64_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

// Cells in columns; the first is to the left, the others to the right, but for the last.
std::string Columns(const std::vector<std::vector<std::string>>& rows) {
  // Bytes of UTF-8 that begin a character.
  const auto width = [](const std::string& text) {
    return static_cast<size_t>(
        std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; }));
  };
  std::vector<size_t> widths(rows[0].size());
  for (const std::vector<std::string>& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width(row[i]));
  }
  std::string text;
  for (const std::vector<std::string>& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string gap(widths[i] - width(row[i]), ' ');
      const bool is_last = i + 1 == row.size();
      if (i > 0) line += "  ";
      line += i == 0 ? row[i] + gap : is_last ? row[i] : gap + row[i];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

// One line of error, and the exit status.
int Refuse(const absl::Status& status, Terminal& terminal) {
  const std::string message(status.message().data(), status.message().size());
  terminal.error << "verbena: " << Printable(message) << std::endl;
  return absl::IsInvalidArgument(status) ? kMistake : 1;
}

absl::StatusOr<ProcessStats> AskStats(const std::string& admin) {
  VERBENA_ASSIGN_OR_RETURN(const std::string text, AskAdmin(admin, kStatusPage));
  absl::StatusOr<ProcessStats> stats = ParseStats(text);
  if (stats.ok()) return stats;
  return absl::FailedPreconditionError(fmt::format(
      "{} gives a {} that is no status of Verbena ({}): is it an admin server of this version?",
      admin, kStatusPage, std::string(stats.status().message())));
}

bool ShowsOnScreen(const Terminal& terminal) {
  return &terminal.output == &std::cout && isatty(STDOUT_FILENO) != 0;
}

}  // namespace

absl::StatusOr<ProcessStats> ParseStats(const std::string& text) {
  boost::system::error_code failed;
  const json::value status = json::parse(text, failed);
  if (failed) return absl::InvalidArgumentError(fmt::format("no JSON: {}", failed.message()));
  StatusReader reader;
  ProcessStats stats{.version = reader.Text(status, "version"),
                     .ready = reader.Bool(status, "ready"),
                     .seconds = reader.NumberAt<double>(status, "time_seconds")};
  for (const std::string& why : reader.Texts(status, "not_ready")) {
    stats.notes.push_back("not ready: " + why);
  }
  for (const std::string& loss : reader.Texts(status, "degraded")) {
    stats.notes.push_back("degraded: " + loss);
  }
  const json::array& executors = reader.Array(status, "executors");
  for (size_t i = 0; i < executors.size(); ++i) {
    const json::object* const executor = executors[i].if_object();
    const json::value* const age =
        executor == nullptr ? nullptr : executor->if_contains("age_seconds");
    if (age == nullptr || age->is_null()) {
      stats.notes.push_back(fmt::format("executor {} has not answered yet", i));
    } else if (const double seconds = reader.As<double>(*age, "age_seconds"); seconds >= 1) {
      stats.notes.push_back(
          fmt::format("executor {} does not answer: its values are {:.1f} s old", i, seconds));
    }
  }
  for (const json::value& method : reader.Array(status, "methods")) {
    stats.methods.push_back(MethodOf(method, reader));
  }
  for (const json::value& device : reader.Array(status, "devices")) {
    stats.lines.push_back(
        {.name =
             fmt::format("{} ({})", reader.Text(device, "device"), reader.Text(device, "network")),
         .text = fmt::format("{}, {} links, {} lost", reader.Text(device, "state"),
                             reader.NumberAt<uint64_t>(device, "links"),
                             reader.NumberAt<uint64_t>(device, "links_lost"))});
  }
  for (const json::value& pool : reader.Array(status, "memory")) {
    stats.lines.push_back(
        {.name =
             fmt::format("{}, {} memory", reader.Text(pool, "device"), reader.Text(pool, "pool")),
         .text = fmt::format("{} of {} in use, {} calls wait",
                             MebibytesText(reader.NumberAt<uint64_t>(pool, "in_use")),
                             MebibytesText(reader.NumberAt<uint64_t>(pool, "budget")),
                             reader.NumberAt<uint64_t>(pool, "waiting"))});
  }
  if (reader.wrong().empty()) return stats;
  return absl::InvalidArgumentError(
      fmt::format("its field \"{}\" is not there, or is of another kind", reader.wrong()));
}

std::string StatsTable(const ProcessStats& now, const ProcessStats* before) {
  std::string text =
      fmt::format("Verbena {}: {}\n", now.version, now.ready ? "ready" : "not ready");
  for (const std::string& note : now.notes) text += note + "\n";
  const double seconds = before == nullptr ? 0 : now.seconds - before->seconds;
  std::vector<std::vector<std::string>> rows = {
      {"method", "side", "calls/s", "p50", "p99", "under way", "calls", "failed since the start"}};
  for (const MethodReport& method : now.methods) {
    MethodReport then;
    if (before != nullptr) {
      const auto found = std::ranges::find_if(before->methods, [&method](const MethodReport& each) {
        return each.name == method.name && each.is_served == method.is_served;
      });
      if (found != before->methods.end()) then = *found;
    }
    const std::vector<TimeSlot> times = SlotsSince(method.times, then.times);
    const auto quantile = [&times](double q) {
      return times.empty() ? std::string("-") : TimeText(QuantileOf(times, q));
    };
    // A process that has started anew has counted less.
    const bool has_rate = seconds > 0 && method.begun >= then.begun;
    std::vector<std::string> failures;
    failures.reserve(method.failed.size());
    for (const auto& [code, calls] : method.failed) {
      failures.push_back(fmt::format("{} {}", code, calls));
    }
    rows.push_back(
        {method.name, method.is_served ? "server" : "client",
         has_rate ? fmt::format("{:.0f}", static_cast<double>(method.begun - then.begun) / seconds)
                  : "-",
         quantile(0.5), quantile(0.99), fmt::format("{}", method.under_way()),
         fmt::format("{}", method.begun), fmt::format("{}", fmt::join(failures, ", "))});
  }
  text += now.methods.empty() ? "no calls are counted (RuntimeOptions::metrics, or none came)\n"
                              : "\n" + Columns(rows) + "\n";
  std::vector<std::vector<std::string>> lines;
  lines.reserve(now.lines.size());
  for (const ProcessStats::Line& line : now.lines) lines.push_back({line.name, line.text});
  if (!lines.empty()) text += Columns(lines);
  return text;
}

int RunStats(const StatsArguments& arguments, Terminal& terminal) {
  if (arguments.metrics) {
    const absl::StatusOr<std::string> text = AskAdmin(arguments.admin, "/metrics");
    if (!text.ok()) return Refuse(text.status(), terminal);
    terminal.output << Printable(*text, LineBreaks::kKeep) << std::flush;
    return 0;
  }
  const absl::StatusOr<ProcessStats> stats = AskStats(arguments.admin);
  if (!stats.ok()) return Refuse(stats.status(), terminal);
  terminal.output << StatsTable(*stats, nullptr) << std::flush;
  return 0;
}

int RunTop(const TopArguments& arguments, Terminal& terminal) {
  const bool clears = ShowsOnScreen(terminal);
  absl::StatusOr<ProcessStats> before = AskStats(arguments.admin);
  if (!before.ok()) return Refuse(before.status(), terminal);
  for (uint64_t i = 0; arguments.count == 0 || i < arguments.count; ++i) {
    std::this_thread::sleep_for(arguments.interval);
    absl::StatusOr<ProcessStats> now = AskStats(arguments.admin);
    if (!now.ok()) return Refuse(now.status(), terminal);
    // To the upper left, and all below is gone.
    if (clears) terminal.output << "\x1b[H\x1b[2J";
    terminal.output << StatsTable(*now, &*before) << (clears ? "" : "\n") << std::flush;
    before = std::move(now);
  }
  return 0;
}

}  // namespace verbena::command
