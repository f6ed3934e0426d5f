#include "verbena/rpc/admin/pages.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <string_view>
#include <utility>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "verbena/rpc/version.h"
#include "verbena/transport/base/log.h"

namespace verbena::internal {

namespace json = boost::json;

namespace {

// The peers that a page names.
constexpr size_t kShownPeers = 10;
// An executor whose answer is older is shown as one that does not answer.
constexpr Duration kOldAnswer = std::chrono::seconds(1);

double Seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

// A device over all executors.
struct DeviceSum {
  const DeviceReport* device = nullptr;
  EndpointStats endpoint = {};
  std::string passed_over = {};
};

std::vector<DeviceSum> SumDevices(const RuntimeReport& report) {
  std::vector<DeviceSum> sums;
  for (const DeviceReport& device : report.devices) {
    DeviceSum sum{.device = &device};
    for (const ExecutorReport& executor : report.executors) {
      for (const DeviceStats& stats : executor.devices) {
        if (stats.device != device.name) continue;
        sum.endpoint += stats.endpoint;
        if (!stats.passed_over.empty()) sum.passed_over = stats.passed_over;
      }
    }
    sums.push_back(std::move(sum));
  }
  return sums;
}

EndpointStats SumLinks(const RuntimeReport& report) {
  EndpointStats sum;
  for (const ExecutorReport& executor : report.executors) {
    for (const DeviceStats& stats : executor.devices) sum += stats.endpoint;
  }
  return sum;
}

std::vector<PoolReport> SumPools(const RuntimeReport& report) {
  std::map<std::pair<std::string, std::string_view>, PoolReport> sums;
  for (const ExecutorReport& executor : report.executors) {
    for (const PoolReport& pool : executor.pools) {
      PoolReport& sum = sums[{pool.device, pool.pool}];
      sum.device = pool.device;
      sum.pool = pool.pool;
      sum.budget += pool.budget;
      sum.registered += pool.registered;
      sum.in_use += pool.in_use;
      sum.waiting += pool.waiting;
    }
  }
  std::vector<PoolReport> pools;
  pools.reserve(sums.size());
  for (auto& [key, pool] : sums) pools.push_back(std::move(pool));
  return pools;
}

// The busiest first.
std::vector<PeerReport> SumPeers(const RuntimeReport& report) {
  std::map<std::string, PeerReport> sums;
  for (const ExecutorReport& executor : report.executors) {
    for (const PeerReport& peer : executor.peers) {
      PeerReport& sum = sums[peer.source];
      sum.source = peer.source;
      sum.links += peer.links;
      sum.traffic += peer.traffic;
    }
  }
  std::vector<PeerReport> peers;
  peers.reserve(sums.size());
  for (auto& [source, peer] : sums) peers.push_back(std::move(peer));
  std::ranges::sort(peers, std::greater(), [](const PeerReport& peer) {
    return std::pair<uint64_t, std::string_view>(peer.load(), peer.source);
  });
  if (peers.size() > kShownPeers) peers.resize(kShownPeers);
  return peers;
}

// How old an executor's answer is; negative: there is none.
double AgeOf(const RuntimeReport& report, const ExecutorReport& executor) {
  return executor.time == TimePoint{} ? -1.0 : std::max(0.0, Seconds(report.time - executor.time));
}

std::string DeviceState(const DeviceReport& device) {
  if (!device.lost.ok()) return "lost: " + std::string(device.lost.message());
  return device.in_reserve ? "in reserve" : "in service";
}

std::string_view EntryState(DirectoryEntry entry) {
  switch (entry) {
    case DirectoryEntry::kNone:
      return "none";
    case DirectoryEntry::kAwaited:
      return "awaited";
    case DirectoryEntry::kThere:
      return "registered";
    case DirectoryEntry::kLost:
      return "lost";
  }
  return "";
}

void AddServers(const RuntimeReport& report, const AdminOptions& options, Readiness& readiness) {
  if (report.servers.size() < options.servers) {
    readiness.reasons.push_back(fmt::format(
        "{} of {} servers have started (AdminOptions::servers; 0 for a process that only calls)",
        report.servers.size(), options.servers));
  }
  for (const ServerReport& server : report.servers) {
    if (server.shutting_down) {
      readiness.reasons.push_back(fmt::format("the server {} shuts down", server.address));
    } else if (server.entry == DirectoryEntry::kAwaited) {
      readiness.reasons.push_back(
          fmt::format("the server {} is not registered in its directory yet", server.address));
    } else if (server.entry == DirectoryEntry::kLost) {
      readiness.degraded.push_back(
          fmt::format("the server {} is no longer registered in its directory", server.address));
    }
  }
}

void AddDevices(const RuntimeReport& report, Readiness& readiness) {
  const std::vector<DeviceSum> sums = SumDevices(report);
  if (std::ranges::none_of(sums, [](const DeviceSum& sum) { return sum.device->lost.ok(); })) {
    readiness.reasons.push_back("no device is in service");
  }
  uint32_t over_tcp = 0;
  for (const DeviceSum& sum : sums) {
    if (!sum.device->lost.ok())
      readiness.degraded.push_back(std::string(sum.device->lost.message()));
    if (sum.device->kind == "tcp") over_tcp += sum.endpoint.links;
  }
  if (over_tcp == 0) return;
  for (const DeviceSum& sum : sums) {
    if (!sum.device->is_rdma || !sum.device->lost.ok()) continue;
    readiness.degraded.push_back(fmt::format(
        "{} links go over TCP although there is {}{}{}", over_tcp, sum.device->name,
        sum.passed_over.empty() ? "" : ", which was passed over for ", sum.passed_over));
  }
}

// Text for HTML: peers and the system say some of it.
std::string Escape(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '&':
        escaped += "&amp;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string Bytes(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 1, kUnits[unit]);
}

// A table of a page, row by row.
class Table {
 public:
  Table(std::string_view title, std::initializer_list<std::string_view> heads)
      : text_(fmt::format("<h2>{}</h2>\n<table><tr>", title)) {
    for (const std::string_view head : heads) text_ += fmt::format("<th>{}</th>", head);
    text_ += "</tr>\n";
  }
  void Row(std::initializer_list<std::string> cells) {
    text_ += "<tr>";
    for (const std::string& cell : cells) text_ += fmt::format("<td>{}</td>", Escape(cell));
    text_ += "</tr>\n";
  }
  std::string End() && { return std::move(text_) + "</table>\n"; }

 private:
  std::string text_;
};

// What a counter gained each second between two reports; without an earlier one nothing.
class Rates {
 public:
  Rates(const RuntimeReport& now, const RuntimeReport* before)
      : seconds_(before == nullptr ? 0 : Seconds(now.time - before->time)) {}
  std::string Of(uint64_t now, uint64_t before) const {
    return seconds_ <= 0 ? "" : fmt::format("{:.0f}", Gained(now, before) / seconds_);
  }
  std::string BytesOf(uint64_t now, uint64_t before) const {
    return seconds_ <= 0 ? "" : Bytes(Gained(now, before) / seconds_);
  }

 private:
  static double Gained(uint64_t now, uint64_t before) {
    return now < before ? 0 : static_cast<double>(now - before);
  }
  const double seconds_;
};

constexpr std::string_view kStyle = R"(
:root { color-scheme: light dark; --ink: #1d2129; --paper: #fff; --line: #d5d9e0; --faint: #6b7280;
  --good: #137333; --bad: #b3261e; --warn: #8a5a00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7ec; --paper: #15181d; --line: #343a44;
  --faint: #9aa3b2; --good: #6cc57c; --bad: #ff8a80; --warn: #e5b454; } }
body { font: 14px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  margin: 2rem auto; max-width: 68rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.05rem; margin: 1.6rem 0 .4rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
th { color: var(--faint); font-weight: 600; }
.good { color: var(--good); } .bad { color: var(--bad); } .warn { color: var(--warn); }
.faint { color: var(--faint); }
)";

std::string Head(const RuntimeReport& report, const Readiness& readiness) {
  std::string text = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta http-equiv=\"refresh\" content=\"5\"><title>Verbena: {}</title><style>{}</style>"
      "</head><body>\n<h1>Verbena {}.{}.{}: <span class=\"{}\">{}</span></h1>\n",
      readiness.ready() ? "ready" : "not ready", kStyle, VERBENA_VERSION_MAJOR,
      VERBENA_VERSION_MINOR, VERBENA_VERSION_PATCH, readiness.ready() ? "good" : "bad",
      readiness.ready() ? "ready" : "not ready");
  for (const std::string& reason : readiness.reasons) {
    text += fmt::format("<p class=\"bad\">not ready: {}</p>\n", Escape(reason));
  }
  for (const std::string& loss : readiness.degraded) {
    text += fmt::format("<p class=\"warn\">degraded: {}</p>\n", Escape(loss));
  }
  for (size_t i = 0; i < report.executors.size(); ++i) {
    const double age = AgeOf(report, report.executors[i]);
    if (age >= 0 && age < Seconds(kOldAnswer)) continue;
    text += age < 0 ? fmt::format("<p class=\"bad\">executor {} has not answered yet</p>\n", i)
                    : fmt::format(
                          "<p class=\"bad\">executor {} does not answer: its values are "
                          "{:.1f} s old</p>\n",
                          i, age);
  }
  return text;
}

std::string ServersTable(const RuntimeReport& report, const RuntimeReport* before,
                         const Rates& rates) {
  Table table("Servers", {"address", "state", "directory", "calls/s", "calls", "failures",
                          "refused", "queued", "granted", "results kept"});
  for (const ServerReport& server : report.servers) {
    ServerStats then;
    if (before != nullptr) {
      for (const ServerReport& each : before->servers) {
        if (each.address == server.address) then = each.stats;
      }
    }
    const ServerStats& now = server.stats;
    table.Row({server.address, server.shutting_down ? "shuts down" : "serves",
               std::string(EntryState(server.entry)), rates.Of(now.calls, then.calls),
               std::to_string(now.calls), std::to_string(now.failures), std::to_string(now.refused),
               std::to_string(now.queued), Bytes(static_cast<double>(now.granted_bytes)),
               std::to_string(now.dedupe.results)});
  }
  return std::move(table).End();
}

std::string FailuresOf(const MethodReport& method) {
  std::vector<std::string> failures;
  failures.reserve(method.failed.size());
  for (const auto& [code, calls] : method.failed) {
    failures.push_back(fmt::format("{} {}", code, calls));
  }
  return fmt::format("{}", fmt::join(failures, ", "));
}

// The methods of one side.
std::string MethodsTable(const StatusFacts& now, const StatusFacts* before, bool is_served,
                         const Rates& rates) {
  Table table(is_served ? "Calls served" : "Calls made",
              {"method", "calls/s", "p50", "p99", "under way", "calls", "failed since the start"});
  for (const MethodReport& method : now.methods) {
    if (method.is_served != is_served) continue;
    MethodReport then;
    if (before != nullptr) {
      for (const MethodReport& each : before->methods) {
        if (each.is_served == is_served && each.name == method.name) then = each;
      }
    }
    const std::vector<TimeSlot> times = SlotsSince(method.times, then.times);
    const auto quantile = [&times](double q) {
      return times.empty() ? std::string() : TimeText(QuantileOf(times, q));
    };
    table.Row({method.name, rates.Of(method.begun, then.begun), quantile(0.5), quantile(0.99),
               std::to_string(method.under_way()), std::to_string(method.begun),
               FailuresOf(method)});
  }
  return std::move(table).End();
}

std::string DevicesTable(const RuntimeReport& report) {
  Table table("Devices", {"device", "network", "state", "links", "opened", "lost", "refused",
                          "passed over for"});
  for (const DeviceSum& sum : SumDevices(report)) {
    table.Row({sum.device->name, sum.device->kind, DeviceState(*sum.device),
               std::to_string(sum.endpoint.links), std::to_string(sum.endpoint.links_opened),
               std::to_string(sum.endpoint.links_lost), std::to_string(sum.endpoint.links_refused),
               sum.passed_over});
  }
  return std::move(table).End();
}

std::string TrafficTable(const RuntimeReport& report, const RuntimeReport* before,
                         const Rates& rates) {
  const LinkStats now = SumLinks(report).traffic;
  const LinkStats then = before == nullptr ? LinkStats{} : SumLinks(*before).traffic;
  Table table("Traffic", {"", "each second", "since the start"});
  const auto row = [&](const char* name, uint64_t LinkStats::* count) {
    table.Row({name, rates.Of(now.*count, then.*count), std::to_string(now.*count)});
  };
  const auto bytes = [&](const char* name, uint64_t LinkStats::* count) {
    table.Row(
        {name, rates.BytesOf(now.*count, then.*count), Bytes(static_cast<double>(now.*count))});
  };
  row("frames sent", &LinkStats::frames_sent);
  row("frames received", &LinkStats::frames_received);
  bytes("bytes sent in frames", &LinkStats::bytes_sent);
  bytes("bytes received in frames", &LinkStats::bytes_received);
  row("one-sided transfers", &LinkStats::transfers);
  bytes("bytes moved one-sided", &LinkStats::transfer_bytes);
  row("frames that waited for credits", &LinkStats::credit_waits);
  row("frames that waited for slots or send buffers", &LinkStats::slot_waits);
  row("calls that waited for a memory window", &LinkStats::lease_waits);
  return std::move(table).End();
}

std::string PoolsTable(const RuntimeReport& report) {
  Table table("Payload memory",
              {"device, pool", "in use", "registered", "budget", "calls waiting"});
  for (const PoolReport& pool : SumPools(report)) {
    table.Row({fmt::format("{}, {}", pool.device, pool.pool),
               Bytes(static_cast<double>(pool.in_use)), Bytes(static_cast<double>(pool.registered)),
               Bytes(static_cast<double>(pool.budget)), std::to_string(pool.waiting)});
  }
  return std::move(table).End();
}

std::string PeersTable(const RuntimeReport& report) {
  Table table("Busiest peers", {"source", "links", "frames sent", "frames received",
                                "bytes one-sided", "credit waits"});
  for (const PeerReport& peer : SumPeers(report)) {
    table.Row({peer.source, std::to_string(peer.links), std::to_string(peer.traffic.frames_sent),
               std::to_string(peer.traffic.frames_received),
               Bytes(static_cast<double>(peer.traffic.transfer_bytes)),
               std::to_string(peer.traffic.credit_waits)});
  }
  return std::move(table).End();
}

std::string ExecutorsTable(const RuntimeReport& report, const RuntimeReport* before,
                           const Rates& rates) {
  Table table("Executors", {"executor", "age of its values", "links", "turns/s", "completions/s",
                            "coroutines/s", "sleeps/s"});
  for (size_t i = 0; i < report.executors.size(); ++i) {
    const ExecutorReport& executor = report.executors[i];
    const ExecutorStats then = before == nullptr ? ExecutorStats{} : before->executors[i].loop;
    uint32_t links = 0;
    for (const DeviceStats& device : executor.devices) links += device.endpoint.links;
    const double age = AgeOf(report, executor);
    table.Row({std::to_string(i), age < 0 ? "no answer" : fmt::format("{:.3f} s", age),
               std::to_string(links), rates.Of(executor.loop.turns, then.turns),
               rates.Of(executor.loop.completions, then.completions),
               rates.Of(executor.loop.resumed, then.resumed),
               rates.Of(executor.loop.sleeps, then.sleeps)});
  }
  return std::move(table).End();
}

json::array Strings(const std::vector<std::string>& texts) {
  json::array array;
  for (const std::string& text : texts) array.emplace_back(text);
  return array;
}

json::object JsonOf(const LinkStats& traffic) {
  return {{"sends", traffic.sends},
          {"frames_sent", traffic.frames_sent},
          {"bytes_sent", traffic.bytes_sent},
          {"receives", traffic.receives},
          {"frames_received", traffic.frames_received},
          {"bytes_received", traffic.bytes_received},
          {"credit_waits", traffic.credit_waits},
          {"slot_waits", traffic.slot_waits},
          {"recalls", traffic.recalls},
          {"transfers", traffic.transfers},
          {"transfer_bytes", traffic.transfer_bytes},
          {"atomics", traffic.atomics},
          {"leases", traffic.leases},
          {"lease_waits", traffic.lease_waits}};
}

json::object JsonOf(const DeviceSum& sum) {
  return {{"device", sum.device->name},
          {"network", sum.device->kind},
          {"state", DeviceState(*sum.device)},
          {"in_service", sum.device->lost.ok() && !sum.device->in_reserve},
          {"passed_over", sum.passed_over},
          {"links", sum.endpoint.links},
          {"links_opened", sum.endpoint.links_opened},
          {"links_lost", sum.endpoint.links_lost},
          {"links_refused", sum.endpoint.links_refused},
          {"receives_posted", sum.endpoint.receives_posted},
          {"credits_borrowed", sum.endpoint.credits_borrowed},
          {"traffic", JsonOf(sum.endpoint.traffic)}};
}

json::object JsonOf(const ServerMemory& memory) {
  return {{"budget", memory.budget},
          {"in_use", memory.in_use},
          {"by_handlers", memory.by_handlers},
          {"granted", memory.granted},
          {"in_transfers", memory.in_transfers},
          {"waiting", memory.waiting},
          {"waits", memory.waits}};
}

json::object JsonOf(const ServerReport& server) {
  const ServerStats& stats = server.stats;
  const ServerRefusals& by = stats.refusals;
  return {{"address", server.address},
          {"shutting_down", server.shutting_down},
          {"directory", EntryState(server.entry)},
          {"calls", stats.calls},
          {"failures", stats.failures},
          {"refused", stats.refused},
          {"refusals",
           {{"executor", by.executor},
            {"client", by.client},
            {"source", by.source},
            {"method", by.method},
            {"bytes", by.bytes},
            {"queue", by.queue},
            {"age", by.age}}},
          {"queued", stats.queued},
          {"given_up", stats.given_up},
          {"memory_refused", stats.memory_refused},
          {"handshakes_failed", stats.handshakes_failed},
          {"handshakes_evicted", stats.handshakes_evicted},
          {"links_refused", stats.links_refused},
          {"payloads_written", stats.payloads_written},
          {"granted_bytes", stats.granted_bytes},
          {"idle_calls", stats.idle_calls},
          {"receive_memory", JsonOf(stats.receive_memory)},
          {"send_memory", JsonOf(stats.send_memory)},
          {"dedupe",
           {{"results", stats.dedupe.results},
            {"bytes", stats.dedupe.bytes},
            {"repeated", stats.dedupe.repeated},
            {"unproven", stats.dedupe.unproven}}}};
}

json::object JsonOf(const PoolReport& pool) {
  return {{"device", pool.device},         {"pool", pool.pool},     {"budget", pool.budget},
          {"registered", pool.registered}, {"in_use", pool.in_use}, {"waiting", pool.waiting}};
}

json::object JsonOf(const MethodReport& method) {
  json::object failed;
  for (const auto& [code, calls] : method.failed) failed[code] = calls;
  json::array times;
  for (const TimeSlot& slot : method.times) {
    times.push_back(json::array{slot.begin, slot.end, slot.count});
  }
  return {{"method", method.name},
          {"side", method.is_served ? "server" : "client"},
          {"begun", method.begun},
          {"ended", method.ended()},
          {"under_way", method.under_way()},
          {"failed", std::move(failed)},
          {"p50_seconds", QuantileOf(method.times, 0.5)},
          {"p99_seconds", QuantileOf(method.times, 0.99)},
          {"times", std::move(times)}};
}

json::object JsonOf(const PeerReport& peer) {
  return {{"source", peer.source}, {"links", peer.links}, {"traffic", JsonOf(peer.traffic)}};
}

json::object JsonOf(const RuntimeReport& report, const ExecutorReport& executor) {
  const double age = AgeOf(report, executor);
  json::object object{{"turns", executor.loop.turns},
                      {"completions", executor.loop.completions},
                      {"resumed", executor.loop.resumed},
                      {"sleeps", executor.loop.sleeps},
                      {"inbox_items", executor.loop.inbox_items}};
  object["age_seconds"] = age < 0 ? json::value(nullptr) : json::value(age);
  return object;
}

template <typename Items>
json::array ArrayOf(const Items& items) {
  json::array array;
  for (const auto& item : items) array.push_back(JsonOf(item));
  return array;
}

}  // namespace

std::string Readiness::Text() const {
  std::string text = ready() ? "ready\n" : "not ready\n";
  for (const std::string& reason : reasons) text += fmt::format("not ready: {}\n", reason);
  for (const std::string& loss : degraded) text += fmt::format("degraded: {}\n", loss);
  return text;
}

Readiness JudgeReadiness(const RuntimeReport& report, const AdminOptions& options,
                         const absl::Status& check) {
  Readiness readiness{.degraded = report.degraded};
  AddServers(report, options, readiness);
  AddDevices(report, readiness);
  if (!check.ok()) {
    readiness.reasons.push_back(fmt::format("AdminOptions::check: {}", check.ToString()));
  }
  if (options.degraded_is_unready && !readiness.degraded.empty()) {
    readiness.reasons.push_back("the process is degraded (AdminOptions::degraded_is_unready)");
  }
  // A line each, whatever words a check or a device has.
  for (std::vector<std::string>* lines : {&readiness.reasons, &readiness.degraded}) {
    for (std::string& line : *lines) line = EscapeControls(line);
  }
  return readiness;
}

std::string StatusPage(const StatusFacts& now, const StatusFacts* facts_before,
                       const Readiness& readiness) {
  const RuntimeReport& report = now.report;
  const RuntimeReport* const before = facts_before == nullptr ? nullptr : &facts_before->report;
  const Rates rates(report, before);
  std::string page = Head(report, readiness);
  page += MethodsTable(now, facts_before, /*is_served=*/true, rates);
  page += MethodsTable(now, facts_before, /*is_served=*/false, rates);
  page += ServersTable(report, before, rates);
  page += DevicesTable(report);
  page += TrafficTable(report, before, rates);
  page += PoolsTable(report);
  page += PeersTable(report);
  page += ExecutorsTable(report, before, rates);
  page += before == nullptr
              ? "<p class=\"faint\">Rates are known when the page is loaded again; p50 and p99 "
                "are those since the start.</p>\n"
              : fmt::format(
                    "<p class=\"faint\">Rates, p50 and p99 are those of the last {:.1f} "
                    "s.</p>\n",
                    Seconds(report.time - before->time));
  return page + "</body></html>\n";
}

std::string StatusJson(const StatusFacts& now, const Readiness& readiness) {
  const RuntimeReport& report = now.report;
  json::array executors;
  for (const ExecutorReport& executor : report.executors) {
    executors.push_back(JsonOf(report, executor));
  }
  const json::object status{{"version", fmt::format("{}.{}.{}", VERBENA_VERSION_MAJOR,
                                                    VERBENA_VERSION_MINOR, VERBENA_VERSION_PATCH)},
                            {"ready", readiness.ready()},
                            {"not_ready", Strings(readiness.reasons)},
                            {"degraded", Strings(readiness.degraded)},
                            {"failed_tasks", report.failed_tasks},
                            {"time_seconds", Seconds(report.time.time_since_epoch())},
                            {"methods", ArrayOf(now.methods)},
                            {"servers", ArrayOf(report.servers)},
                            {"devices", ArrayOf(SumDevices(report))},
                            {"memory", ArrayOf(SumPools(report))},
                            {"peers", ArrayOf(SumPeers(report))},
                            {"executors", std::move(executors)}};
  return json::serialize(status) + "\n";
}

}  // namespace verbena::internal
