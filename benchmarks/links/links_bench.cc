// links_bench: many links, and links that come and go.
//
// calls: echo calls over many links from one endpoint to one executor of a server. First 1, 8, 64,
// 512 and 1,000 links, to a server with default limits. Each number has a server process of its
// own. Slices of all numbers alternate, and medians are compared. Then 4,000 links with region
// leases, whose figures are only reported.
//
// storm, shutdown and restart: client processes that connect at once, a server that shuts down
// while its clients are frozen, and a neighbour that is killed and starts again. They run over
// shared memory and over TCP, in processes that may run on every core.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "fmt/format.h"
#include "verbena/benchmarks/harness/cores.h"
#include "verbena/benchmarks/harness/drive.h"
#include "verbena/benchmarks/harness/median.h"
#include "verbena/benchmarks/harness/options.h"
#include "verbena/benchmarks/harness/report.h"
#include "verbena/benchmarks/harness/server_process.h"
#include "verbena/benchmarks/links/frozen.h"
#include "verbena/benchmarks/links/link_group.h"
#include "verbena/benchmarks/links/links_server.h"
#include "verbena/benchmarks/links/restarts.h"
#include "verbena/benchmarks/links/storm.h"
#include "verbena/transport/base/status.h"

namespace verbena::benchmarks {
namespace {

constexpr char kHelp[] =
    "usage: links_bench [options]\n"
    "Echo calls over many links between two executors, on two cores, and links that come and "
    "go.\n\n"
    "  --part NAME[,NAME]   calls, storm, shutdown, restart (default all)\n"
    "  --links N[,N]        calls: links (default 1,8,64,512,1000,4000)\n"
    "  --per-link N[,N]     calls: in flight on each link (default 1,16)\n"
    "  --clients N[,N]      storm: processes that connect at once, with 4 executors each (default\n"
    "                       15,60)\n"
    "  --frozen N[,N]       shutdown: clients that are frozen (default 50); --seconds is the "
    "grace\n"
    "  --restarts N[,N]     restart: how often a neighbour is killed (default 20)\n";

constexpr Duration kSlice = std::chrono::milliseconds(100);
// The devices of the parts that measure links that come and go.
constexpr const char* kWires[] = {"soft", "soft:tcp"};
// Up to this many links the server keeps its default limits.
constexpr int kDefaultLinks = 1000;
constexpr int kMessageBytes = 32;

struct Plan {
  std::vector<std::string> parts = {"storm", "shutdown", "restart", "calls"};
  std::vector<int> links = {1, 8, 64, 512, 1000, 4000};
  std::vector<int> per_link = {1, 16};
  std::vector<int> clients = {15, 60};
  std::vector<int> frozen = {50};
  std::vector<int> restarts = {20};

  bool has(const std::string& part) const {
    return std::find(parts.begin(), parts.end(), part) != parts.end();
  }
};

struct Point {
  LinkGroup* group = nullptr;
  int outstanding = 0;
  double bytes_per_link = 0;
  std::vector<double> calls_per_s = {};
  std::vector<double> p50_ns = {};
  std::vector<double> p99_ns = {};
};

// A server process, and the links to it.
struct Served {
  int links;
  ServerProcess server;
  std::unique_ptr<LinkGroup> group = nullptr;
  double bytes_before = 0;
};

double ResidentBytes(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/statm", pid));
  double pages = 0;
  file >> pages >> pages;
  return pages * static_cast<double>(sysconf(_SC_PAGESIZE));
}

LinkLimits ServerLimits(int links) {
  LinkLimits limits;
  if (links <= kDefaultLinks) return limits;
  limits.max_links = static_cast<uint32_t>(links);
  limits.srq_depth = 32768;
  limits.initial_credits = 4;
  limits.leases.level = LeaseLevel::kRegion;
  return limits;
}

// Small limits: enough for each link of a client that has many.
LinkLimits ClientLimits(int links) {
  LinkLimits limits;
  limits.max_links = static_cast<uint32_t>(links);
  limits.initial_credits = 4;
  limits.srq_depth = static_cast<uint32_t>(links) * 6 + 8192;
  limits.max_credits = 64;
  limits.leases.level = links <= 2 * kDefaultLinks ? LeaseLevel::kAuto : LeaseLevel::kRegion;
  return limits;
}

absl::StatusOr<Served> Serve(int links, const TwoCores& cores) {
  absl::StatusOr<ServerProcess> server = ServerProcess::Start(
      "links_bench",
      [&](const Ready& ready) { return RunLinksServer(ServerLimits(links), cores.server, ready); });
  if (!server.ok()) return server.status();
  return Served{.links = links, .server = *std::move(server)};
}

absl::Status Measure(std::vector<Served>& served, Runtime& runtime, double seconds,
                     const std::vector<int>& per_link, std::vector<Point>& points) {
  for (Served& each : served) {
    each.bytes_before = ResidentBytes(each.server.pid());
    absl::StatusOr<std::unique_ptr<LinkGroup>> group =
        LinkGroup::Connect(runtime, each.server.address(), each.links);
    if (!group.ok()) return group.status();
    each.group = *std::move(group);
    for (int outstanding : per_link) {
      points.push_back({.group = each.group.get(), .outstanding = outstanding});
      // Warms up the links.
      if (auto sample = each.group->RunSlice(outstanding, kSlice); !sample.ok()) {
        return sample.status();
      }
      points.back().bytes_per_link =
          (ResidentBytes(each.server.pid()) - each.bytes_before) / each.links;
    }
  }
  const int rounds = std::max(3, static_cast<int>(seconds * 10));
  for (int round = 0; round < rounds; ++round) {
    for (Point& point : points) {
      absl::StatusOr<LinksSample> sample = point.group->RunSlice(point.outstanding, kSlice);
      if (!sample.ok()) return sample.status();
      point.calls_per_s.push_back(sample->calls_per_s);
      point.p50_ns.push_back(sample->p50_ns);
      point.p99_ns.push_back(sample->p99_ns);
    }
  }
  return absl::OkStatus();
}

void Add(const std::vector<Point>& points, const Runtime& runtime, Report& report) {
  for (const Point& point : points) {
    Row row{.bench = "links",
            .device = WireName(runtime),
            .mode = "busy",
            .size = kMessageBytes,
            .outstanding = point.outstanding * point.group->links(),
            .p50_us = Median(point.p50_ns) / 1e3,
            .p99_us = Median(point.p99_ns) / 1e3,
            .calls_per_s = Median(point.calls_per_s)};
    row.extra = {{"links", static_cast<double>(point.group->links())},
                 {"outstanding_per_link", static_cast<double>(point.outstanding)},
                 {"bytes_per_link", point.bytes_per_link}};
    report.Add(row);
  }
  report.PrintExtra();
}

// Prints the rate of many links as a share of the rate of few.
void PrintRatio(const std::vector<Point>& points, int links, int base, int outstanding) {
  const auto rate = [&](int wanted) {
    for (const Point& point : points) {
      if (point.group->links() == wanted && point.outstanding == outstanding) {
        return Median(point.calls_per_s);
      }
    }
    return 0.0;
  };
  if (rate(base) == 0 || rate(links) == 0) return;
  fmt::print("{} links have {:.0f}% of the calls/s of {}, {} in flight per link\n", links,
             100 * rate(links) / rate(base), base, outstanding);
}

absl::Status MeasureCalls(const Plan& plan, const Options& options, Report& report) {
  RaiseDescriptorLimit();
  absl::StatusOr<TwoCores> cores = ChooseTwoCores();
  if (!cores.ok()) return cores.status();
  // First the numbers that are compared, then those that are only reported. All servers are forked
  // before this process has threads.
  std::vector<std::vector<Served>> phases(2);
  for (int links : plan.links) {
    absl::StatusOr<Served> served = Serve(links, *cores);
    if (!served.ok()) return served.status();
    phases[links <= kDefaultLinks ? 0 : 1].push_back(*std::move(served));
  }
  for (std::vector<Served>& phase : phases) {
    if (phase.empty()) continue;
    int links = 0;
    for (const Served& each : phase) links += each.links;
    RuntimeOptions client;
    client.mode = ExecutorMode::kBusy;
    client.cpus = {cores->client};
    client.device = "soft";
    client.limits = ClientLimits(links);
    client.threads = false;
    absl::StatusOr<std::unique_ptr<Runtime>> runtime = Runtime::Start(std::move(client));
    if (!runtime.ok()) return runtime.status();
    std::vector<Point> points;
    absl::Status status = Measure(phase, **runtime, options.seconds, plan.per_link, points);
    if (!status.ok()) return status;
    Add(points, **runtime, report);
    PrintRatio(points, 1000, 64, 1);
    PrintRatio(points, 1000, 8, 16);
    // The runtime ends the links before their listeners, the groups in `phase`, are destroyed.
    runtime->reset();
    phase.clear();
  }
  return absl::OkStatus();
}

// These parts fork, so they come before the calls, which need threads.
absl::Status Run(const Plan& plan, const Options& options, Report& report) {
  const auto grace =
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(options.seconds));
  for (const char* wire : kWires) {
    for (const int clients : plan.clients) {
      if (!plan.has("storm")) break;
      VERBENA_RETURN_IF_ERROR(MeasureStorm(wire, clients, report));
    }
  }
  report.PrintExtra();
  for (const char* wire : kWires) {
    for (const int clients : plan.frozen) {
      if (!plan.has("shutdown")) break;
      VERBENA_RETURN_IF_ERROR(MeasureFrozen(wire, clients, grace, report));
    }
  }
  report.PrintExtra();
  for (const char* wire : kWires) {
    for (const int restarts : plan.restarts) {
      if (!plan.has("restart")) break;
      VERBENA_RETURN_IF_ERROR(MeasureRestarts(wire, restarts, report));
    }
  }
  report.PrintExtra();
  return plan.has("calls") ? MeasureCalls(plan, options, report) : absl::OkStatus();
}

absl::StatusOr<std::vector<int>> ParseList(const std::string& flag, const std::string& list,
                                           int most) {
  std::vector<int> numbers;
  for (absl::string_view text : absl::StrSplit(list, ',')) {
    int number = 0;
    if (!absl::SimpleAtoi(text, &number) || number < 1 || number > most) {
      return absl::InvalidArgumentError(
          fmt::format("{} {}: '{}' is not from 1 to {}", flag, list, std::string(text), most));
    }
    numbers.push_back(number);
  }
  return numbers;
}

absl::Status ParseParts(const std::string& list, Plan& plan) {
  const Plan all;
  plan.parts = absl::StrSplit(list, ',');
  for (const std::string& part : plan.parts) {
    if (all.has(part)) continue;
    return absl::InvalidArgumentError(
        fmt::format("--part {}: '{}' is not one of calls, storm, shutdown, restart", list, part));
  }
  return absl::OkStatus();
}

// Reads one option that only this benchmark knows.
absl::Status ParseOption(const std::string& flag, const std::string& value, Plan& plan) {
  if (flag == "--part") return ParseParts(value, plan);
  const struct {
    const char* flag;
    std::vector<int>* numbers;
    int most;
  } lists[] = {{"--links", &plan.links, 4000},
               {"--per-link", &plan.per_link, 4000},
               {"--clients", &plan.clients, 100},
               {"--frozen", &plan.frozen, 100},
               {"--restarts", &plan.restarts, 1000}};
  for (const auto& list : lists) {
    if (flag != list.flag) continue;
    VERBENA_ASSIGN_OR_RETURN(*list.numbers, ParseList(flag, value, list.most));
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(fmt::format("unknown argument '{}'; see --help", flag));
}

int Main(int argc, char** argv) {
  std::vector<std::string> rest;
  absl::StatusOr<Options> options = ParseOptions(argc, argv, rest);
  if (!options.ok())
    return fmt::print(stderr, "links_bench: {}\n", std::string(options.status().message())), 2;
  Plan plan;
  for (size_t i = 0; i < rest.size(); i += 2) {
    if (rest[i] == "--help") return fmt::print("{}{}", kHelp, kOptionsHelp), 0;
    const std::string value = i + 1 < rest.size() ? rest[i + 1] : "";
    if (absl::Status parsed = ParseOption(rest[i], value, plan); !parsed.ok()) {
      return fmt::print(stderr, "links_bench: {}\n", std::string(parsed.message())), 2;
    }
  }
  absl::StatusOr<Report> report = Report::Open(options->json);
  if (!report.ok())
    return fmt::print(stderr, "links_bench: {}\n", std::string(report.status().message())), 2;
  if (absl::Status status = Run(plan, *options, *report); !status.ok()) {
    return fmt::print(stderr, "links_bench: {}\n", status.ToString()), 1;
  }
  return 0;
}

}  // namespace
}  // namespace verbena::benchmarks

int main(int argc, char** argv) { return verbena::benchmarks::Main(argc, argv); }
