// payload_bench: payloads read and written through generated stubs between two pinned processes,
// beside the floor: one memcpy into memory that both have mapped, or a plain stream over TCP.
//
// Slices of calls and of the floor alternate on the same two cores, and their medians are compared.
// Before a point is timed, a pass compares every byte of its payloads; in timed slices a stamp in
// each page is new and compared, by calls and floor alike. Over TCP, the floor is also measured by
// itself, by system calls and through io_uring.

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_split.h"
#include "verbena/benchmarks/floor/copy_floor.h"
#include "verbena/benchmarks/floor/payload_table.h"
#include "verbena/benchmarks/floor/tcp_floor.h"
#include "verbena/benchmarks/floor/tcp_table.h"
#include "verbena/benchmarks/harness/cores.h"
#include "verbena/benchmarks/harness/cpu_time.h"
#include "verbena/benchmarks/harness/drive.h"
#include "verbena/benchmarks/harness/mode.h"
#include "verbena/benchmarks/harness/options.h"
#include "verbena/benchmarks/harness/report.h"
#include "verbena/benchmarks/harness/server_process.h"
#include "verbena/benchmarks/payload/payload_client.h"
#include "verbena/benchmarks/payload/payload_server.h"
#include "verbena/benchmarks/payload/variant.h"

namespace verbena::benchmarks {
namespace {

constexpr char kHelp[] =
    "usage: payload_bench [options]\n"
    "Payloads between two processes on two cores, alternating with one memcpy or a TCP stream.\n\n";

constexpr char kOwnOptionsHelp[] =
    "  --direction D[,D]    read, write (default both)\n"
    "  --device DEVICE      RuntimeOptions::device of both sides (default auto); with soft:tcp "
    "the\n"
    "                       floor goes over TCP, too\n"
    "  --floor-only         the floor by itself; with soft:tcp by system calls and by io_uring\n"
    "  --no-floor           without it, for devices that have another\n"
    "(bytes of payload are multiples of 8; default 4096,65536,1048576,16777216, in flight "
    "1,4,16)\n";

struct BenchOptions {
  Options common;
  std::vector<Variant> variants = DefaultVariants();
  std::vector<CopyDirection> directions = {CopyDirection::kToClient, CopyDirection::kToServer};
  std::string device = "auto";
  bool floor_only = false;
  bool no_floor = false;
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

absl::StatusOr<BenchOptions> Parse(int argc, char** argv) {
  BenchOptions options;
  std::vector<std::string> rest;
  absl::StatusOr<Options> common = ParseOptions(argc, argv, rest, PayloadDefaults());
  if (!common.ok()) return common.status();
  options.common = *std::move(common);
  for (size_t i = 0; i < rest.size(); ++i) {
    if (rest[i] == "--help") {
      options.help = true;
    } else if (rest[i] == "--floor-only") {
      options.floor_only = true;
    } else if (rest[i] == "--no-floor") {
      options.no_floor = true;
    } else if (rest[i] == "--device" && i + 1 < rest.size()) {
      options.device = rest[++i];
    } else if (rest[i] == "--variant" && i + 1 < rest.size()) {
      absl::StatusOr<std::vector<Variant>> variants = ParseVariants(rest[++i]);
      if (!variants.ok()) return variants.status();
      options.variants = *std::move(variants);
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
absl::Status ForEachPoint(const BenchOptions& options, Measure measure) {
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

absl::Status MeasureFloorAlone(const BenchOptions& options, const TwoCores& cores, CopyFloor& floor,
                               Report& report) {
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

// Enough memory at either end for the payload of every call in flight.
size_t PayloadBytes(const Options& options) {
  return 2 * CopyFloor::BytesFor(options.sizes, options.outstanding) + (64U << 20);
}

// The bare transfer that payloads are compared with: over TCP if they go over TCP.
struct BareTransfer {
  CopyFloor& memory;
  TcpFloor* tcp = nullptr;

  absl::Status Serve() const {
    return tcp != nullptr ? ServeTcpSlice(*tcp) : ServeCopySlice(memory);
  }
  absl::StatusOr<CopySample> Run(const CopySlice& slice) const {
    return tcp != nullptr ? RunTcpCopySlice(*tcp, slice) : RunCopySlice(memory, slice);
  }
};

// The client's view of both processes while a variant is measured.
struct Sides {
  PayloadClient& client;
  pid_t server;
  const BareTransfer* floor;  // nullptr: none is wanted
  bool one_sided;
};

absl::Status MeasureFloorBeside(const Sides& sides, PayloadPoint& point, bool counts) {
  if (sides.floor == nullptr) return absl::OkStatus();
  if (absl::Status status = sides.client.ServeFloorSlice(); !status.ok()) return status;
  absl::StatusOr<CopySample> copies = sides.floor->Run(point.floor_slice());
  if (!copies.ok()) return copies.status();
  if (counts) point.AddFloor(*copies);
  return absl::OkStatus();
}

absl::Status MeasurePoint(const Sides& sides, double seconds, PayloadPoint& point) {
  const CopySlice& like = point.floor_slice();
  BlockSlice slice{.direction = like.direction,
                   .size = static_cast<size_t>(like.size),
                   .outstanding = like.outstanding,
                   .one_sided = sides.one_sided};
  BlockSlice verifying = slice;
  verifying.duration /= 10;
  verifying.stamps = Stamps::kAllWords;
  if (auto verified = sides.client.RunSlice(verifying); !verified.ok()) return verified.status();
  const int rounds = PayloadRounds(seconds);
  for (int i = -1; i < rounds; ++i) {  // the first one warms up
    const uint64_t server_cpu = CpuNanoseconds(sides.server);
    absl::StatusOr<PayloadSample> sample = sides.client.RunSlice(slice);
    if (!sample.ok()) return sample.status();
    sample->server_cpu_ns = CpuNanoseconds(sides.server) - server_cpu;
    if (i >= 0) point.Add(*sample);
    absl::Status status = MeasureFloorBeside(sides, point, i >= 0);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status MeasureVariant(const Variant& variant, const BenchOptions& options,
                            const TwoCores& cores, const BareTransfer& floor, Report& report) {
  const auto runtime_on = [&](int core) {
    RuntimeOptions runtime = RuntimeOf(variant, PayloadBytes(options.common), core);
    runtime.device = options.device;
    return runtime;
  };
  absl::StatusOr<ServerProcess> server =
      ServerProcess::Start("payload_bench", [&](const Ready& ready) {
        return RunPayloadServer(runtime_on(cores.server), [&] { return floor.Serve(); }, ready);
      });
  if (!server.ok()) return server.status();
  absl::StatusOr<std::unique_ptr<PayloadClient>> client =
      PayloadClient::Connect(runtime_on(cores.client), server->address());
  if (!client.ok()) return client.status();
  const Sides sides{**client, server->pid(), options.no_floor ? nullptr : &floor,
                    variant.one_sided};
  BenchOptions measured = options;
  if (variant.grants != Grants::kAuto) std::erase(measured.directions, CopyDirection::kToClient);
  return ForEachPoint(measured, [&](PayloadPoint point) {
    absl::Status status = MeasurePoint(sides, options.common.seconds, point);
    if (!status.ok()) return status;
    PrintPayloadRow(point.ToRow("payload", "_" + variant.name, WireName((*client)->runtime()),
                                ModeName(variant.mode)),
                    report);
    return absl::OkStatus();
  });
}

absl::Status Run(const BenchOptions& options) {
  absl::StatusOr<Report> report = Report::Open(options.common.json);
  if (!report.ok()) return report.status();
  absl::StatusOr<TwoCores> cores = ChooseTwoCores();
  if (!cores.ok()) return cores.status();
  absl::StatusOr<CopyFloor> floor =
      CopyFloor::Create(CopyFloor::BytesFor(options.common.sizes, options.common.outstanding));
  if (!floor.ok()) return floor.status();
  const bool over_tcp = RunsOverTcp(options.device);
  if (options.floor_only) {
    return over_tcp ? ReportTcpPayloads(*cores, options.common, options.directions, *report)
                    : MeasureFloorAlone(options, *cores, *floor, *report);
  }
  std::optional<TcpFloor> tcp;
  if (over_tcp) {
    absl::StatusOr<TcpFloor> created = TcpFloor::Create();
    if (!created.ok()) return created.status();
    tcp.emplace(*std::move(created));
  }
  const BareTransfer bare{.memory = *floor, .tcp = tcp.has_value() ? &*tcp : nullptr};
  for (const Variant& variant : options.variants) {
    absl::Status status = MeasureVariant(variant, options, *cores, bare, *report);
    if (!status.ok()) {
      return absl::Status(status.code(),
                          fmt::format("{}: {}", variant.name, std::string(status.message())));
    }
  }
  if (over_tcp && !options.no_floor) {
    return ReportTcpPayloads(*cores, options.common, options.directions, *report);
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  absl::StatusOr<BenchOptions> options = Parse(argc, argv);
  if (!options.ok()) {
    fmt::print(stderr, "payload_bench: {}\n", std::string(options.status().message()));
    return 2;
  }
  if (options->help)
    return fmt::print("{}{}{}{}", kHelp, kOptionsHelp, kVariantHelp, kOwnOptionsHelp), 0;
  if (absl::Status status = Run(*options); !status.ok()) {
    fmt::print(stderr, "payload_bench: {}\n", status.ToString());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace verbena::benchmarks

int main(int argc, char** argv) { return verbena::benchmarks::Main(argc, argv); }
