#include "verbena/benchmarks/rpc/metrics_cost.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_split.h"
#include "benchmarks/rpc/bench.verbena.pb.h"
#include "fmt/format.h"
#include "verbena/benchmarks/harness/drive.h"
#include "verbena/benchmarks/harness/median.h"
#include "verbena/benchmarks/harness/mode.h"
#include "verbena/benchmarks/harness/server_process.h"
#include "verbena/benchmarks/rpc/bench_client.h"
#include "verbena/benchmarks/rpc/bench_server.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/metrics.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/shard/call_counts.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/base/ticks.h"

namespace verbena::benchmarks {
namespace {

// Short, so that both slices of a pair find the machine in the same state.
constexpr int kSliceMs = 20;

// The bars. With many calls in flight: calls/s with metrics on, as a share of those with metrics
// off.
constexpr double kLeastRate = 0.97;
constexpr int kManyInFlight = 64;
// With one call in flight: how much longer p50 may be. Three readings of the processor's counter,
// and so many ns.
constexpr double kReadingsPerCall = 3;
constexpr double kBesideReadingsNs = 10;

constexpr int kMethods = 100;
constexpr std::array<absl::StatusCode, 4> kCodes = {
    absl::StatusCode::kOk, absl::StatusCode::kNotFound, absl::StatusCode::kDeadlineExceeded,
    absl::StatusCode::kUnavailable};
constexpr int kScrapes = 21;
constexpr double kLongestScrapeMs = 50;

const char* Verdict(bool met) { return met ? "" : ": NOT MET"; }

// How long a reading of the processor's counter takes, read as an executor does.
double NsPerReading() {
  constexpr int kReadings = 10'000;
  const internal::TickSource source = internal::TickSource::Processor();
  internal::Ticks sum = 0;
  const uint64_t began = NowNs();
  for (int i = 0; i < kReadings; ++i) sum += source.Read();
  asm volatile("" : : "r"(sum));  // so that no reading is left out
  return static_cast<double>(NowNs() - began) / kReadings;
}

// Two clients of one server process, with metrics and without. The server serves one at a time:
// both of its runtimes have the same core.
class TwoClients {
 public:
  static absl::StatusOr<TwoClients> Connect(const std::string& addresses, ExecutorMode mode,
                                            int core, const std::string& device) {
    const std::vector<std::string> address = absl::StrSplit(addresses, ' ');
    TwoClients two;
    for (size_t i = 0; i < two.clients_.size(); ++i) {
      if (i > 0) VERBENA_RETURN_IF_ERROR(two.ServeNext());
      absl::StatusOr<std::unique_ptr<BenchClient>> client =
          BenchClient::Connect(address.at(i), mode, core, device, /*metrics=*/kMetrics[i]);
      if (!client.ok()) return client.status();
      two.clients_[i] = *std::move(client);
      two.served_ = i;
    }
    return two;
  }

  // The server's runtimes, and the clients' places.
  static constexpr std::array<bool, 2> kMetrics = {true, false};

  absl::StatusOr<CallSample> RunSlice(bool metrics, const CallSlice& slice) {
    if (kMetrics[served_] != metrics) {
      VERBENA_RETURN_IF_ERROR(ServeNext());
      served_ = 1 - served_;
    }
    return clients_[served_]->RunSlice(slice);
  }

  const Runtime& runtime() const { return clients_[0]->runtime(); }

 private:
  TwoClients() = default;

  absl::Status ServeNext() {
    return clients_[served_]->Control(bench::ControlRequest::SERVE_NEXT).status();
  }

  std::array<std::unique_ptr<BenchClient>, 2> clients_;
  size_t served_ = 0;
};

// The slices of one point with metrics on, or with metrics off.
struct Slices {
  void Add(const CallSample& sample) {
    p50_ns.push_back(sample.p50_ns);
    p99_ns.push_back(sample.p99_ns);
    calls_per_s.push_back(sample.calls_per_s);
  }

  std::vector<double> p50_ns;
  std::vector<double> p99_ns;
  std::vector<double> calls_per_s;
};

// What one point has measured, beside what is in its row.
struct Cost {
  double on_to_off = 0;  // calls/s
  double ns_added = 0;   // to p50
  double ns_per_reading = 0;

  double ns_allowed() const { return kReadingsPerCall * ns_per_reading + kBesideReadingsNs; }
};

absl::StatusOr<Row> MeasurePoint(TwoClients& clients, ExecutorMode mode, int size, int outstanding,
                                 double seconds, Cost& cost) {
  CallSlice slice{.size = size, .outstanding = outstanding};
  slice.duration = std::chrono::milliseconds(kSliceMs);
  const int pairs = std::max(1, static_cast<int>(seconds * 1000 / (2 * kSliceMs)));
  Slices on;
  Slices off;
  std::vector<double> ratios;
  std::vector<double> added;
  std::vector<double> readings;
  for (int i = -1; i < pairs; ++i) {
    for (const bool metrics : {i % 2 == 0, i % 2 != 0}) {
      absl::StatusOr<CallSample> sample = clients.RunSlice(metrics, slice);
      if (!sample.ok()) return sample.status();
      if (i >= 0) (metrics ? on : off).Add(*sample);  // both are warm now
    }
    if (i < 0) continue;
    ratios.push_back(on.calls_per_s.back() / off.calls_per_s.back());
    added.push_back(on.p50_ns.back() - off.p50_ns.back());
    readings.push_back(NsPerReading());
  }
  cost = {
      .on_to_off = Median(ratios), .ns_added = Median(added), .ns_per_reading = Median(readings)};
  Row row{.bench = "metrics",
          .device = WireName(clients.runtime()),
          .mode = ModeName(mode),
          .size = size,
          .outstanding = outstanding,
          .p50_us = Median(on.p50_ns) / 1e3,
          .p99_us = Median(on.p99_ns) / 1e3,
          .calls_per_s = Median(on.calls_per_s)};
  row.extra = {{"off_p50_us", Median(off.p50_ns) / 1e3},
               {"off_p99_us", Median(off.p99_ns) / 1e3},
               {"off_calls_per_s", Median(off.calls_per_s)},
               {"on_to_off", cost.on_to_off},
               {"ns_added", cost.ns_added},
               {"ns_per_reading", cost.ns_per_reading},
               {"ns_allowed", cost.ns_allowed()}};
  return row;
}

// How a point compares with its bar; nothing if it has none.
void PrintVerdict(const Row& row, const Cost& cost) {
  const std::string point = fmt::format("metrics on against off, {}, {} bytes, {} in flight",
                                        row.mode, row.size, row.outstanding);
  if (row.outstanding >= kManyInFlight) {
    fmt::print("{}: {:.3f} of the calls/s (bar {}){}\n", point, cost.on_to_off, kLeastRate,
               Verdict(cost.on_to_off >= kLeastRate));
  } else if (row.outstanding == 1) {
    fmt::print("{}: p50 is {:.0f} ns longer (bar {:.0f}: {} readings of {:.1f} ns, and {}){}\n",
               point, cost.ns_added, cost.ns_allowed(), kReadingsPerCall, cost.ns_per_reading,
               kBesideReadingsNs, Verdict(cost.ns_added <= cost.ns_allowed()));
  }
}

// As if calls of each method had ended with each code.
void CountCalls(internal::CallCounts& counts, const MethodDescriptor& method) {
  internal::MethodCounts& of_method = counts.Of(method);
  internal::Ticks ticks = 1000;
  for (const absl::StatusCode code : kCodes) {
    of_method.begun.Add(1);
    of_method.End(ticks, code, Outcome::kExecuted);
    ticks *= 10;
  }
}

}  // namespace

absl::Status MeasureCounting(ExecutorMode mode, const TwoCores& cores, const std::string& device,
                             const Options& options, Report& report) {
  absl::StatusOr<ServerProcess> server = ServerProcess::Start("rpc_bench", [&](const Ready& ready) {
    return RunBenchServer(
        {.mode = mode,
         .core = cores.server,
         .device = device,
         .metrics = {TwoClients::kMetrics[0], TwoClients::kMetrics[1]}},
        [] { return absl::UnimplementedError("no floor is measured here"); }, ready);
  });
  if (!server.ok()) return server.status();
  absl::StatusOr<TwoClients> clients =
      TwoClients::Connect(server->address(), mode, cores.client, device);
  if (!clients.ok()) return clients.status();
  std::vector<std::pair<Row, Cost>> points;
  for (const int size : options.sizes) {
    for (const int outstanding : options.outstanding) {
      Cost cost;
      absl::StatusOr<Row> row =
          MeasurePoint(*clients, mode, size, outstanding, options.seconds, cost);
      if (!row.ok()) return row.status();
      report.Add(*row);
      points.emplace_back(*std::move(row), cost);
    }
  }
  report.PrintExtra();
  for (const auto& [row, cost] : points) PrintVerdict(row, cost);
  return absl::OkStatus();
}

absl::Status MeasureScrape(const std::string& device, Report& report) {
  // Both outlive the runtime, which keeps the names.
  std::vector<std::string> names;
  std::vector<std::unique_ptr<MethodDescriptor>> methods;
  absl::StatusOr<std::unique_ptr<Runtime>> runtime =
      Runtime::Start({.device = device, .threads = false});
  if (!runtime.ok()) return runtime.status();
  internal::ExecutorCounts& counts = *internal::CoreOf(**runtime).shard(0).counts();
  names.reserve(kMethods);
  for (int i = 0; i < kMethods; ++i) {
    names.push_back(fmt::format("verbena.bench.Scraped/Method{}", i));
    methods.push_back(
        std::make_unique<MethodDescriptor>(names.back().c_str(), Idempotency::kUnknown));
    CountCalls(counts.client, *methods.back());
    CountCalls(counts.server, *methods.back());
  }
  for (const auto& [format, name] : {std::pair(MetricsFormat::kPrometheus, "prometheus"),
                                     std::pair(MetricsFormat::kOpenMetrics, "openmetrics")}) {
    std::vector<double> took_us;
    size_t bytes = 0;
    for (int i = 0; i < kScrapes; ++i) {
      const uint64_t began = NowNs();
      bytes = (*runtime)->metrics().Text(format).size();
      took_us.push_back(static_cast<double>(NowNs() - began) / 1e3);
    }
    const double median_ms = Median(took_us) / 1e3;
    fmt::print(
        "a scrape of {} methods with {} codes on both sides, {}: {:.1f} ms, {} bytes (bar "
        "{} ms){}\n",
        kMethods, kCodes.size(), name, median_ms, bytes, kLongestScrapeMs,
        Verdict(median_ms <= kLongestScrapeMs));
    std::fflush(stdout);
    Row row{.bench = "scrape",
            .device = WireName(**runtime),
            .mode = "none",
            .op = name,
            .p50_us = Median(took_us)};
    row.extra = {{"bytes", static_cast<double>(bytes)}};
    report.AddToJson(row);
  }
  return absl::OkStatus();
}

}  // namespace verbena::benchmarks
