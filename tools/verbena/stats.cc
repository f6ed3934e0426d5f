#include "tools/verbena/stats.h"

#include <unistd.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <cstddef>
#include <iostream>
#include <optional>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
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
// (start) The histograms of 1,023 methods on both sides, with all of their slots in use, have as
// much; those of a service have a small part of it.
constexpr AdminLimits kStatusLimits{.max_bytes = size_t{8} << 20};

// Takes fields of JSON, and keeps the place of the first one that is not as it must be.
class StatusReader {
 public:
  bool ok() const { return !wrong_.has_value(); }
  // "methods[3].begun". Only if not ok().
  const std::string& wrong() const { return *wrong_; }

  // Calls `take(item)` for each item of an array, and stops at the first that has something wrong:
  // others may be millions.
  template <typename Take>
  void ForEach(const json::value& in, std::string_view key, Take take) {
    const json::value* const found = Find(in, key);
    const json::array* const items = found == nullptr ? nullptr : found->if_array();
    if (items == nullptr) return Note(key);
    for (size_t i = 0; ok() && i < items->size(); ++i) {
      take((*items)[i]);
      if (!ok()) wrong_ = fmt::format("{}[{}]{}{}", key, i, wrong_->empty() ? "" : ".", *wrong_);
    }
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
  // `key` is where it comes from; "" for an item.
  template <typename Number>
  Number As(const json::value& value, std::string_view key) {
    boost::system::error_code failed;
    const Number number = value.to_number<Number>(failed);
    return failed ? (Note(key), Number{}) : number;
  }
  std::vector<std::string> Texts(const json::value& in, std::string_view key) {
    std::vector<std::string> texts;
    ForEach(in, key, [&](const json::value& each) {
      if (!each.is_string()) return Note("");
      texts.push_back(TextOf(each));
    });
    return texts;
  }
  std::vector<TimeSlot> Times(const json::value& in, std::string_view key) {
    std::vector<TimeSlot> slots;
    ForEach(in, key, [&](const json::value& each) {
      const json::array* const slot = each.if_array();
      if (slot == nullptr || slot->size() != 3) return Note("");
      slots.push_back({.begin = As<double>((*slot)[0], ""),
                       .end = As<double>((*slot)[1], ""),
                       .count = As<uint64_t>((*slot)[2], "")});
    });
    return slots;
  }
  // Returns seconds; negative if the field is null.
  double Age(const json::value& in, std::string_view key) {
    const json::value* const found = Find(in, key);
    return found != nullptr && found->is_null() ? -1 : NumberAt<double>(in, key);
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
    if (ok()) wrong_ = key;
  }

  std::optional<std::string> wrong_;
};

MethodReport MethodOf(const json::value& from, StatusReader& reader) {
  MethodReport method{.name = reader.Text(from, "method"),
                      .is_served = reader.Text(from, "side") == "server",
                      .begun = reader.NumberAt<uint64_t>(from, "begun")};
  for (const auto& each : reader.Object(from, "failed")) {
    if (!reader.ok()) break;
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

// One line of error.
std::string ErrorLine(const absl::Status& status) {
  const std::string message(status.message().data(), status.message().size());
  return fmt::format("verbena: {}\n", Printable(message));
}

// Prints the error, and returns the exit status.
int Refuse(const absl::Status& status, Terminal& terminal) {
  terminal.error << ErrorLine(status) << std::flush;
  return absl::IsInvalidArgument(status) ? kMistake : 1;
}

absl::StatusOr<ProcessStats> AskStats(const std::string& admin) {
  VERBENA_ASSIGN_OR_RETURN(const std::string text, AskAdmin(admin, kStatusPage, kStatusLimits));
  absl::StatusOr<ProcessStats> stats = ParseStats(text);
  if (stats.ok()) return stats;
  return absl::FailedPreconditionError(fmt::format(
      "{} gives a {} that is no status of Verbena ({}): is it an admin server of this version?",
      admin, kStatusPage, std::string(stats.status().message())));
}

// A table of many methods looks each of them up in the one before.
using MethodKey = std::pair<std::string_view, bool>;
using MethodsByKey = absl::flat_hash_map<MethodKey, const MethodReport*>;

MethodKey KeyOf(const MethodReport& method) { return {method.name, method.is_served}; }

// MethodRow: what the table shows of a method.
struct MethodRow {
  double calls_per_second = 0;
  uint64_t under_way = 0;
  std::vector<std::string> cells;
};

// `seconds` have passed since `then`; 0: they are not known.
MethodRow RowOf(const MethodReport& method, const MethodReport& then, double seconds) {
  const std::vector<TimeSlot> times = SlotsSince(method.times, then.times);
  const auto quantile = [&times](double q) {
    return times.empty() ? std::string("-") : TimeText(QuantileOf(times, q));
  };
  // A process that has started anew has counted less.
  const bool has_rate = seconds > 0 && method.begun >= then.begun;
  const double rate = has_rate ? static_cast<double>(method.begun - then.begun) / seconds : 0;
  std::vector<std::string> failures;
  failures.reserve(method.failed.size());
  for (const auto& [code, calls] : method.failed) {
    failures.push_back(fmt::format("{} {}", code, calls));
  }
  return {.calls_per_second = rate,
          .under_way = method.under_way(),
          .cells = {method.name, method.is_served ? "server" : "client",
                    has_rate ? fmt::format("{:.0f}", rate) : "-", quantile(0.5), quantile(0.99),
                    fmt::format("{}", method.under_way()), fmt::format("{}", method.begun),
                    fmt::format("{}", fmt::join(failures, ", "))}};
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
  size_t executors = 0;
  reader.ForEach(status, "executors", [&](const json::value& executor) {
    const size_t index = executors++;
    // The age is that of its last answer. The admin server has asked it just now, if not before.
    const double age = reader.Age(executor, "age_seconds");
    if (age < 0) {
      stats.notes.push_back(fmt::format("executor {} has not answered yet", index));
    } else if (age >= 1) {
      stats.notes.push_back(fmt::format(
          "executor {} has not answered in time: its last answer is {:.1f} s old", index, age));
    }
  });
  reader.ForEach(status, "methods", [&](const json::value& method) {
    stats.methods.push_back(MethodOf(method, reader));
  });
  reader.ForEach(status, "devices", [&](const json::value& device) {
    stats.lines.push_back(
        {.name =
             fmt::format("{} ({})", reader.Text(device, "device"), reader.Text(device, "network")),
         .text = fmt::format("{}, {} links, {} lost", reader.Text(device, "state"),
                             reader.NumberAt<uint64_t>(device, "links"),
                             reader.NumberAt<uint64_t>(device, "links_lost"))});
  });
  reader.ForEach(status, "memory", [&](const json::value& pool) {
    stats.lines.push_back(
        {.name =
             fmt::format("{}, {} memory", reader.Text(pool, "device"), reader.Text(pool, "pool")),
         .text = fmt::format("{} of {} in use, {} calls wait",
                             MebibytesText(reader.NumberAt<uint64_t>(pool, "in_use")),
                             MebibytesText(reader.NumberAt<uint64_t>(pool, "budget")),
                             reader.NumberAt<uint64_t>(pool, "waiting"))});
  });
  if (reader.ok()) return stats;
  return absl::InvalidArgumentError(
      fmt::format("its field \"{}\" is not there, or is of another kind", reader.wrong()));
}

std::string StatsTable(const ProcessStats& now, const ProcessStats* before) {
  std::string text =
      fmt::format("Verbena {}: {}\n", now.version, now.ready ? "ready" : "not ready");
  for (const std::string& note : now.notes) text += note + "\n";
  const double seconds = before == nullptr ? 0 : now.seconds - before->seconds;
  MethodsByKey then;
  if (before != nullptr) {
    for (const MethodReport& method : before->methods) then.emplace(KeyOf(method), &method);
  }
  const MethodReport none;
  std::vector<MethodRow> methods;
  methods.reserve(now.methods.size());
  for (const MethodReport& method : now.methods) {
    const auto found = then.find(KeyOf(method));
    methods.push_back(RowOf(method, found == then.end() ? none : *found->second, seconds));
  }
  // Among methods that are called equally often, those whose calls hang come first.
  if (before != nullptr) {
    std::ranges::sort(methods, [](const MethodRow& a, const MethodRow& b) {
      return std::tie(b.calls_per_second, b.under_way, a.cells) <
             std::tie(a.calls_per_second, a.under_way, b.cells);
    });
  }
  std::vector<std::vector<std::string>> rows = {
      {"method", "side", "calls/s", "p50", "p99", "under way", "calls", "failed since the start"}};
  for (MethodRow& row : methods) rows.push_back(std::move(row.cells));
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
  absl::Status last = absl::OkStatus();
  for (uint64_t i = 0; arguments.count == 0 || i < arguments.count; ++i) {
    std::this_thread::sleep_for(arguments.interval);
    absl::StatusOr<ProcessStats> now = AskStats(arguments.admin);
    last = now.status();
    // To the upper left, and all below is gone.
    if (clears) terminal.output << "\x1b[H\x1b[2J";
    terminal.output << (now.ok() ? StatsTable(*now, &*before) : ErrorLine(last))
                    << (clears ? "" : "\n") << std::flush;
    if (now.ok()) before = std::move(now);
  }
  return last.ok() ? 0 : 1;
}

}  // namespace verbena::command
