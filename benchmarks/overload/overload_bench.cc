// overload_bench: a server whose calls work 50 us each, under more load than it can serve, between
// two pinned processes.
//
// Goodput is calls served per second. Latencies are those of calls that were served. Five parts:
// open-loop loads of 80%, 2 times and 10 times the capacity from ten clients; a client with 10,000
// calls in flight beside ten with one each; control calls beside bulk at twice the capacity; 500
// callers that wait 100 ms for calls of 1 ms, at a server with default options; the same with calls
// of 100 us at a server that is stopped for a while. The floor of the last two is what the same
// server serves of eight callers.

#include <signal.h>
#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "verbena/benchmarks/harness/cores.h"
#include "verbena/benchmarks/harness/drive.h"
#include "verbena/benchmarks/harness/mode.h"
#include "verbena/benchmarks/harness/options.h"
#include "verbena/benchmarks/harness/report.h"
#include "verbena/benchmarks/harness/server_process.h"
#include "verbena/benchmarks/overload/load_client.h"
#include "verbena/benchmarks/overload/overload_server.h"

namespace verbena::benchmarks {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr char kHelp[] =
    "usage: overload_bench [options]\n"
    "Calls served, and their latency, under more load than the server can serve.\n\n";

constexpr int kClients = 10;
constexpr int kGreedy = 10'000;
constexpr double kControlPerSecond = 500;
constexpr int kPatient = 8;
constexpr int kImpatient = 500;
constexpr Duration kPatience = milliseconds(100);
// How long the server is stopped: less than its clients take to see that it is gone.
constexpr double kStopSeconds = 3;

// A queue as a server has it that would rather refuse than be late.
ServerOptions Strict() {
  return {.admission = {.max_running = 64, .max_queue_age = milliseconds(1)}};
}

// A queue that holds all that a greedy client sends.
ServerOptions Patient() {
  return {.max_concurrent_calls = 65536,
          .admission = {.max_running = 64, .max_queued = 32768, .max_queue_age = seconds(60)}};
}

struct Sum {
  LatencyHistogram served;
  double offered_per_s = 0;
  double goodput_per_s = 0;
  double refused_per_s = 0;
  uint64_t failed = 0;

  uint64_t given_up = 0;

  double p99_us() const { return served.PercentileNs(99) / 1e3; }
};

class Bench {
 public:
  Bench(const Options& options, Report& report) : options_(options), report_(report) {}

  absl::Status Run(const TwoCores& cores) {
    PrintHeader();
    absl::Status status = With(Strict(), cores, [this] {
      absl::Status loads = MeasureLoads();
      return loads.ok() ? MeasureControl() : loads;
    });
    if (!status.ok()) return status;
    status = With(Patient(), cores, [this] { return MeasureGreedy(); });
    if (!status.ok()) return status;
    status = With({}, cores, [this] { return MeasureImpatient(); });
    return status.ok() ? With({}, cores, [this] { return MeasureStop(); }) : status;
  }

 private:
  // Forks a server, while this process has no threads, and runs `measure` with clients of it.
  template <typename Measure>
  absl::Status With(const ServerOptions& server, const TwoCores& cores, Measure measure) {
    absl::StatusOr<ServerProcess> process = ServerProcess::Start(
        "overload_bench",
        [&](const Ready& ready) { return RunOverloadServer(server, cores.server, ready); });
    if (!process.ok()) return process.status();
    if (absl::Status pinned = PinToCore(cores.client); !pinned.ok()) return pinned;
    server_pid_ = process->pid();
    absl::Status status = Connect(process->address());
    if (status.ok()) status = measure();
    clients_.clear();
    return status;
  }

  absl::Status Connect(const std::string& address) {
    for (int i = 0; i <= kClients; ++i) {
      absl::StatusOr<std::unique_ptr<LoadClient>> client =
          LoadClient::Connect(address, static_cast<uint64_t>(i) + 1);
      if (!client.ok()) return client.status();
      clients_.push_back(*std::move(client));
    }
    return absl::OkStatus();
  }

  // The sum over the clients in [from, to).
  Sum SumOf(int from, int to) const {
    Sum sum;
    for (int i = from; i < to; ++i) {
      const LoadSample& sample = clients_[i]->sample();
      sum.served.Add(sample.served);
      sum.offered_per_s += static_cast<double>(sample.offered) / options_.seconds;
      sum.goodput_per_s += static_cast<double>(sample.served.count()) / options_.seconds;
      sum.refused_per_s += static_cast<double>(sample.refused) / options_.seconds;
      sum.given_up += sample.given_up;
      sum.failed += sample.failed;
    }
    return sum;
  }

  Sum RunEach(const Load& load) {
    RunLoads(clients_, std::vector<Load>(kClients, load), options_.seconds);
    return SumOf(0, kClients);
  }

  absl::Status MeasureLoads() {
    // Enough in flight that the server never lacks work, and not so much that it refuses any.
    const Sum saturated = RunEach({.in_flight = 1});
    const double capacity = saturated.goodput_per_s;
    const std::pair<const char*, double> loads[] = {
        {"80 percent", 0.8}, {"2 times", 2}, {"10 times", 10}};
    std::vector<Sum> sums;
    double best = capacity;
    for (const auto& [scenario, factor] : loads) {
      sums.push_back(RunEach({.per_s = factor * capacity / kClients}));
      best = std::max(best, sums.back().goodput_per_s);
    }
    at_80_percent_us_ = sums[0].p99_us();
    capacity_ = capacity;
    best_ = best;
    Add("capacity", saturated);
    for (size_t i = 0; i < sums.size(); ++i) Add(loads[i].first, sums[i]);
    return Failures(sums);
  }

  absl::Status MeasureControl() {
    std::vector<Load> loads(kClients, Load{.per_s = 2 * capacity_ / kClients});
    loads.push_back({.per_s = kControlPerSecond, .priority = Priority::kControl});
    RunLoads(clients_, loads, options_.seconds);
    std::vector<Sum> sums = {SumOf(0, kClients), SumOf(kClients, kClients + 1)};
    Add("bulk beside control", sums[0]);
    Add("control", sums[1]);
    return Failures(sums);
  }

  absl::Status MeasureGreedy() {
    const Sum alone = RunEach({.in_flight = 1});
    at_80_percent_us_ = 0;
    best_ = alone.goodput_per_s;
    Add("ten with one each, alone", alone);
    std::vector<Load> loads(kClients, Load{.in_flight = 1});
    loads.push_back({.in_flight = kGreedy});
    RunLoads(clients_, loads, options_.seconds);
    std::vector<Sum> sums = {SumOf(0, kClients), SumOf(kClients, kClients + 1)};
    Add("ten beside a greedy one", sums[0], {{"p99_to_alone", sums[0].p99_us() / alone.p99_us()}});
    Add("the greedy one", sums[1]);
    return Failures(sums);
  }

  // Measures how many calls of `work_us` the server serves if a few callers wait as long as it
  // takes.
  void MeasureFloor(uint32_t work_us) {
    RunLoads(clients_, {{.in_flight = kPatient, .work_us = work_us}}, options_.seconds);
    const Sum sum = SumOf(0, 1);
    at_80_percent_us_ = 0;
    best_ = sum.goodput_per_s;
    Add(fmt::format("{} callers, {} us", kPatient, work_us), sum);
  }

  // The second client, which has no load, asks for what has started meanwhile.
  template <typename Load>
  absl::StatusOr<Starts> StartsDuring(Load load) {
    absl::StatusOr<Starts> before = clients_[1]->ReadStarts();
    if (!before.ok()) return before.status();
    load();
    absl::StatusOr<Starts> after = clients_[1]->ReadStarts();
    if (!after.ok()) return after.status();
    return Starts{.all = after->all - before->all, .late = after->late - before->late};
  }

  absl::Status MeasureImpatient() {
    constexpr uint32_t kWorkUs = 1000;
    MeasureFloor(kWorkUs);
    absl::StatusOr<Starts> starts = StartsDuring([this] {
      RunLoads(clients_, {{.in_flight = kImpatient, .deadline = kPatience, .work_us = kWorkUs}},
               options_.seconds);
    });
    if (!starts.ok()) return starts.status();
    const std::vector<Sum> sums = {SumOf(0, 1)};
    Add("500 impatient, 1000 us", sums[0], LateFigures(*starts));
    return Failures(sums);
  }

  absl::Status MeasureStop() {
    constexpr uint32_t kWorkUs = 100;
    MeasureFloor(kWorkUs);
    const double seconds = options_.seconds + kStopSeconds;
    const uint64_t stop_at = NowNs() + static_cast<uint64_t>(seconds * 1e9 * 0.2);
    const auto go_on_at = stop_at + static_cast<uint64_t>(kStopSeconds * 1e9);
    int signals = 0;
    absl::StatusOr<Starts> starts = StartsDuring([&] {
      RunLoads(clients_, {{.in_flight = kImpatient, .deadline = kPatience, .work_us = kWorkUs}},
               seconds, [&] {
                 const uint64_t now = NowNs();
                 if (signals == 0 && now >= stop_at) {
                   kill(server_pid_, SIGSTOP);
                   ++signals;
                 } else if (signals == 1 && now >= go_on_at) {
                   clients_[0]->WatchFirst(now);
                   kill(server_pid_, SIGCONT);
                   ++signals;
                 }
               });
    });
    if (!starts.ok()) return starts.status();
    // Nothing is served while the server is stopped.
    std::vector<Sum> sums = {SumOf(0, 1)};
    sums[0].goodput_per_s *= options_.seconds / (seconds - kStopSeconds);
    auto figures = LateFigures(*starts);
    figures.emplace_back("first_fresh_ms", static_cast<double>(clients_[0]->first_ns()) / 1e6);
    Add("500 impatient, stopped 3 s", sums[0], std::move(figures));
    return Failures(sums);
  }

  std::vector<std::pair<std::string, double>> LateFigures(const Starts& starts) const {
    const double all = static_cast<double>(std::max<uint64_t>(starts.all, 1));
    return {{"floor_per_s", best_},
            {"starts", static_cast<double>(starts.all)},
            {"late_starts", static_cast<double>(starts.late)},
            {"late_to_all", static_cast<double>(starts.late) / all}};
  }

  static absl::Status Failures(const std::vector<Sum>& sums) {
    for (const Sum& sum : sums) {
      if (sum.failed == 0) continue;
      return absl::InternalError(
          fmt::format("{} calls failed by anything but overload", sum.failed));
    }
    return absl::OkStatus();
  }

  static void PrintHeader() {
    fmt::print("{:26} {:>10} {:>10} {:>10} {:>9} {:>9} {:>9} {:>10}\n", "scenario", "offered/s",
               "goodput/s", "refused/s", "to best", "p50 us", "p99 us", "to 80%");
  }

  void Add(const std::string& scenario, const Sum& sum,
           std::vector<std::pair<std::string, double>> more = {}) {
    const double p50_us = sum.served.PercentileNs(50) / 1e3;
    const double to_best = best_ > 0 ? sum.goodput_per_s / best_ : 0;
    const double to_80 = at_80_percent_us_ > 0 ? sum.p99_us() / at_80_percent_us_ : 0;
    fmt::print("{:26} {:>10.0f} {:>10.0f} {:>10.0f} {:>9.3f} {:>9.1f} {:>9.1f} {:>10}\n", scenario,
               sum.offered_per_s, sum.goodput_per_s, sum.refused_per_s, to_best, p50_us,
               sum.p99_us(), to_80 > 0 ? fmt::format("{:.2f}", to_80) : "-");
    for (const auto& [name, value] : more) fmt::print("    {} {:.2f}\n", name, value);
    std::fflush(stdout);
    Row row{.bench = "overload",
            .device = WireName(clients_[0]->runtime()),
            .mode = ModeName(ExecutorMode::kBusy),
            .scenario = scenario,
            .p50_us = p50_us,
            .p99_us = sum.p99_us()};
    row.extra = {{"offered_per_s", sum.offered_per_s},
                 {"goodput_per_s", sum.goodput_per_s},
                 {"refused_per_s", sum.refused_per_s},
                 {"goodput_to_best", to_best}};
    if (to_80 > 0) row.extra.emplace_back("p99_to_80_percent", to_80);
    for (auto& figure : more) row.extra.push_back(std::move(figure));
    report_.AddToJson(row);
  }

  const Options& options_;
  Report& report_;
  std::vector<std::unique_ptr<LoadClient>> clients_;
  pid_t server_pid_ = 0;
  double capacity_ = 0;
  double best_ = 0;
  double at_80_percent_us_ = 0;
};

int Main(int argc, char** argv) {
  std::vector<std::string> rest;
  absl::StatusOr<Options> options = ParseOptions(argc, argv, rest, {});
  if (!options.ok()) {
    return fmt::print(stderr, "overload_bench: {}\n", std::string(options.status().message())), 2;
  }
  for (const std::string& argument : rest) {
    if (argument == "--help") return fmt::print("{}{}", kHelp, kOptionsHelp), 0;
    return fmt::print(stderr, "overload_bench: unknown argument '{}'; see --help\n", argument), 2;
  }
  absl::StatusOr<Report> report = Report::Open(options->json);
  if (!report.ok()) {
    return fmt::print(stderr, "overload_bench: {}\n", std::string(report.status().message())), 2;
  }
  absl::StatusOr<TwoCores> cores = ChooseTwoCores();
  absl::Status status =
      cores.ok() ? Bench(*options, *report).Run(*cores) : absl::Status(cores.status());
  if (!status.ok()) return fmt::print(stderr, "overload_bench: {}\n", status.ToString()), 1;
  return 0;
}

}  // namespace
}  // namespace verbena::benchmarks

int main(int argc, char** argv) { return verbena::benchmarks::Main(argc, argv); }
