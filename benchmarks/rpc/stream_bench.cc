// stream_bench: messages per second that a client reads from streams, beside the unary calls per
// second of the same size, between two pinned processes. grpc_stream_bench measures the same of
// gRPC.
//
// Slices of calls, 64 in flight, and of streams alternate on the same two cores, and the medians of
// each are compared.

#include <chrono>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "verbena/benchmarks/floor/floor.h"
#include "verbena/benchmarks/harness/cores.h"
#include "verbena/benchmarks/harness/drive.h"
#include "verbena/benchmarks/harness/mode.h"
#include "verbena/benchmarks/harness/options.h"
#include "verbena/benchmarks/harness/report.h"
#include "verbena/benchmarks/harness/server_process.h"
#include "verbena/benchmarks/harness/stream_table.h"
#include "verbena/benchmarks/rpc/bench_client.h"
#include "verbena/benchmarks/rpc/bench_server.h"

namespace verbena::benchmarks {
namespace {

constexpr char kHelp[] =
    "usage: stream_bench [options]\n"
    "Streams that a client reads, beside unary calls of the same size.\n\n";

absl::StatusOr<Row> MeasurePoint(BenchClient& client, int size, int streams, double seconds) {
  constexpr std::chrono::milliseconds kSlice(kStreamSliceMs);
  StreamPoint point(size, streams);
  const int rounds = StreamRounds(seconds);
  for (int i = 0; i <= rounds; ++i) {
    absl::StatusOr<CallSample> called =
        client.RunSlice({.size = size, .outstanding = kCallsBesideStreams, .duration = kSlice});
    if (!called.ok()) return called.status();
    absl::StatusOr<StreamSample> read =
        client.RunStreams({.size = size, .streams = streams, .duration = kSlice});
    if (!read.ok()) return read.status();
    if (i == 0) continue;  // both are warm now
    point.AddUnary(called->calls_per_s);
    point.Add(*read);
  }
  return point.ToRow("stream", WireName(client.runtime()), ModeName(ExecutorMode::kBusy));
}

absl::Status Measure(const Options& options, Report& report) {
  absl::StatusOr<TwoCores> cores = ChooseTwoCores();
  if (!cores.ok()) return cores.status();
  absl::StatusOr<FloorMapping> floor = FloorMapping::Create();
  if (!floor.ok()) return floor.status();
  constexpr ExecutorMode kMode = ExecutorMode::kBusy;
  absl::StatusOr<ServerProcess> server =
      ServerProcess::Start("stream_bench", [&](const Ready& ready) {
        return RunBenchServer(
            {.mode = kMode, .core = cores->server}, [&] { return ServeFloorSlice(*floor); }, ready);
      });
  if (!server.ok()) return server.status();
  absl::StatusOr<std::unique_ptr<BenchClient>> client =
      BenchClient::Connect(server->address(), kMode, cores->client);
  if (!client.ok()) return client.status();
  for (int size : options.sizes) {
    for (const int streams : kStreamCounts) {
      absl::StatusOr<Row> row = MeasurePoint(**client, size, streams, options.seconds);
      if (!row.ok()) return row.status();
      PrintStreamRow(*row, report);
    }
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  std::vector<std::string> rest;
  absl::StatusOr<Options> options = ParseOptions(argc, argv, rest, StreamDefaults());
  if (!options.ok())
    return fmt::print(stderr, "stream_bench: {}\n", std::string(options.status().message())), 2;
  for (const std::string& argument : rest) {
    if (argument == "--help") return fmt::print("{}{}", kHelp, kOptionsHelp), 0;
    return fmt::print(stderr, "stream_bench: unknown argument '{}'; see --help\n", argument), 2;
  }
  absl::StatusOr<Report> report = Report::Open(options->json);
  if (!report.ok())
    return fmt::print(stderr, "stream_bench: {}\n", std::string(report.status().message())), 2;
  absl::Status status = Measure(*options, *report);
  if (!status.ok()) return fmt::print(stderr, "stream_bench: {}\n", status.ToString()), 1;
  return 0;
}

}  // namespace
}  // namespace verbena::benchmarks

int main(int argc, char** argv) { return verbena::benchmarks::Main(argc, argv); }
