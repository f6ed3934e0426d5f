#include "verbena/rpc/shard/metrics.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/shard/parts.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/version.h"
#include "verbena/transport/base/status.h"

namespace verbena {
namespace internal {
namespace {

// --- the program's metrics: names and labels

bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

bool IsLabelName(std::string_view name) {
  return !name.empty() && IsLetter(name[0]) && !name.starts_with("__") &&
         std::ranges::all_of(name, [](char c) { return IsLetter(c) || IsDigit(c); });
}

bool IsMetricName(std::string_view name) {
  return !name.empty() && !IsDigit(name[0]) &&
         std::ranges::all_of(name, [](char c) { return IsLetter(c) || IsDigit(c) || c == ':'; });
}

// Whether `text` is UTF-8 without overlong forms and surrogates.
bool IsUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const int more = lead < 0x80 ? 0 : lead < 0xc2 ? -1 : lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3;
    if (more < 0 || lead > 0xf4 || text.size() - i <= static_cast<size_t>(more)) return false;
    uint32_t code = more == 0 ? lead : lead & (0x3f >> more);
    for (int k = 1; k <= more; ++k) {
      const auto next = static_cast<unsigned char>(text[i + k]);
      if ((next & 0xc0) != 0x80) return false;
      code = code << 6 | (next & 0x3f);
    }
    const bool overlong = (more == 2 && code < 0x800) || (more == 3 && code < 0x10000);
    if (overlong || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return false;
    i += static_cast<size_t>(more) + 1;
  }
  return true;
}

absl::Status CheckLabels(std::string_view metric, const MetricLabels& labels) {
  for (const auto& [name, value] : labels) {
    if (name == "le") {
      return absl::InvalidArgumentError(fmt::format(
          "metric {} has a label \"le\", which histograms have for their bounds: give it another "
          "name",
          metric));
    }
    if (!IsLabelName(name)) {
      return absl::InvalidArgumentError(
          fmt::format("metric {} has a label \"{}\": use letters, digits and '_', no digit first, "
                      "and not \"__\" first",
                      metric, name));
    }
    if (!IsUtf8(value)) {
      return absl::InvalidArgumentError(
          fmt::format("the value of label {} of metric {} is no UTF-8", name, metric));
    }
  }
  const auto twice = std::ranges::adjacent_find(
      labels, {}, [](const auto& each) -> const auto& { return each.first; });
  if (twice == labels.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("metric {} has label {} twice", metric, twice->first));
}

absl::Status CheckName(std::string_view name, MetricKind kind) {
  if (!IsMetricName(name)) {
    return absl::InvalidArgumentError(fmt::format(
        "\"{}\" is no name of a metric: use letters, digits, '_' and ':', no digit first", name));
  }
  if (name.starts_with("verbena_") || name.starts_with("rpc_")) {
    return absl::AlreadyExistsError(fmt::format(
        "metric {}: names that begin with \"verbena_\" or \"rpc_\" are Verbena's own", name));
  }
  const bool is_counter = kind == MetricKind::kCounter;
  if (name.ends_with("_total") == is_counter && name != "_total") return absl::OkStatus();
  return absl::InvalidArgumentError(
      is_counter ? fmt::format("counter {}: the name of a counter ends in \"_total\"", name)
                 : fmt::format("{} {}: only the name of a counter ends in \"_total\"", NameOf(kind),
                               name));
}

absl::Status CheckBounds(std::string_view name, const std::vector<double>& bounds) {
  const bool is_sized = !bounds.empty() && bounds.size() <= MetricHistogram::kMaxBounds;
  const bool grows = std::ranges::adjacent_find(bounds, std::greater_equal<>()) == bounds.end();
  const bool is_finite =
      std::ranges::all_of(bounds, [](double each) { return std::isfinite(each); });
  if (is_sized && grows && is_finite) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("histogram {} has {} bounds: give it 1 to {} finite ones, each larger than the "
                  "one before",
                  name, bounds.size(), MetricHistogram::kMaxBounds));
}

// The names that the samples and the family of a metric have, in either format.
std::vector<std::string> NamesOf(std::string_view name, MetricKind kind) {
  std::vector<std::string> names{std::string(name)};
  if (kind == MetricKind::kCounter) names.emplace_back(name.substr(0, name.rfind("_total")));
  if (kind != MetricKind::kHistogram) return names;
  for (const char* suffix : {"_bucket", "_sum", "_count"}) {
    names.push_back(fmt::format("{}{}", name, suffix));
  }
  return names;
}

std::string WithLabel(std::string_view labels, std::string_view further) {
  return labels.empty() ? std::string(further) : fmt::format("{},{}", labels, further);
}

// --- calls, added up over the executors

// CallTimes of one method and code.
struct AddedTimes {
  void Add(const CallTimes& times) {
    for (uint32_t slot = 0; slot < CallTimes::kSlots; ++slot) counts[slot] += times.count(slot);
    units += times.units();
  }

  std::array<uint64_t, CallTimes::kSlots> counts{};
  uint64_t units = 0;
};

struct AddedMethod {
  void Add(const MethodCounts& method) {
    for (size_t code = 0; code < MethodCounts::kCodes; ++code) {
      if (const CallTimes* each = method.times(code)) times[code].Add(*each);
    }
    // After the ends: no call has ended that has not begun.
    begun += method.begun.value();
    retries += method.retries.value();
    hedges += method.hedges.value();
    request_bytes += method.request_bytes.value();
    reply_bytes += method.reply_bytes.value();
    request_payload_bytes += method.request_payload_bytes.value();
    reply_payload_bytes += method.reply_payload_bytes.value();
    for (size_t i = 0; i < MethodCounts::kOutcomes; ++i) {
      failed[i] += method.failed(static_cast<Outcome>(i));
    }
  }
  // Calls that ended well.
  uint64_t ended_well() const {
    const auto found = times.find(0);
    if (found == times.end()) return 0;
    uint64_t sum = 0;
    for (const uint64_t count : found->second.counts) sum += count;
    return sum;
  }

  std::string labels;
  uint64_t begun = 0;
  uint64_t retries = 0;
  uint64_t hedges = 0;
  uint64_t request_bytes = 0;
  uint64_t reply_bytes = 0;
  uint64_t request_payload_bytes = 0;
  uint64_t reply_payload_bytes = 0;
  std::array<uint64_t, MethodCounts::kOutcomes> failed{};
  std::map<size_t, AddedTimes> times;  // by code
};

// The methods of one side by name. Those of equal names are one.
using AddedSide = std::map<std::string_view, AddedMethod>;

void AddTo(AddedSide& side, const CallCounts& counts) {
  counts.ForEach([&side](const MethodCounts& method) {
    if (method.begun.value() == 0) return;
    AddedMethod& added = side[method.name()];
    if (added.labels.empty()) added.labels = LabelText({{"rpc_method", method.name()}});
    added.Add(method);
  });
}

MethodReport ReportOf(const AddedMethod& added) {
  constexpr double kSecondsPerUnit = CallTimes::kUnitNanoseconds / 1e9;
  MethodReport report{.begun = added.begun};
  std::array<uint64_t, CallTimes::kSlots> counts{};
  for (const auto& [code, times] : added.times) {
    uint64_t ended = 0;
    for (uint32_t slot = 0; slot < CallTimes::kSlots; ++slot) {
      counts[slot] += times.counts[slot];
      ended += times.counts[slot];
    }
    if (code == 0 || ended == 0) continue;
    report.failed.emplace_back(absl::StatusCodeToString(static_cast<absl::StatusCode>(code)),
                               ended);
  }
  for (uint32_t slot = 0; slot < CallTimes::kSlots; ++slot) {
    if (counts[slot] == 0) continue;
    const uint32_t next = std::min(slot + 1, CallTimes::kSlots - 1);
    report.times.push_back(
        {.begin = static_cast<double>(CallTimes::UnitsAt(slot)) * kSecondsPerUnit,
         .end = static_cast<double>(CallTimes::UnitsAt(next)) * kSecondsPerUnit,
         .count = counts[slot]});
  }
  return report;
}

// `le="2.5e-07"`, and so on.
std::array<std::string, CallTimes::kBounds + 1> BoundLabels() {
  constexpr uint64_t kFirst = 250;  // ns
  std::array<std::string, CallTimes::kBounds + 1> labels;
  for (int k = 0; k < CallTimes::kBounds; ++k) {
    labels[k] = fmt::format("le=\"{}\"", NumberText(static_cast<double>(kFirst << k) / 1e9));
  }
  labels.back() = "le=\"+Inf\"";
  return labels;
}

void WriteTimes(MetricText& text, const std::string& labels, const AddedTimes& times) {
  static const auto& bounds = *new auto(BoundLabels());
  constexpr double kSecondsPerUnit = CallTimes::kUnitNanoseconds / 1e9;
  // The first bound is 32 units.
  static const uint32_t first_end = CallTimes::SlotOf(32);
  uint64_t count = 0;
  uint32_t slot = 0;
  for (int k = 0; k < CallTimes::kBounds; ++k) {
    for (const uint32_t end = first_end + 4 * static_cast<uint32_t>(k); slot < end; ++slot) {
      count += times.counts[slot];
    }
    text.Sample("_bucket", WithLabel(labels, bounds[k]), count);
  }
  for (; slot < CallTimes::kSlots; ++slot) count += times.counts[slot];
  text.Sample("_bucket", WithLabel(labels, bounds.back()), count);
  text.Sample("_sum", labels, static_cast<double>(times.units) * kSecondsPerUnit);
  text.Sample("_count", labels, count);
}

void WriteDurations(MetricText& text, const AddedSide& side, std::string_view name,
                    std::string_view help) {
  text.Begin(name, MetricKind::kHistogram, help);
  for (const auto& [method, added] : side) {
    for (const auto& [code, times] : added.times) {
      // The histogram of calls that end well is there from the first call on. So a reader knows
      // how many are under way, and a rate has a first value.
      const bool is_empty = std::ranges::all_of(times.counts, [](uint64_t n) { return n == 0; });
      if (is_empty && code != 0) continue;
      const std::string status = absl::StatusCodeToString(static_cast<absl::StatusCode>(code));
      const std::string labels =
          WithLabel(added.labels, LabelText({{"rpc_response_status_code", status}}));
      WriteTimes(text, labels, times);
    }
  }
}

void WriteMethods(MetricText& text, const AddedSide& side, std::string_view name,
                  std::string_view help, uint64_t AddedMethod::* number) {
  text.Begin(name, MetricKind::kCounter, help);
  for (const auto& [method, added] : side) text.Sample("", added.labels, added.*number);
}

// The words of OutcomeName(), whose body lies above this folder.
constexpr std::pair<Outcome, const char*> kOutcomes[] = {
    {Outcome::kNotExecuted, "not_executed"},
    {Outcome::kExecuted, "executed"},
    {Outcome::kMaybeExecuted, "maybe_executed"}};

void WriteOutcomes(MetricText& text, const AddedSide& side, std::string_view name,
                   std::string_view help) {
  text.Begin(name, MetricKind::kCounter, help);
  for (const auto& [method, added] : side) {
    for (const auto& [outcome, label] : kOutcomes) {
      uint64_t count = added.failed[static_cast<size_t>(outcome)];
      if (outcome == Outcome::kExecuted) count += added.ended_well();
      text.Sample("", WithLabel(added.labels, LabelText({{"outcome", label}})), count);
    }
  }
}

// Two numbers of each method, told apart by `label`.
struct Pair {
  std::string_view label;
  std::string_view first;
  std::string_view second;
};

void WritePairs(MetricText& text, const AddedSide& side, std::string_view name,
                std::string_view help, const Pair& values, uint64_t AddedMethod::* first,
                uint64_t AddedMethod::* second) {
  const std::string of_first = LabelText({{std::string(values.label), std::string(values.first)}});
  const std::string of_second =
      LabelText({{std::string(values.label), std::string(values.second)}});
  text.Begin(name, MetricKind::kCounter, help);
  for (const auto& [method, added] : side) {
    text.Sample("", WithLabel(added.labels, of_first), added.*first);
    text.Sample("", WithLabel(added.labels, of_second), added.*second);
  }
}

// --- what executors report

// Samples of one metric by its labels: reports of several executors add up.
using AddedSamples = std::map<std::string, uint64_t>;

void Write(MetricText& text, std::string_view name, MetricKind kind, std::string_view help,
           const AddedSamples& samples) {
  text.Begin(name, kind, help);
  for (const auto& [labels, value] : samples) text.Sample("", labels, value);
}

using Reports = std::vector<ExecutorReport>;

void WriteMemory(MetricText& text, const Reports& reports) {
  AddedSamples bytes;
  AddedSamples waiting;
  AddedSamples waits;
  for (const ExecutorReport& report : reports) {
    for (const PoolReport& pool : report.pools) {
      const std::string labels = LabelText({{"device", pool.device}, {"pool", pool.pool}});
      const auto add = [&](const char* state, size_t value) {
        bytes[WithLabel(labels, LabelText({{"state", state}}))] += value;
      };
      add("in_use", pool.in_use);
      add("free", pool.registered - std::min(pool.registered, pool.in_use));
      add("growing", pool.growing);
      add("budget", pool.budget);
      waiting[labels] += pool.waiting;
      waits[labels] += pool.waits;
    }
  }
  Write(text, "verbena_memory_bytes", MetricKind::kGauge,
        "Payload memory by device, pool and state; the budget is what the pool may pin.", bytes);
  Write(text, "verbena_memory_waiting", MetricKind::kGauge, "Allocations that wait for memory now.",
        waiting);
  Write(text, "verbena_memory_waits_total", MetricKind::kCounter,
        "Allocations that had to wait for memory.", waits);
}

void WriteLinks(MetricText& text, const Reports& reports) {
  struct Number {
    std::string_view name;
    MetricKind kind;
    std::string_view help;
    uint64_t (*of)(const EndpointStats&);
  };
  using Stats = EndpointStats;
  static constexpr Number kNumbers[] = {
      {"verbena_links", MetricKind::kGauge, "Links that are open now.",
       [](const Stats& stats) -> uint64_t { return stats.links; }},
      {"verbena_links_opened_total", MetricKind::kCounter, "Links that were opened.",
       [](const Stats& stats) { return stats.links_opened; }},
      {"verbena_links_refused_total", MetricKind::kCounter, "Links that were refused.",
       [](const Stats& stats) { return stats.links_refused; }},
      {"verbena_links_lost_total", MetricKind::kCounter,
       "Links that closed for another reason than a shutdown.",
       [](const Stats& stats) { return stats.links_lost; }},
      {"verbena_link_frames_sent_total", MetricKind::kCounter, "Frames that links have sent.",
       [](const Stats& stats) { return stats.traffic.frames_sent; }},
      {"verbena_link_frames_received_total", MetricKind::kCounter, "Frames that links have got.",
       [](const Stats& stats) { return stats.traffic.frames_received; }},
      {"verbena_link_bytes_sent_total", MetricKind::kCounter, "Bytes of SENDs that left.",
       [](const Stats& stats) { return stats.traffic.bytes_sent; }},
      {"verbena_link_bytes_received_total", MetricKind::kCounter, "Bytes of SENDs that came.",
       [](const Stats& stats) { return stats.traffic.bytes_received; }},
      {"verbena_link_transfer_bytes_total", MetricKind::kCounter,
       "Bytes that this side has begun to move one-sided.",
       [](const Stats& stats) { return stats.traffic.transfer_bytes; }},
      {"verbena_link_credit_waits_total", MetricKind::kCounter,
       "Frames that waited for the peer's credits.",
       [](const Stats& stats) { return stats.traffic.credit_waits; }},
      {"verbena_link_slot_waits_total", MetricKind::kCounter,
       "Frames that waited for places in the send queue, or for send buffers.",
       [](const Stats& stats) { return stats.traffic.slot_waits; }},
      {"verbena_link_lease_waits_total", MetricKind::kCounter,
       "Calls that waited for a memory window.",
       [](const Stats& stats) { return stats.traffic.lease_waits; }},
  };
  for (const Number& number : kNumbers) {
    AddedSamples samples;
    for (const ExecutorReport& report : reports) {
      for (const DeviceStats& device : report.devices) {
        samples[LabelText({{"device", device.device}, {"kind", device.kind}})] +=
            number.of(device.endpoint);
      }
    }
    Write(text, number.name, number.kind, number.help, samples);
  }
}

void WriteExecutors(MetricText& text, const Reports& reports) {
  struct Number {
    std::string_view name;
    std::string_view help;
    uint64_t ExecutorStats::* of;
  };
  static constexpr Number kNumbers[] = {
      {"verbena_executor_turns_total", "Turns of the executor's loop.", &ExecutorStats::turns},
      {"verbena_executor_completions_total", "Completions that it has polled.",
       &ExecutorStats::completions},
      {"verbena_executor_resumed_total", "Coroutines that it has resumed.",
       &ExecutorStats::resumed},
      {"verbena_executor_sleeps_total", "Times that it slept.", &ExecutorStats::sleeps},
      {"verbena_executor_inbox_items_total", "Items that other threads sent it.",
       &ExecutorStats::inbox_items},
  };
  const auto labels = [](size_t index) { return fmt::format("executor=\"{}\"", index); };
  const auto has_answered = [&](size_t index) { return reports[index].time != TimePoint{}; };
  for (const Number& number : kNumbers) {
    text.Begin(number.name, MetricKind::kCounter, number.help);
    for (size_t i = 0; i < reports.size(); ++i) {
      if (has_answered(i)) text.Sample("", labels(i), reports[i].loop.*number.of);
    }
  }
  text.Begin("verbena_executor_report_age_seconds", MetricKind::kGauge,
             "How old the executor's report is, or, if it has made none, the question for it: it "
             "grows from scrape to scrape while the executor is blocked.");
  const TimePoint now = Clock::Real().Now();
  for (size_t i = 0; i < reports.size(); ++i) {
    const TimePoint since = has_answered(i) ? reports[i].time : reports[i].asked;
    if (since == TimePoint{}) continue;
    const std::chrono::duration<double> age = now - since;
    text.Sample("", labels(i), std::max(age.count(), 0.0));
  }
}

}  // namespace

MetricsCore::MetricsCore(RuntimeCore& runtime) : runtime_(runtime), reporter_(runtime, [] {}) {}

absl::StatusOr<MetricsCore::Value*> MetricsCore::Place(std::string_view name, MetricKind kind,
                                                       std::string_view help, MetricLabels& labels,
                                                       const std::vector<double>& bounds) {
  std::ranges::sort(labels);
  VERBENA_RETURN_IF_ERROR(CheckName(name, kind));
  VERBENA_RETURN_IF_ERROR(CheckLabels(name, labels));
  if (!IsUtf8(help)) {
    return absl::InvalidArgumentError(fmt::format("the help of metric {} is no UTF-8", name));
  }
  if (series_ >= Metrics::kMaxSeries) {
    return absl::ResourceExhaustedError(
        fmt::format("metric {} would be more than {} series: use fewer values of labels", name,
                    Metrics::kMaxSeries));
  }
  for (const std::string& each : NamesOf(name, kind)) {
    const auto found = taken_.find(each);
    if (found == taken_.end() || found->second == name) continue;
    return absl::AlreadyExistsError(fmt::format(
        "metric {} would have the name {}, which metric {} has", name, each, found->second));
  }
  std::vector<std::string> label_names;
  for (const auto& [label, value] : labels) label_names.push_back(label);
  auto family = families_.find(name);
  if (family == families_.end()) {
    family = families_
                 .emplace(std::string(name), Family{.kind = kind,
                                                    .help = std::string(help),
                                                    .bounds = bounds,
                                                    .label_names = label_names,
                                                    .series = {}})
                 .first;
    for (std::string& each : NamesOf(name, kind)) taken_.emplace(std::move(each), name);
  }
  Family& found = family->second;
  if (found.kind != kind) {
    return absl::AlreadyExistsError(
        fmt::format("metric {} is a {} already", name, NameOf(found.kind)));
  }
  if (found.label_names != label_names || found.bounds != bounds || found.help != help) {
    return absl::InvalidArgumentError(
        fmt::format("metric {} has other label names, bounds or help than its first series", name));
  }
  const auto [series, is_new] = found.series.try_emplace(LabelText(labels));
  if (!is_new) {
    return absl::AlreadyExistsError(
        fmt::format("metric {}{{{}}} is there already", name, series->first));
  }
  ++series_;
  return &series->second;
}

absl::StatusOr<MetricCounter*> MetricsCore::AddCounter(std::string_view name, std::string_view help,
                                                       MetricLabels labels) {
  const std::lock_guard<std::mutex> lock(mutex_);
  VERBENA_ASSIGN_OR_RETURN(Value * place, Place(name, MetricKind::kCounter, help, labels, {}));
  return place->emplace<std::unique_ptr<MetricCounter>>(std::make_unique<MetricCounter>()).get();
}

absl::StatusOr<MetricGauge*> MetricsCore::AddGauge(std::string_view name, std::string_view help,
                                                   MetricLabels labels) {
  const std::lock_guard<std::mutex> lock(mutex_);
  VERBENA_ASSIGN_OR_RETURN(Value * place, Place(name, MetricKind::kGauge, help, labels, {}));
  return place->emplace<std::unique_ptr<MetricGauge>>(std::make_unique<MetricGauge>()).get();
}

absl::StatusOr<MetricHistogram*> MetricsCore::AddHistogram(std::string_view name,
                                                           std::string_view help,
                                                           std::vector<double> bounds,
                                                           MetricLabels labels) {
  VERBENA_RETURN_IF_ERROR(CheckBounds(name, bounds));
  const std::lock_guard<std::mutex> lock(mutex_);
  VERBENA_ASSIGN_OR_RETURN(Value * place,
                           Place(name, MetricKind::kHistogram, help, labels, bounds));
  return place
      ->emplace<std::unique_ptr<MetricHistogram>>(
          std::make_unique<MetricHistogram>(std::move(bounds)))
      .get();
}

std::string MetricsCore::Text(MetricsFormat format) const {
  reporter_.Ask();
  return Text(format, reporter_.Read());
}

std::string MetricsCore::Text(MetricsFormat format, const RuntimeReport& report) const {
  MetricText text(format);
  text.Begin("verbena_build_info", MetricKind::kGauge, "1, with the version of Verbena.");
  text.Sample("",
              fmt::format("version=\"{}.{}.{}\"", VERBENA_VERSION_MAJOR, VERBENA_VERSION_MINOR,
                          VERBENA_VERSION_PATCH),
              uint64_t{1});
  WriteCalls(text);
  WriteRefusals(text);
  WriteMemory(text, report.executors);
  WriteLinks(text, report.executors);
  WriteExecutors(text, report.executors);
  WriteProgram(text);
  return std::move(text).Take();
}

std::vector<MethodReport> MetricsCore::Methods() const {
  std::vector<MethodReport> methods;
  for (const bool is_served : {true, false}) {
    AddedSide side;
    for (const std::unique_ptr<ExecutorCounts>& executor : runtime_.counts()) {
      AddTo(side, is_served ? executor->server : executor->client);
    }
    for (const auto& [name, added] : side) {
      methods.push_back(ReportOf(added));
      methods.back().name = name;
      methods.back().is_served = is_served;
    }
  }
  return methods;
}

void MetricsCore::WriteCalls(MetricText& text) const {
  AddedSide client;
  AddedSide server;
  for (const std::unique_ptr<ExecutorCounts>& executor : runtime_.counts()) {
    AddTo(client, executor->client);
    AddTo(server, executor->server);
  }
  WriteDurations(text, server, "rpc_server_call_duration_seconds",
                 "Served calls by method and code, from the arrival of the request until the "
                 "response is posted.");
  WriteDurations(text, client, "rpc_client_call_duration_seconds",
                 "Calls by method and code, from their begin until their response is found; all "
                 "attempts count.");
  WriteMethods(text, server, "verbena_server_calls_begun_total", "Requests that came.",
               &AddedMethod::begun);
  WriteMethods(text, client, "verbena_client_calls_begun_total", "Calls that began.",
               &AddedMethod::begun);
  WriteOutcomes(text, server, "verbena_server_outcomes_total",
                "Served calls that have ended, by what is known of them.");
  WriteOutcomes(text, client, "verbena_client_outcomes_total",
                "Calls that have ended, by what is known of them.");
  WritePairs(text, client, "verbena_client_further_attempts_total",
             "Attempts after the first one of a call.",
             {.label = "kind", .first = "retry", .second = "hedge"}, &AddedMethod::retries,
             &AddedMethod::hedges);
  const Pair messages{.label = "message", .first = "request", .second = "reply"};
  WritePairs(text, server, "verbena_server_message_bytes_total",
             "Bytes of messages of served calls, without those that streams carry.", messages,
             &AddedMethod::request_bytes, &AddedMethod::reply_bytes);
  WritePairs(text, server, "verbena_server_payload_bytes_total",
             "Bytes of payloads of served calls that ended well and are not streams.", messages,
             &AddedMethod::request_payload_bytes, &AddedMethod::reply_payload_bytes);
  WritePairs(text, client, "verbena_client_payload_bytes_total",
             "Bytes of payloads of calls that ended well and are not streams.", messages,
             &AddedMethod::request_payload_bytes, &AddedMethod::reply_payload_bytes);
}

void MetricsCore::WriteRefusals(MetricText& text) const {
  if (runtime_.counts().empty()) return;  // nobody counts them
  text.Begin("verbena_server_refusals_total", MetricKind::kCounter,
             "Calls that a server did not start, by the bound that they broke.");
  for (size_t i = 0; i < kRefusalBounds; ++i) {
    uint64_t count = 0;
    for (const std::unique_ptr<ExecutorCounts>& executor : runtime_.counts()) {
      count += executor->refusals[i].value();
    }
    text.Sample("", LabelText({{"bound", NameOf(static_cast<RefusalBound>(i))}}), count);
  }
}

void MetricsCore::WriteProgram(MetricText& text) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [name, family] : families_) {
    text.Begin(name, family.kind, family.help);
    for (const auto& [labels, value] : family.series) {
      if (const auto* counter = std::get_if<std::unique_ptr<MetricCounter>>(&value)) {
        text.Sample("", labels, (*counter)->value());
      } else if (const auto* gauge = std::get_if<std::unique_ptr<MetricGauge>>(&value)) {
        text.Sample("", labels, (*gauge)->value());
      } else {
        const MetricHistogram& histogram = *std::get<std::unique_ptr<MetricHistogram>>(value);
        uint64_t count = 0;
        for (size_t i = 0; i < family.bounds.size(); ++i) {
          count += histogram.count(i);
          const std::string le = fmt::format("le=\"{}\"", BoundText(family.bounds[i]));
          text.Sample("_bucket", WithLabel(labels, le), count);
        }
        count += histogram.count(family.bounds.size());
        text.Sample("_bucket", WithLabel(labels, "le=\"+Inf\""), count);
        text.Sample("_sum", labels, histogram.sum());
        text.Sample("_count", labels, count);
      }
    }
  }
}

}  // namespace internal

MetricHistogram::MetricHistogram(std::vector<double> bounds)
    : bounds_(std::move(bounds)),
      counts_(std::make_unique<std::atomic<uint64_t>[]>(bounds_.size() + 1)) {}

void MetricHistogram::Observe(double value) {
  // NaN is above all bounds.
  const auto bound = std::ranges::find_if(bounds_, [value](double each) { return value <= each; });
  counts_[static_cast<size_t>(bound - bounds_.begin())].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

// A runtime's metrics, from when somebody first asks for them.
class internal::MetricsPart final : public internal::Part {
 public:
  explicit MetricsPart(RuntimeCore& runtime) : metrics_(std::make_unique<MetricsCore>(runtime)) {}
  Metrics& metrics() { return metrics_; }
  static MetricsCore& CoreOf(const Metrics& metrics) { return *metrics.core_; }

 private:
  Metrics metrics_;
};

Metrics& Runtime::metrics() const {
  return core_->parts().Get<internal::MetricsPart>(*core_).metrics();
}

internal::MetricsCore& internal::MetricsCore::Of(const Runtime& runtime) {
  return MetricsPart::CoreOf(runtime.metrics());
}

Metrics::Metrics(std::unique_ptr<internal::MetricsCore> core) : core_(std::move(core)) {}
Metrics::~Metrics() = default;

absl::StatusOr<MetricCounter*> Metrics::AddCounter(std::string_view name, std::string_view help,
                                                   MetricLabels labels) {
  return core_->AddCounter(name, help, std::move(labels));
}

absl::StatusOr<MetricGauge*> Metrics::AddGauge(std::string_view name, std::string_view help,
                                               MetricLabels labels) {
  return core_->AddGauge(name, help, std::move(labels));
}

absl::StatusOr<MetricHistogram*> Metrics::AddHistogram(std::string_view name, std::string_view help,
                                                       std::vector<double> bounds,
                                                       MetricLabels labels) {
  return core_->AddHistogram(name, help, std::move(bounds), std::move(labels));
}

std::string Metrics::Text(MetricsFormat format) const { return core_->Text(format); }

}  // namespace verbena
