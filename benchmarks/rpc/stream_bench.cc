// stream_bench: messages per second that a client reads from streams, beside the unary calls per
// second of the same size, between two pinned processes.
//
// Slices of calls, 64 in flight, and of streams alternate on the same two cores, and the medians of
// each are compared.

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "verbena/benchmarks/floor/floor.h"
#include "verbena/benchmarks/harness/cores.h"
#include "verbena/benchmarks/harness/median.h"
#include "verbena/benchmarks/harness/mode.h"
#include "verbena/benchmarks/harness/options.h"
#include "verbena/benchmarks/harness/report.h"
#include "verbena/benchmarks/harness/server_process.h"
#include "verbena/benchmarks/rpc/bench_client.h"
#include "verbena/benchmarks/rpc/bench_server.h"
#include "verbena/benchmarks/rpc/drive.h"

namespace verbena::benchmarks {
namespace {

constexpr char kHelp[] =
    "usage: stream_bench [options]\n"
    "Streams that a client reads, beside unary calls of the same size.\n\n";

constexpr int kSliceMs = 100;
constexpr int kCallsInFlight = 64;
constexpr int kStreams[] = {1, 100};

absl::StatusOr<Row> MeasurePoint(BenchClient& client, int size, int streams, double seconds) {
  std::vector<double> messages, calls;
  uint64_t allocations = 0;
  uint64_t counted = 0;
  const int rounds = std::max(1, static_cast<int>(seconds * 1000 / (2 * kSliceMs)));
  for (int i = 0; i <= rounds; ++i) {
    CallSlice slice{.size = size, .outstanding = kCallsInFlight};
    absl::StatusOr<CallSample> called = client.RunSlice(slice);
    if (!called.ok()) return called.status();
    absl::StatusOr<StreamSample> read = client.RunStreams({.size = size, .streams = streams});
    if (!read.ok()) return read.status();
    if (i == 0) continue;  // both are warm now
    calls.push_back(called->calls_per_s);
    messages.push_back(read->messages_per_s);
    allocations += read->allocations;
    counted += read->messages;
  }
  Row row{.bench = "stream",
          .device = WireName(client.runtime()),
          .mode = ModeName(ExecutorMode::kBusy),
          .size = size};
  row.extra = {{"streams", static_cast<double>(streams)},
               {"messages_per_s", Median(messages)},
               {"unary_calls_per_s", Median(calls)},
               {"ratio_to_unary", Median(messages) / Median(calls)},
               {"client_allocations_per_message",
                static_cast<double>(allocations) / static_cast<double>(counted)}};
  return row;
}

absl::Status Measure(const Options& options, Report& report) {
  absl::StatusOr<TwoCores> cores = ChooseTwoCores();
  if (!cores.ok()) return cores.status();
  absl::StatusOr<FloorMapping> floor = FloorMapping::Create();
  if (!floor.ok()) return floor.status();
  constexpr ExecutorMode kMode = ExecutorMode::kBusy;
  absl::StatusOr<ServerProcess> server =
      ServerProcess::Start("stream_bench", [&](const Ready& ready) {
        return RunBenchServer({.mode = kMode, .core = cores->server}, *floor, ready);
      });
  if (!server.ok()) return server.status();
  absl::StatusOr<std::unique_ptr<BenchClient>> client =
      BenchClient::Connect(server->address(), kMode, cores->client);
  if (!client.ok()) return client.status();
  fmt::print("{:>6} {:>8} {:>14} {:>14} {:>6} {:>12}\n", "bytes", "streams", "messages/s",
             "unary calls/s", "ratio", "allocations");
  for (int size : options.sizes) {
    for (int streams : kStreams) {
      absl::StatusOr<Row> row = MeasurePoint(**client, size, streams, options.seconds);
      if (!row.ok()) return row.status();
      fmt::print("{:>6} {:>8} {:>14.0f} {:>14.0f} {:>6.2f} {:>12.4f}\n", size, streams,
                 row->extra[1].second, row->extra[2].second, row->extra[3].second,
                 row->extra[4].second);
      std::fflush(stdout);
      report.AddToJson(*row);
    }
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  std::vector<std::string> rest;
  Options defaults;
  defaults.sizes = {1024};
  absl::StatusOr<Options> options = ParseOptions(argc, argv, rest, defaults);
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
