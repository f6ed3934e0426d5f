// rpc_bench: unary echo through generated stubs between two pinned processes, beside its floor.
//
// Slices of calls and of the floor (a bare exchange over shared memory or TCP, same size, same
// number outstanding) alternate on the same two cores, and the medians of each are compared: the
// floor itself moves fourfold with where the cores sit and what the machine does. Over TCP, the
// floor is also measured by itself, by system calls and through io_uring.
//
// With --metrics both, calls that are counted are also compared with calls that are not.

#include <cstdio>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "fmt/format.h"
#include "verbena/benchmarks/floor/floor.h"
#include "verbena/benchmarks/floor/tcp_floor.h"
#include "verbena/benchmarks/floor/tcp_table.h"
#include "verbena/benchmarks/harness/cores.h"
#include "verbena/benchmarks/harness/drive.h"
#include "verbena/benchmarks/harness/median.h"
#include "verbena/benchmarks/harness/mode.h"
#include "verbena/benchmarks/harness/options.h"
#include "verbena/benchmarks/harness/report.h"
#include "verbena/benchmarks/harness/server_process.h"
#include "verbena/benchmarks/rpc/bench_client.h"
#include "verbena/benchmarks/rpc/bench_server.h"
#include "verbena/benchmarks/rpc/metrics_cost.h"

namespace verbena::benchmarks {
namespace {

constexpr char kHelp[] =
    "usage: rpc_bench [options]\n"
    "Unary echo between two processes on two cores, alternating with its floor.\n\n";

constexpr char kOwnOptionsHelp[] =
    "  --mode M[,M]         busy, adaptive, event (default busy,adaptive)\n"
    "  --device DEVICE      RuntimeOptions::device of both sides (default auto); with soft:tcp "
    "the\n"
    "                       floor goes over TCP, too\n"
    "  --floor-only         with soft:tcp: the floors by themselves, by system calls and by "
    "io_uring\n"
    "  --metrics M          RuntimeOptions::metrics of both sides: on (the default) or off. both: "
    "on,\n"
    "                       and then also the same calls on and off in slices that alternate, and "
    "how\n"
    "                       long a scrape takes\n"
    "  --points-only        neither allocations nor what an idle server uses\n";

// Below one slice of each there is nothing to compare.
constexpr int kSliceMs = 100;
constexpr uint64_t kWarmUpCalls = 10000;
constexpr uint64_t kCountedCalls = 100000;

// The bare exchange that calls are compared with: over TCP if the calls go over TCP, otherwise over
// shared memory.
class WireFloor {
 public:
  static absl::StatusOr<WireFloor> Create(const std::string& device) {
    WireFloor floor;
    if (RunsOverTcp(device)) {
      absl::StatusOr<TcpFloor> tcp = TcpFloor::Create();
      if (!tcp.ok()) return tcp.status();
      floor.tcp_.emplace(*std::move(tcp));
      return floor;
    }
    absl::StatusOr<FloorMapping> memory = FloorMapping::Create();
    if (!memory.ok()) return memory.status();
    floor.memory_.emplace(*std::move(memory));
    return floor;
  }

  absl::Status Serve() {
    return tcp_.has_value() ? ServeTcpSlice(*tcp_) : ServeFloorSlice(*memory_);
  }
  absl::StatusOr<FloorSample> Run(const FloorSlice& slice) {
    return tcp_.has_value() ? RunTcpSlice(*tcp_, slice) : RunFloorSlice(*memory_, slice);
  }

 private:
  WireFloor() = default;

  std::optional<TcpFloor> tcp_;
  std::optional<FloorMapping> memory_;
};

struct OwnOptions {
  bool counts() const { return metrics != "off"; }

  std::vector<std::string> modes = {"busy", "adaptive"};
  std::string device = "auto";
  std::string metrics = "on";
  bool floor_only = false;
  bool points_only = false;
};

struct Point {
  ExecutorMode mode;
  int size;
  int outstanding;
};

// Adds what both sides counted between two readings, per call.
void AddCounters(const bench::ServerCounters& before, const bench::ServerCounters& after,
                 Row& row) {
  const double calls = static_cast<double>(after.calls() - before.calls());
  const double sends = static_cast<double>(after.sends() - before.sends());
  const double receives = static_cast<double>(after.receives() - before.receives());
  row.extra = {
      {"calls", calls},
      {"server_sends", sends},
      {"frames_per_send", static_cast<double>(after.frames_sent() - before.frames_sent()) / sends},
      {"server_receives", receives},
      {"server_doorbells", static_cast<double>(after.doorbells() - before.doorbells())},
      {"server_credit_waits", static_cast<double>(after.credit_waits() - before.credit_waits())},
  };
}

absl::StatusOr<Row> MeasurePoint(BenchClient& client, WireFloor& floor, const Point& point,
                                 double seconds) {
  std::vector<double> p50, p99, rate, floor_p50;
  const int rounds = std::max(1, static_cast<int>(seconds * 1000 / (2 * kSliceMs)));
  CallSlice slice{.size = point.size, .outstanding = point.outstanding};
  slice.duration = std::chrono::milliseconds(kSliceMs);
  absl::StatusOr<CallSample> warm = client.RunSlice(slice);
  if (!warm.ok()) return warm.status();
  absl::StatusOr<bench::ServerCounters> before = client.Control(bench::ControlRequest::NOTHING);
  if (!before.ok()) return before.status();
  for (int i = 0; i < rounds; ++i) {
    absl::StatusOr<CallSample> sample = client.RunSlice(slice);
    if (!sample.ok()) return sample.status();
    p50.push_back(sample->p50_ns);
    p99.push_back(sample->p99_ns);
    rate.push_back(sample->calls_per_s);
    absl::StatusOr<bench::ServerCounters> told =
        client.Control(bench::ControlRequest::SERVE_FLOOR_SLICE);
    if (!told.ok()) return told.status();
    absl::StatusOr<FloorSample> bare =
        floor.Run({.size = point.size, .outstanding = point.outstanding, .duration_ms = kSliceMs});
    if (!bare.ok()) return bare.status();
    floor_p50.push_back(bare->p50_ns);
  }
  absl::StatusOr<bench::ServerCounters> after = client.Control(bench::ControlRequest::NOTHING);
  if (!after.ok()) return after.status();
  Row row{.bench = "rpc",
          .device = WireName(client.runtime()),
          .mode = ModeName(point.mode),
          .size = point.size,
          .outstanding = point.outstanding,
          .p50_us = Median(p50) / 1e3,
          .p99_us = Median(p99) / 1e3,
          .calls_per_s = Median(rate),
          .floor_p50_us = Median(floor_p50) / 1e3};
  AddCounters(*before, *after, row);
  return row;
}

// Calls 10,000 to 110,000 of this client: what they allocate, in both processes.
absl::Status CountAllocations(BenchClient& client, bool reuse_reply) {
  CallSlice slice{.outstanding = 64, .reuse_reply = reuse_reply};
  slice.duration = std::chrono::seconds(60);
  slice.max_calls = kWarmUpCalls;
  if (absl::StatusOr<CallSample> warm = client.RunSlice(slice); !warm.ok()) return warm.status();
  absl::StatusOr<bench::ServerCounters> before = client.Control(bench::ControlRequest::NOTHING);
  if (!before.ok()) return before.status();
  slice.count_from = kWarmUpCalls;
  slice.max_calls = kWarmUpCalls + kCountedCalls;
  absl::StatusOr<CallSample> sample = client.RunSlice(slice);
  if (!sample.ok()) return sample.status();
  absl::StatusOr<bench::ServerCounters> after = client.Control(bench::ControlRequest::NOTHING);
  if (!after.ok()) return after.status();
  fmt::print("allocations over {} calls ({}): client {}, server {}\n", kCountedCalls,
             reuse_reply ? "Reply&" : "StatusOr", sample->allocations,
             after->allocations() - before->allocations());
  return absl::OkStatus();
}

absl::Status MeasureIdle(BenchClient& client) {
  constexpr Duration kIdle = std::chrono::seconds(2);
  absl::StatusOr<bench::ServerCounters> before = client.Control(bench::ControlRequest::NOTHING);
  if (!before.ok()) return before.status();
  std::this_thread::sleep_for(kIdle);
  absl::StatusOr<bench::ServerCounters> after = client.Control(bench::ControlRequest::NOTHING);
  if (!after.ok()) return after.status();
  const double used_us = static_cast<double>(after->cpu_us() - before->cpu_us());
  fmt::print("an idle adaptive server uses {:.2f}% of a core\n",
             used_us / std::chrono::duration<double, std::micro>(kIdle).count() * 100);
  return absl::OkStatus();
}

absl::Status MeasureMode(ExecutorMode mode, const TwoCores& cores, const Options& options,
                         const OwnOptions& own, Report& report) {
  absl::StatusOr<WireFloor> floor = WireFloor::Create(own.device);
  if (!floor.ok()) return floor.status();
  absl::StatusOr<ServerProcess> server = ServerProcess::Start("rpc_bench", [&](const Ready& ready) {
    return RunBenchServer(
        {.mode = mode, .core = cores.server, .device = own.device, .metrics = {own.counts()}},
        [&] { return floor->Serve(); }, ready);
  });
  if (!server.ok()) return server.status();
  absl::StatusOr<std::unique_ptr<BenchClient>> client =
      BenchClient::Connect(server->address(), mode, cores.client, own.device, own.counts());
  if (!client.ok()) return client.status();
  for (int size : options.sizes) {
    for (int outstanding : options.outstanding) {
      absl::StatusOr<Row> row =
          MeasurePoint(**client, *floor, {mode, size, outstanding}, options.seconds);
      if (!row.ok()) return row.status();
      report.Add(*row);
    }
  }
  report.PrintExtra();
  if (own.points_only) return absl::OkStatus();
  if (mode == ExecutorMode::kAdaptive) return MeasureIdle(**client);
  if (absl::Status status = CountAllocations(**client, true); !status.ok()) return status;
  return CountAllocations(**client, false);
}

absl::Status Measure(const std::vector<ExecutorMode>& modes, const Options& options,
                     const OwnOptions& own, Report& report) {
  absl::StatusOr<TwoCores> cores = ChooseTwoCores();
  if (!cores.ok()) return cores.status();
  for (const ExecutorMode mode : modes) {
    if (own.floor_only) break;
    absl::Status status = MeasureMode(mode, *cores, options, own, report);
    if (!status.ok()) return status;
    if (own.metrics != "both") continue;
    status = MeasureCounting(mode, *cores, own.device, options, report);
    if (!status.ok()) return status;
  }
  if (own.metrics == "both" && !own.floor_only) {
    if (absl::Status status = MeasureScrape(own.device, report); !status.ok()) return status;
  }
  if (!RunsOverTcp(own.device)) return absl::OkStatus();
  absl::Status status = ReportTcpMessages(*cores, options, report);
  return status.ok() ? ReportTcpFan(*cores, options, report) : status;
}

int Main(int argc, char** argv) {
  std::vector<std::string> rest;
  absl::StatusOr<Options> options = ParseOptions(argc, argv, rest);
  if (!options.ok())
    return fmt::print(stderr, "rpc_bench: {}\n", std::string(options.status().message())), 2;
  OwnOptions own;
  for (size_t i = 0; i < rest.size(); ++i) {
    if (rest[i] == "--help") {
      return fmt::print("{}{}{}", kHelp, kOptionsHelp, kOwnOptionsHelp), 0;
    }
    if (rest[i] == "--floor-only") {
      own.floor_only = true;
    } else if (rest[i] == "--points-only") {
      own.points_only = true;
    } else if (rest[i] == "--device" && i + 1 < rest.size()) {
      own.device = rest[++i];
    } else if (rest[i] == "--metrics" && i + 1 < rest.size()) {
      own.metrics = rest[++i];
    } else if (rest[i] == "--mode" && i + 1 < rest.size()) {
      own.modes = absl::StrSplit(rest[++i], ',');
    } else {
      return fmt::print(stderr, "rpc_bench: unknown argument '{}'; see --help\n", rest[i]), 2;
    }
  }
  if (own.floor_only && !RunsOverTcp(own.device)) {
    return fmt::print(stderr, "rpc_bench: --floor-only is for --device soft:tcp\n"), 2;
  }
  if (own.metrics != "on" && own.metrics != "off" && own.metrics != "both") {
    return fmt::print(stderr, "rpc_bench: --metrics is '{}', but must be on, off or both\n",
                      own.metrics),
           2;
  }
  absl::StatusOr<Report> report = Report::Open(options->json);
  if (!report.ok())
    return fmt::print(stderr, "rpc_bench: {}\n", std::string(report.status().message())), 2;
  std::vector<ExecutorMode> modes;
  for (const std::string& name : own.modes) {
    const absl::StatusOr<ExecutorMode> mode = ParseMode(name);
    if (!mode.ok())
      return fmt::print(stderr, "rpc_bench: {}\n", std::string(mode.status().message())), 2;
    modes.push_back(*mode);
  }
  absl::Status status = Measure(modes, *options, own, *report);
  if (!status.ok()) return fmt::print(stderr, "rpc_bench: {}\n", status.ToString()), 1;
  return 0;
}

}  // namespace
}  // namespace verbena::benchmarks

int main(int argc, char** argv) { return verbena::benchmarks::Main(argc, argv); }
