// payload_bench: payloads read and written through generated stubs between two pinned processes,
// beside the floor: one memcpy into memory that both have mapped.
//
// Slices of calls and of the floor alternate on the same two cores, and their medians are compared.
// Before a point is timed, a pass compares every byte of its payloads; in timed slices a stamp in
// each page is new and compared, by calls and floor alike.

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_split.h"
#include "verbena/benchmarks/floor/copy_floor.h"
#include "verbena/benchmarks/floor/payload_table.h"
#include "verbena/benchmarks/harness/cores.h"
#include "verbena/benchmarks/harness/options.h"
#include "verbena/benchmarks/harness/report.h"
#include "verbena/benchmarks/harness/server_process.h"

namespace verbena::benchmarks {
namespace {

constexpr char kHelp[] =
    "usage: payload_bench [options]\n"
    "Payloads between two processes on two cores, alternating with one memcpy.\n\n";

constexpr char kOwnOptionsHelp[] =
    "  --direction D[,D]    read, write (default both)\n"
    "  --floor-only         the floor by itself\n"
    "(bytes of payload are multiples of 8; default 4096,65536,1048576,16777216, in flight "
    "1,4,16)\n";

struct PayloadOptions {
  Options common;
  std::vector<CopyDirection> directions = {CopyDirection::kToClient, CopyDirection::kToServer};
  bool floor_only = false;
  bool help = false;
};

absl::Status ParseDirections(const std::string& text, std::vector<CopyDirection>& directions) {
  directions.clear();
  for (const std::string& word : std::vector<std::string>(absl::StrSplit(text, ','))) {
    if (word != "read" && word != "write") {
      return absl::InvalidArgumentError(
          fmt::format("--direction is '{}', but must be read or write", word));
    }
    directions.push_back(word == "read" ? CopyDirection::kToClient : CopyDirection::kToServer);
  }
  return absl::OkStatus();
}

absl::StatusOr<PayloadOptions> Parse(int argc, char** argv) {
  PayloadOptions options;
  std::vector<std::string> rest;
  absl::StatusOr<Options> common = ParseOptions(argc, argv, rest, PayloadDefaults());
  if (!common.ok()) return common.status();
  options.common = *std::move(common);
  for (size_t i = 0; i < rest.size(); ++i) {
    if (rest[i] == "--help") {
      options.help = true;
    } else if (rest[i] == "--floor-only") {
      options.floor_only = true;
    } else if (rest[i] == "--direction" && i + 1 < rest.size()) {
      if (absl::Status status = ParseDirections(rest[++i], options.directions); !status.ok()) {
        return status;
      }
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

template <typename Measure>
absl::Status ForEachPoint(const PayloadOptions& options, Measure measure) {
  for (const CopyDirection direction : options.directions) {
    for (const int size : options.common.sizes) {
      for (const int outstanding : options.common.outstanding) {
        absl::Status status = measure(PayloadPoint(direction, size, outstanding));
        if (!status.ok()) return status;
      }
    }
  }
  return absl::OkStatus();
}

absl::Status ServeFloorAlone(CopyFloor& floor, int core, const Ready& ready) {
  if (absl::Status status = PinToCore(core); !status.ok()) return status;
  ready("none");
  while (true) {
    if (absl::Status status = ServeCopySlice(floor); !status.ok()) return status;
  }
}

absl::Status MeasureFloorAlone(const PayloadOptions& options, const TwoCores& cores,
                               CopyFloor& floor, Report& report) {
  absl::StatusOr<ServerProcess> server = ServerProcess::Start(
      "payload_bench",
      [&](const Ready& ready) { return ServeFloorAlone(floor, cores.server, ready); });
  if (!server.ok()) return server.status();
  if (absl::Status status = PinToCore(cores.client); !status.ok()) return status;
  return ForEachPoint(options, [&](PayloadPoint point) {
    const int slices = 2 * PayloadRounds(options.common.seconds);
    for (int i = -1; i < slices; ++i) {
      absl::StatusOr<CopySample> sample = RunCopySlice(floor, point.floor_slice());
      if (!sample.ok()) return sample.status();
      if (i >= 0) point.AddFloor(*sample);  // the first one warms up
    }
    PrintPayloadRow(point.FloorRow(), report);
    return absl::OkStatus();
  });
}

absl::Status Run(const PayloadOptions& options) {
  absl::StatusOr<Report> report = Report::Open(options.common.json);
  if (!report.ok()) return report.status();
  absl::StatusOr<TwoCores> cores = ChooseTwoCores();
  if (!cores.ok()) return cores.status();
  absl::StatusOr<CopyFloor> floor =
      CopyFloor::Create(CopyFloor::BytesFor(options.common.sizes, options.common.outstanding));
  if (!floor.ok()) return floor.status();
  return MeasureFloorAlone(options, *cores, *floor, *report);
}

int Main(int argc, char** argv) {
  absl::StatusOr<PayloadOptions> options = Parse(argc, argv);
  if (!options.ok()) {
    fmt::print(stderr, "payload_bench: {}\n", std::string(options.status().message()));
    return 2;
  }
  if (options->help) return fmt::print("{}{}{}", kHelp, kOptionsHelp, kOwnOptionsHelp), 0;
  if (absl::Status status = Run(*options); !status.ok()) {
    fmt::print(stderr, "payload_bench: {}\n", status.ToString());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace verbena::benchmarks

int main(int argc, char** argv) { return verbena::benchmarks::Main(argc, argv); }
