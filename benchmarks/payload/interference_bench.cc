// interference_bench: small calls beside payloads on the same link, and payloads beside small
// calls.
//
// An echo is paced at 10,000 calls/s. Slices of the echo alone, of payloads alone and of both
// alternate on the same two cores. Figures are medians of slices. p99.9 is taken over all slices
// together, because one slice has only a single call above it.

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/benchmarks/floor/copy_floor.h"
#include "verbena/benchmarks/harness/cores.h"
#include "verbena/benchmarks/harness/drive.h"
#include "verbena/benchmarks/harness/latency_histogram.h"
#include "verbena/benchmarks/harness/median.h"
#include "verbena/benchmarks/harness/mode.h"
#include "verbena/benchmarks/harness/options.h"
#include "verbena/benchmarks/harness/report.h"
#include "verbena/benchmarks/harness/server_process.h"
#include "verbena/benchmarks/payload/paced_echo.h"
#include "verbena/benchmarks/payload/payload_client.h"
#include "verbena/benchmarks/payload/payload_server.h"
#include "verbena/benchmarks/payload/variant.h"

namespace verbena::benchmarks {
namespace {

constexpr size_t kEchoBytes = 200;
constexpr uint64_t kEchoesPerSecond = 10'000;
constexpr int kSlicesPerRound = 3;

constexpr char kHelp[] =
    "usage: interference_bench [options]\n"
    "An echo of 200 bytes, 10,000 times a second, beside payloads on the same link.\n\n";

constexpr char kOwnOptionsHelp[] =
    "  --device D           soft, or rdma:NAME (default as RuntimeOptions::device)\n"
    "  --echoes N           calls a second of the echo (default 10000)\n"
    "(payloads are multiples of 8 bytes; default 65536,1048576,16777216, in flight 1,4,16)\n";

struct InterferenceOptions {
  Options common;
  Variant variant;
  std::string device;
  uint64_t echoes_per_s = kEchoesPerSecond;
  bool help = false;
};

absl::StatusOr<InterferenceOptions> Parse(int argc, char** argv) {
  InterferenceOptions options;
  Options defaults;
  defaults.sizes = {64 << 10, 1 << 20, 16 << 20};
  defaults.outstanding = {1, 4, 16};
  options.variant = ParseVariants("plain")->front();
  std::vector<std::string> rest;
  absl::StatusOr<Options> common = ParseOptions(argc, argv, rest, defaults);
  if (!common.ok()) return common.status();
  options.common = *std::move(common);
  for (size_t i = 0; i < rest.size(); ++i) {
    if (rest[i] == "--help") {
      options.help = true;
    } else if (rest[i] == "--device" && i + 1 < rest.size()) {
      options.device = rest[++i];
    } else if (rest[i] == "--echoes" && i + 1 < rest.size() && std::atoi(rest[i + 1].c_str()) > 0) {
      options.echoes_per_s = static_cast<uint64_t>(std::atoi(rest[++i].c_str()));
    } else if (rest[i] == "--variant" && i + 1 < rest.size()) {
      absl::StatusOr<std::vector<Variant>> variants = ParseVariants(rest[++i]);
      if (!variants.ok()) return variants.status();
      options.variant = variants->front();
    } else {
      return absl::InvalidArgumentError(fmt::format("unknown argument '{}'; see --help", rest[i]));
    }
  }
  for (const int size : options.common.sizes) {
    if (size % 8 == 0) continue;
    return absl::InvalidArgumentError(
        fmt::format("--size does not accept '{}': payloads are multiples of 8 bytes", size));
  }
  return options;
}

// The figures of one point's slices.
struct Measured {
  std::vector<double> alone_p50_ns, alone_p99_ns;
  std::vector<double> p50_ns, p99_ns;
  std::vector<double> payloads_per_s_alone, payloads_per_s, to_alone;
  LatencyHistogram alone, beside;
};

absl::Status MeasureRound(PayloadClient& client, PacedEcho& echo, const BlockSlice& slice,
                          Measured* measured) {
  echo.Clear();
  if (absl::Status status = client.RunEcho(slice.duration, echo); !status.ok()) return status;
  const LatencyHistogram alone = echo.latencies();
  absl::StatusOr<PayloadSample> bulk_alone = client.RunSlice(slice);
  if (!bulk_alone.ok()) return bulk_alone.status();
  echo.Clear();
  absl::StatusOr<PayloadSample> bulk = client.RunSlice(slice, &echo);
  if (!bulk.ok()) return bulk.status();
  if (measured == nullptr) return absl::OkStatus();
  measured->alone_p50_ns.push_back(alone.PercentileNs(50));
  measured->alone_p99_ns.push_back(alone.PercentileNs(99));
  measured->p50_ns.push_back(echo.latencies().PercentileNs(50));
  measured->p99_ns.push_back(echo.latencies().PercentileNs(99));
  measured->alone.Add(alone);
  measured->beside.Add(echo.latencies());
  measured->payloads_per_s_alone.push_back(bulk_alone->calls_per_s);
  measured->payloads_per_s.push_back(bulk->calls_per_s);
  measured->to_alone.push_back(bulk->calls_per_s / bulk_alone->calls_per_s);
  return absl::OkStatus();
}

absl::Status MeasurePoint(PayloadClient& client, const InterferenceOptions& options,
                          const BlockSlice& slice, Measured& measured) {
  PacedEcho echo(client.stub(), kEchoBytes, 1'000'000'000 / options.echoes_per_s);
  BlockSlice verifying = slice;
  verifying.duration /= 10;
  verifying.stamps = Stamps::kAllWords;
  if (auto verified = client.RunSlice(verifying); !verified.ok()) return verified.status();
  const int rounds = std::max(
      1, static_cast<int>(options.common.seconds * 1000 / (kSlicesPerRound * kPayloadSliceMs)));
  for (int i = -1; i < rounds; ++i) {  // the first one warms up
    absl::Status status = MeasureRound(client, echo, slice, i < 0 ? nullptr : &measured);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

Row ToRow(const Measured& measured, const BlockSlice& slice, const std::string& device,
          ExecutorMode mode) {
  const auto us = [](const std::vector<double>& ns) { return Median(ns) / 1e3; };
  const auto gb = [&](const std::vector<double>& payloads_per_s) {
    return Median(payloads_per_s) * static_cast<double>(slice.size) / 1e9;
  };
  Row row{.bench = "interference",
          .device = device,
          .mode = ModeName(mode),
          .op = slice.direction == CopyDirection::kToClient ? "read" : "write",
          .size = static_cast<int>(slice.size),
          .outstanding = slice.outstanding};
  row.extra = {{"echo_alone_p50_us", us(measured.alone_p50_ns)},
               {"echo_alone_p99_us", us(measured.alone_p99_ns)},
               {"echo_alone_p999_us", measured.alone.PercentileNs(99.9) / 1e3},
               {"echo_p50_us", us(measured.p50_ns)},
               {"echo_p99_us", us(measured.p99_ns)},
               {"echo_p999_us", measured.beside.PercentileNs(99.9) / 1e3},
               {"echo_p99_to_alone", us(measured.p99_ns) / us(measured.alone_p99_ns)},
               {"gb_per_s_alone", gb(measured.payloads_per_s_alone)},
               {"gb_per_s", gb(measured.payloads_per_s)},
               {"bandwidth_to_alone", Median(measured.to_alone)}};
  return row;
}

double Figure(const Row& row, const std::string& name) {
  const auto found = std::find_if(row.extra.begin(), row.extra.end(),
                                  [&](const auto& each) { return each.first == name; });
  return found == row.extra.end() ? 0 : found->second;
}

void Print(const Row& row, bool heading) {
  if (heading) {
    fmt::print("{:<6} {:<8} {:<5} {:>9} {:>6}  {:^26}  {:^26} {:>6}  {:>6} {:>6} {:>6}\n", "", "",
               "", "", "", "echo alone, us", "echo beside payloads, us", "p99 to", "GB/s", "GB/s",
               "");
    fmt::print(
        "{:<6} {:<8} {:<5} {:>9} {:>6}  {:>8} {:>8} {:>8}  {:>8} {:>8} {:>8} {:>6}  {:>6} "
        "{:>6} {:>6}\n",
        "device", "mode", "op", "bytes", "flight", "p50", "p99", "p99.9", "p50", "p99", "p99.9",
        "alone", "alone", "beside", "ratio");
  }
  fmt::print(
      "{:<6} {:<8} {:<5} {:>9} {:>6}  {:>8.2f} {:>8.2f} {:>8.2f}  {:>8.2f} {:>8.2f} {:>8.2f} "
      "{:>6.1f}  {:>6.2f} {:>6.2f} {:>6.2f}\n",
      row.device, row.mode, row.op, row.size, row.outstanding, Figure(row, "echo_alone_p50_us"),
      Figure(row, "echo_alone_p99_us"), Figure(row, "echo_alone_p999_us"),
      Figure(row, "echo_p50_us"), Figure(row, "echo_p99_us"), Figure(row, "echo_p999_us"),
      Figure(row, "echo_p99_to_alone"), Figure(row, "gb_per_s_alone"), Figure(row, "gb_per_s"),
      Figure(row, "bandwidth_to_alone"));
  std::fflush(stdout);
}

RuntimeOptions RuntimeFor(const InterferenceOptions& options, int core) {
  const size_t bytes =
      2 * CopyFloor::BytesFor(options.common.sizes, options.common.outstanding) + (64U << 20);
  RuntimeOptions runtime = RuntimeOf(options.variant, bytes, core);
  if (!options.device.empty()) runtime.device = options.device;
  return runtime;
}

absl::Status Run(const InterferenceOptions& options) {
  absl::StatusOr<Report> report = Report::Open(options.common.json);
  if (!report.ok()) return report.status();
  absl::StatusOr<TwoCores> cores = ChooseTwoCores();
  if (!cores.ok()) return cores.status();
  absl::StatusOr<CopyFloor> floor =
      CopyFloor::Create(4096);  // unused: no client asks for the floor
  if (!floor.ok()) return floor.status();
  absl::StatusOr<ServerProcess> server =
      ServerProcess::Start("interference_bench", [&](const Ready& ready) {
        return RunPayloadServer(
            RuntimeFor(options, cores->server), [&] { return ServeCopySlice(*floor); }, ready);
      });
  if (!server.ok()) return server.status();
  absl::StatusOr<std::unique_ptr<PayloadClient>> client =
      PayloadClient::Connect(RuntimeFor(options, cores->client), server->address());
  if (!client.ok()) return client.status();
  bool heading = true;
  for (const CopyDirection direction : {CopyDirection::kToClient, CopyDirection::kToServer}) {
    for (const int size : options.common.sizes) {
      for (const int outstanding : options.common.outstanding) {
        const BlockSlice slice{.direction = direction,
                               .size = static_cast<size_t>(size),
                               .outstanding = outstanding,
                               .stamps = Stamps::kEnds,
                               .one_sided = options.variant.one_sided};
        Measured measured;
        absl::Status status = MeasurePoint(**client, options, slice, measured);
        if (!status.ok()) return status;
        const Row row =
            ToRow(measured, slice, WireName((*client)->runtime()), options.variant.mode);
        Print(row, heading);
        heading = false;
        report->AddToJson(row);
      }
    }
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  absl::StatusOr<InterferenceOptions> options = Parse(argc, argv);
  if (!options.ok()) {
    fmt::print(stderr, "interference_bench: {}\n", std::string(options.status().message()));
    return 2;
  }
  if (options->help)
    return fmt::print("{}{}{}{}", kHelp, kOptionsHelp, kVariantHelp, kOwnOptionsHelp), 0;
  if (absl::Status status = Run(*options); !status.ok()) {
    fmt::print(stderr, "interference_bench: {}\n", status.ToString());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace verbena::benchmarks

int main(int argc, char** argv) { return verbena::benchmarks::Main(argc, argv); }
