// links_bench: echo calls over many links from one endpoint to one executor of a server.
//
// First 1, 8, 64, 512 and 1,000 links, to a server with default limits. Each number has a server
// process of its own. Slices of all numbers alternate, and medians are compared. Then 4,000 links
// with region leases, whose figures are only reported.

#include <unistd.h>

#include <algorithm>
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
#include "verbena/benchmarks/links/link_group.h"
#include "verbena/benchmarks/links/links_server.h"

namespace verbena::benchmarks {
namespace {

constexpr char kHelp[] =
    "usage: links_bench [options]\n"
    "Echo calls over many links between two executors, on two cores.\n\n"
    "  --links N[,N]        links (default 1,8,64,512,1000,4000)\n"
    "  --per-link N[,N]     calls in flight on each link (default 1,16)\n";

constexpr Duration kSlice = std::chrono::milliseconds(100);
// Up to this many links the server keeps its default limits.
constexpr int kDefaultLinks = 1000;
constexpr int kMessageBytes = 32;

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

absl::Status Run(const std::vector<int>& numbers, const std::vector<int>& per_link,
                 const Options& options, Report& report) {
  RaiseDescriptorLimit();
  absl::StatusOr<TwoCores> cores = ChooseTwoCores();
  if (!cores.ok()) return cores.status();
  // First the numbers that are compared, then those that are only reported. All servers are forked
  // before this process has threads.
  std::vector<std::vector<Served>> phases(2);
  for (int links : numbers) {
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
    absl::Status status = Measure(phase, **runtime, options.seconds, per_link, points);
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

absl::StatusOr<std::vector<int>> ParseList(const std::string& flag, const std::string& list) {
  std::vector<int> numbers;
  for (absl::string_view text : absl::StrSplit(list, ',')) {
    int number = 0;
    if (!absl::SimpleAtoi(text, &number) || number < 1 || number > 4000) {
      return absl::InvalidArgumentError(
          fmt::format("{} {}: '{}' is not from 1 to 4000", flag, list, std::string(text)));
    }
    numbers.push_back(number);
  }
  return numbers;
}

int Main(int argc, char** argv) {
  std::vector<std::string> rest;
  absl::StatusOr<Options> options = ParseOptions(argc, argv, rest);
  if (!options.ok())
    return fmt::print(stderr, "links_bench: {}\n", std::string(options.status().message())), 2;
  std::vector<int> numbers = {1, 8, 64, 512, 1000, 4000};
  std::vector<int> per_link = {1, 16};
  for (size_t i = 0; i < rest.size(); i += 2) {
    if (rest[i] == "--help") return fmt::print("{}{}", kHelp, kOptionsHelp), 0;
    const bool is_links = rest[i] == "--links";
    if ((!is_links && rest[i] != "--per-link") || i + 1 == rest.size()) {
      return fmt::print(stderr, "links_bench: unknown argument '{}'; see --help\n", rest[i]), 2;
    }
    const absl::StatusOr<std::vector<int>> list = ParseList(rest[i], rest[i + 1]);
    if (!list.ok()) {
      return fmt::print(stderr, "links_bench: {}\n", std::string(list.status().message())), 2;
    }
    (is_links ? numbers : per_link) = *list;
  }
  absl::StatusOr<Report> report = Report::Open(options->json);
  if (!report.ok())
    return fmt::print(stderr, "links_bench: {}\n", std::string(report.status().message())), 2;
  if (absl::Status status = Run(numbers, per_link, *options, *report); !status.ok()) {
    return fmt::print(stderr, "links_bench: {}\n", status.ToString()), 1;
  }
  return 0;
}

}  // namespace
}  // namespace verbena::benchmarks

int main(int argc, char** argv) { return verbena::benchmarks::Main(argc, argv); }
