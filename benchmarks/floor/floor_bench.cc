// floor_bench: the floor by itself, between two processes pinned to two cores.

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/benchmarks/floor/floor.h"
#include "verbena/benchmarks/harness/cores.h"
#include "verbena/benchmarks/harness/median.h"
#include "verbena/benchmarks/harness/options.h"
#include "verbena/benchmarks/harness/report.h"

namespace verbena::benchmarks {
namespace {

constexpr int kSliceMs = 100;

// The server process: serves slices until its client goes.
[[noreturn]] void Serve(FloorMapping mapping, int core, pid_t client) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != client || !PinToCore(core).ok()) _exit(1);
  while (ServeFloorSlice(mapping).ok()) {
  }
  _exit(0);
}

absl::StatusOr<Row> Measure(FloorMapping& mapping, int size, int outstanding, double seconds) {
  std::vector<double> p50;
  std::vector<double> p99;
  std::vector<double> rate;
  const int slices = std::max(1, static_cast<int>(seconds * 1000 / kSliceMs));
  for (int i = 0; i < slices; ++i) {
    absl::StatusOr<FloorSample> sample =
        RunFloorSlice(mapping, {.size = size, .outstanding = outstanding, .duration_ms = kSliceMs});
    if (!sample.ok()) return sample.status();
    p50.push_back(sample->p50_ns);
    p99.push_back(sample->p99_ns);
    rate.push_back(sample->calls_per_s);
  }
  return Row{.bench = "floor",
             .device = "shm",
             .mode = "busy",
             .size = size,
             .outstanding = outstanding,
             .p50_us = Median(p50) / 1e3,
             .p99_us = Median(p99) / 1e3,
             .calls_per_s = Median(rate),
             .floor_p50_us = Median(p50) / 1e3};
}

absl::Status Run(const Options& options) {
  absl::StatusOr<Report> report = Report::Open(options.json);
  if (!report.ok()) return report.status();
  absl::StatusOr<TwoCores> cores = ChooseTwoCores();
  if (!cores.ok()) return cores.status();
  absl::StatusOr<FloorMapping> mapping = FloorMapping::Create();
  if (!mapping.ok()) return mapping.status();

  const pid_t client = getpid();
  const pid_t server = fork();
  if (server < 0) return absl::InternalError("fork failed");
  if (server == 0) Serve(*std::move(mapping), cores->server, client);

  absl::Status status = PinToCore(cores->client);
  for (int size : options.sizes) {
    for (int outstanding : options.outstanding) {
      if (!status.ok()) break;
      absl::StatusOr<Row> row = Measure(*mapping, size, outstanding, options.seconds);
      status = row.status();
      if (row.ok()) report->Add(*row);
    }
  }
  kill(server, SIGKILL);
  waitpid(server, nullptr, 0);
  return status;
}

}  // namespace
}  // namespace verbena::benchmarks

int main(int argc, char** argv) {
  using namespace verbena::benchmarks;
  std::vector<std::string> rest;
  absl::StatusOr<Options> options = ParseOptions(argc, argv, rest);
  if (!options.ok()) {
    fmt::print(stderr, "floor_bench: {}\n", std::string(options.status().message()));
    return 2;
  }
  if (!rest.empty()) {
    fmt::print("usage: floor_bench [options]\n\n{}", kOptionsHelp);
    return rest[0] == "--help" ? 0 : 2;
  }
  if (absl::Status status = Run(*options); !status.ok()) {
    fmt::print(stderr, "floor_bench: {}\n", status.ToString());
    return 1;
  }
  return 0;
}
