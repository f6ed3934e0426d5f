// kv_bench: puts and gets of examples/kv on RocksDB through a server in another process, beside the
// same operations on the same store in one process.
//
// Both have the same group commit and sync each batch. Each side of the server runs one executor.
// RocksDB's files lie in TMPDIR or /var/tmp, so figures of puts are those of that disk.

#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "benchmarks/kv/kv_load.h"
#include "examples/kv/dedupe_records.h"
#include "examples/kv/kv_service.h"
#include "examples/kv/limits.h"
#include "examples/kv/rocks_store.h"
#include "examples/kv/scratch_directory.h"
#include "fmt/format.h"
#include "verbena/benchmarks/harness/drive.h"
#include "verbena/benchmarks/harness/mode.h"
#include "verbena/benchmarks/harness/options.h"
#include "verbena/benchmarks/harness/report.h"
#include "verbena/benchmarks/harness/server_process.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/server.h"

namespace verbena::benchmarks {
namespace {

constexpr char kHelp[] =
    "usage: kv_bench [options]\n"
    "Puts and gets on RocksDB through a server, beside the same in one process.\n\n";
constexpr ExecutorMode kMode = ExecutorMode::kAdaptive;
// While the store is filled.
constexpr int kFillers = 64;

// Serves on executors of its own, for ever.
absl::Status Serve(const std::string& directory, const Ready& ready) {
  absl::StatusOr<std::unique_ptr<kv::RocksStore>> store =
      kv::RocksStore::Open({.directory = directory});
  if (!store.ok()) return store.status();
  absl::StatusOr<std::unique_ptr<Runtime>> runtime =
      Runtime::Start({.mode = kMode, .threads = false});
  if (!runtime.ok()) return runtime.status();
  // The store is new, so there is nothing to load.
  kv::DedupeRecords records(**store);
  kv::KvService service(**store, records);
  absl::StatusOr<std::unique_ptr<Server>> server =
      Server::Start(**runtime, {&service}, {.dedupe = {.store = &records}});
  if (!server.ok()) return server.status();
  ready((*server)->address());
  (*runtime)->executor(0).Run();
  return absl::OkStatus();
}

class Bench {
 public:
  Bench(const Options& options, Report& report) : options_(options), report_(report) {}

  absl::Status Run(const std::string& address, const std::string& directory) {
    absl::StatusOr<std::unique_ptr<kv::RocksStore>> store =
        kv::RocksStore::Open({.directory = directory});
    if (!store.ok()) return store.status();
    absl::StatusOr<std::unique_ptr<Runtime>> runtime = Runtime::Start({.mode = kMode});
    if (!runtime.ok()) return runtime.status();
    Channel channel(**runtime, address);
    RpcLoad rpc(channel);
    DirectLoad direct(**store);
    fmt::print("{:4} {:>8} {:>12} {:>10} {:>9} {:>9} {:>11} {:>11} {:>9} {:>10}\n", "op", "size",
               "outstanding", "calls/s", "p50 us", "p99 us", "direct/s", "direct p50", "to direct",
               "per batch");
    for (const int size : options_.sizes) {
      absl::Status status = MeasureSize(**runtime, rpc, direct, size);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status MeasureSize(Runtime& runtime, KvLoad& rpc, KvLoad& direct, int size) {
    for (const int outstanding : options_.outstanding) {
      absl::Status status = Measure(runtime, rpc, direct, KvOp::kPut, size, outstanding);
      if (!status.ok()) return status;
    }
    // Gets find each key, however far the puts came.
    for (KvLoad* load : {&direct, &rpc}) {
      absl::Status filled = load->Fill(runtime, static_cast<size_t>(size), kFillers);
      if (!filled.ok()) return filled;
    }
    for (const int outstanding : options_.outstanding) {
      absl::Status status = Measure(runtime, rpc, direct, KvOp::kGet, size, outstanding);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status Measure(Runtime& runtime, KvLoad& rpc, KvLoad& direct, KvOp op, int size,
                       int outstanding) {
    std::vector<KvSample> samples;
    for (KvLoad* load : {&direct, &rpc}) {
      absl::StatusOr<KvSample> sample =
          load->Run(runtime, op, static_cast<size_t>(size), outstanding, options_.seconds);
      if (!sample.ok()) return sample.status();
      samples.push_back(*std::move(sample));
    }
    Add(runtime, op == KvOp::kPut ? "put" : "get", size, outstanding, samples[0], samples[1]);
    return absl::OkStatus();
  }

  void Add(const Runtime& runtime, const char* op, int size, int outstanding,
           const KvSample& direct, const KvSample& rpc) {
    const double to_direct = direct.per_s > 0 ? rpc.per_s / direct.per_s : 0;
    Row row{.bench = "kv",
            .device = WireName(runtime),
            .mode = ModeName(kMode),
            .op = op,
            .size = size,
            .outstanding = outstanding,
            .p50_us = rpc.latencies.PercentileNs(50) / 1e3,
            .p99_us = rpc.latencies.PercentileNs(99) / 1e3,
            .calls_per_s = rpc.per_s,
            .floor_p50_us = direct.latencies.PercentileNs(50) / 1e3};
    row.extra = {{"direct_per_s", direct.per_s},
                 {"rate_to_direct", to_direct},
                 {"puts_per_batch", rpc.puts_per_batch},
                 {"direct_puts_per_batch", direct.puts_per_batch}};
    fmt::print(
        "{:4} {:>8} {:>12} {:>10.0f} {:>9.1f} {:>9.1f} {:>11.0f} {:>11.1f} {:>9.2f} {:>10}\n", op,
        size, outstanding, row.calls_per_s, row.p50_us, row.p99_us, direct.per_s, row.floor_p50_us,
        to_direct, rpc.puts_per_batch > 0 ? fmt::format("{:.1f}", rpc.puts_per_batch) : "-");
    std::fflush(stdout);
    report_.AddToJson(row);
  }

  const Options& options_;
  Report& report_;
};

absl::Status RunAll(const Options& options, Report& report) {
  for (const int size : options.sizes) {
    if (size < 1 || static_cast<size_t>(size) > kv::kMaxValueBytes) {
      return absl::InvalidArgumentError(
          fmt::format("--size is {}, but must be 1 to {}", size, kv::kMaxValueBytes));
    }
  }
  absl::StatusOr<std::unique_ptr<kv::ScratchDirectory>> served =
      kv::ScratchDirectory::Make("kv_bench");
  if (!served.ok()) return served.status();
  absl::StatusOr<std::unique_ptr<kv::ScratchDirectory>> own =
      kv::ScratchDirectory::Make("kv_bench");
  if (!own.ok()) return own.status();
  absl::StatusOr<ServerProcess> server = ServerProcess::Start(
      "kv_bench", [&](const Ready& ready) { return Serve((*served)->path(), ready); });
  if (!server.ok()) return server.status();
  return Bench(options, report).Run(server->address(), (*own)->path());
}

int Main(int argc, char** argv) {
  std::vector<std::string> rest;
  Options defaults;
  defaults.sizes = {100, 4096, 65536};
  defaults.outstanding = {1, 16, 256};
  absl::StatusOr<Options> options = ParseOptions(argc, argv, rest, defaults);
  if (!options.ok()) {
    return fmt::print(stderr, "kv_bench: {}\n", std::string(options.status().message())), 2;
  }
  for (const std::string& argument : rest) {
    if (argument == "--help") return fmt::print("{}{}", kHelp, kOptionsHelp), 0;
    return fmt::print(stderr, "kv_bench: unknown argument '{}'; see --help\n", argument), 2;
  }
  absl::StatusOr<Report> report = Report::Open(options->json);
  if (!report.ok()) {
    return fmt::print(stderr, "kv_bench: {}\n", std::string(report.status().message())), 2;
  }
  absl::Status status = RunAll(*options, *report);
  if (!status.ok()) return fmt::print(stderr, "kv_bench: {}\n", status.ToString()), 1;
  return 0;
}

}  // namespace
}  // namespace verbena::benchmarks

int main(int argc, char** argv) { return verbena::benchmarks::Main(argc, argv); }
