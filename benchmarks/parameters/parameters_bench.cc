// parameters_bench: the comparisons by which people choose verbs' parameters, as tables.
//
// One thread drives both ends, over two QPs of one device: the soft device by default.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "verbena/benchmarks/harness/options.h"
#include "verbena/benchmarks/parameters/comparison.h"
#include "verbena/benchmarks/parameters/measure.h"
#include "verbena/benchmarks/parameters/verbs_end.h"
#include "verbena/rpc/shard/open_device.h"
#include "verbena/transport/link/limits.h"

namespace verbena::benchmarks {
namespace {

// The setting of every comparison.
struct Setting {
  internal::Device& device;
  std::chrono::nanoseconds duration;

  uint32_t max_inline() const { return device.capabilities().max_inline_bytes; }
};

double Latency(const Setting& setting, PingPong test,
               std::optional<Waiting> waiting = std::nullopt) {
  EndOptions options;
  options.receive_depth = 16;
  options.send_depth = 16;
  options.message_bytes = std::max<size_t>(test.bytes, 64);
  options.inline_bytes = test.inline_data ? test.bytes : 0;
  if (options.inline_bytes > setting.max_inline()) return 0;
  VerbsEnd one(setting.device, options);
  VerbsEnd other(setting.device, options);
  VerbsEnd::Connect(one, other);
  test.duration = setting.duration;
  return waiting.has_value() ? MeasureWaitingUs(one, other, test, *waiting)
                             : MeasureLatencyUs(one, other, test);
}

double MillionsPerSecond(const Setting& setting, Stream test) {
  EndOptions options;
  options.send_depth = test.send_depth;
  options.receive_depth = test.receive_depth;
  options.qps = test.qps;
  options.srq = test.srq;
  options.message_bytes = std::max<size_t>(test.bytes, 64);
  options.inline_bytes = test.inline_data ? test.bytes : 0;
  if (options.inline_bytes > setting.max_inline()) return 0;
  VerbsEnd sender(setting.device, options);
  VerbsEnd receiver(setting.device, options);
  VerbsEnd::Connect(sender, receiver);
  test.duration = setting.duration;
  return MeasureRate(sender, receiver, test) / 1e6;
}

// One curve for each name, one value for each x.
Comparison Measure(Comparison comparison, const std::vector<std::string>& names,
                   const std::function<double(size_t curve, double x)>& value) {
  for (size_t i = 0; i < names.size(); ++i) {
    Curve curve{names[i], {}};
    for (double x : comparison.x) curve.y.push_back(value(i, x));
    comparison.curves.push_back(std::move(curve));
  }
  return comparison;
}

Comparison CompareInline(const Setting& setting) {
  return Measure({"inline",
                  "Inline data against a gathered buffer: SEND",
                  "bytes",
                  "one way, us (p50)",
                  {8, 32, 64, 128, 256, 512},
                  {}},
                 {"inline", "not inline"}, [&](size_t curve, double bytes) {
                   return Latency(
                       setting, {.bytes = static_cast<uint32_t>(bytes), .inline_data = curve == 0});
                 });
}

Comparison CompareOpcodes(const Setting& setting) {
  constexpr ibv_wr_opcode kOpcodes[] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
                                        IBV_WR_RDMA_READ};
  return Measure({"opcodes",
                  "SEND, WRITE and READ",
                  "bytes",
                  "one way, us (p50); READ: there and back",
                  {8, 64, 512, 4096, 16384, 65536},
                  {}},
                 {"SEND", "WRITE", "WRITE_IMM", "READ"}, [&](size_t curve, double bytes) {
                   const ibv_wr_opcode opcode = kOpcodes[curve];
                   if (opcode == IBV_WR_RDMA_WRITE_WITH_IMM &&
                       !setting.device.capabilities().write_with_immediate) {
                     return 0.0;
                   }
                   return Latency(setting,
                                  {.opcode = opcode, .bytes = static_cast<uint32_t>(bytes)});
                 });
}

Comparison CompareSignalling(const Setting& setting) {
  return Measure({"signalling",
                  "A completion for every n-th SEND: 32 bytes",
                  "n",
                  "million SENDs/s",
                  {1, 4, 16, 64},
                  {}},
                 {"batch 1", "batch 16"}, [&](size_t curve, double every) {
                   return MillionsPerSecond(setting, {.signal_every = static_cast<int>(every),
                                                      .batch = curve == 0 ? 1 : 16});
                 });
}

Comparison CompareWaiting(const Setting& setting) {
  constexpr Waiting kWaitings[] = {Waiting::kBusy, Waiting::kAdaptive, Waiting::kEvent};
  return Measure({"waiting",
                  "Busy, adaptive and event-driven waiting: SEND between two threads",
                  "bytes",
                  "one way, us (p50)",
                  {8, 64, 512, 4096},
                  {}},
                 {"busy", "adaptive", "event"}, [&](size_t curve, double bytes) {
                   return Latency(setting, {.bytes = static_cast<uint32_t>(bytes)},
                                  kWaitings[curve]);
                 });
}

Comparison CompareBatches(const Setting& setting) {
  return Measure({"doorbells",
                  "WRs a doorbell: SEND of 32 bytes",
                  "WRs a doorbell",
                  "million SENDs/s",
                  {1, 2, 4, 8, 16, 32},
                  {}},
                 {"inline", "not inline"}, [&](size_t curve, double batch) {
                   return MillionsPerSecond(
                       setting, {.inline_data = curve == 0, .batch = static_cast<int>(batch)});
                 });
}

Comparison CompareReceiveQueues(const Setting& setting) {
  return Measure(
      {"receives",
       "One SRQ against a receive queue for each QP: SEND of 32 bytes",
       "QPs",
       "million SENDs/s",
       {1, 4, 16},
       {}},
      {"SRQ", "per QP"}, [&](size_t curve, double qps) {
        if (curve == 0 && !setting.device.capabilities().srq) return 0.0;
        return MillionsPerSecond(
            setting,
            {.signal_every = 8, .batch = 8, .qps = static_cast<int>(qps), .srq = curve == 0});
      });
}

Comparison CompareRequests(const Setting& setting) {
  constexpr RequestWay kWays[] = {RequestWay::kInMessage, RequestWay::kGrantedWrite,
                                  RequestWay::kAskedWrite, RequestWay::kServerRead};
  return Measure({"requests",
                  "Four ways to move a request's payload",
                  "bytes of payload",
                  "request to response, us (p50)",
                  {512, 1024, 2048, 4096, 8192, 16384, 65536, 1048576},
                  {}},
                 {"in the message", "granted WRITE", "asked-for WRITE", "server's READ"},
                 [&](size_t curve, double bytes) {
                   const EndOptions options = {.send_depth = 16,
                                               .receive_depth = 8,
                                               .message_bytes = static_cast<size_t>(bytes) + 64};
                   VerbsEnd client(setting.device, options);
                   VerbsEnd server(setting.device, options);
                   VerbsEnd::Connect(client, server);
                   return MeasureRequestUs(client, server, kWays[curve],
                                           static_cast<uint32_t>(bytes), setting.duration);
                 });
}

// A value for a link's option, from the comparison of requests. A message of bare verbs costs two
// copies, as in Verbena. A payload beside it has no lease to begin and end, so in Verbena the
// message gains by more.
std::string AdviceOf(const Comparison& requests, const internal::Device& device) {
  constexpr size_t kInMessage = 0, kGranted = 1, kRead = 3;
  constexpr double kMost = 16384;
  const double favoured = std::min(LowestUpTo(requests, kInMessage, {kGranted, kRead}), kMost);
  const uint32_t now = internal::DefaultPayloadInFrame(device);
  return fmt::format(
      "A payload in the message is no slower than a granted WRITE and the server's READ up to {:g} "
      "bytes{}.\nAdvice: LinkLimits::largest_payload_in_frame = {:g} (default on this device: {}); "
      "eager_bytes must have room for it and its message.\n",
      favoured, favoured == kMost ? " at least" : "", std::max(favoured, 1.0), now);
}

const std::pair<const char*, Comparison (*)(const Setting&)> kComparisons[] = {
    {"inline", CompareInline},         {"opcodes", CompareOpcodes},
    {"signalling", CompareSignalling}, {"waiting", CompareWaiting},
    {"doorbells", CompareBatches},     {"receives", CompareReceiveQueues},
    {"requests", CompareRequests},
};

struct Arguments {
  Options common;
  std::string device = "soft";
  std::vector<std::string> only;
};

constexpr char kHelp[] =
    "usage: parameters_bench [options]\n"
    "The comparisons by which verbs' parameters are chosen. One thread drives both ends.\n\n"
    "  --json FILE       append one JSON object a line to FILE\n"
    "  --seconds N       seconds per point (default 0.2)\n"
    "  --device NAME     soft (default), rdma, or rdma:NAME of a device, interface or address\n"
    "  --only NAME[,…]   inline, opcodes, signalling, waiting, doorbells, receives,\n"
    "                    requests\n";

absl::StatusOr<Arguments> Parse(int argc, char** argv) {
  Arguments arguments;
  std::vector<std::string> rest;
  absl::StatusOr<Options> common = ParseOptions(argc, argv, rest);
  if (!common.ok()) return common.status();
  arguments.common = *std::move(common);
  // The default of the other benchmarks is meant for alternating slices.
  if (arguments.common.seconds == Options().seconds) arguments.common.seconds = 0.2;
  for (size_t i = 0; i < rest.size(); ++i) {
    const bool has_value = i + 1 < rest.size();
    if (rest[i] == "--device" && has_value) {
      arguments.device = rest[++i];
    } else if (rest[i] == "--only" && has_value) {
      arguments.only = absl::StrSplit(rest[++i], ',');
    } else {
      return absl::InvalidArgumentError(
          fmt::format("unknown argument '{}', or it lacks its value; see --help", rest[i]));
    }
  }
  for (const std::string& name : arguments.only) {
    std::vector<std::string> names;
    for (const auto& [known, run] : kComparisons) names.emplace_back(known);
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      return absl::InvalidArgumentError(fmt::format("there is no comparison '{}'; there are: {}",
                                                    name, absl::StrJoin(names, ", ")));
    }
  }
  return arguments;
}

absl::Status Append(const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "ae");
  if (file == nullptr) return absl::InvalidArgumentError(fmt::format("cannot write {}", path));
  fmt::print(file, "{}", text);
  std::fclose(file);
  return absl::OkStatus();
}

absl::Status Run(const Arguments& arguments) {
  absl::StatusOr<std::unique_ptr<internal::Device>> device = internal::OpenDevice(arguments.device);
  if (!device.ok()) return device.status();
  const Setting setting{
      **device, std::chrono::nanoseconds(static_cast<int64_t>(arguments.common.seconds * 1e9))};
  for (const auto& [name, compare] : kComparisons) {
    const std::vector<std::string>& only = arguments.only;
    if (!only.empty() && std::find(only.begin(), only.end(), name) == only.end()) continue;
    const Comparison comparison = compare(setting);
    fmt::print("{}\n", ToTable(comparison));
    if (comparison.name == "requests") fmt::print("{}\n", AdviceOf(comparison, **device));
    std::fflush(stdout);
    if (!arguments.common.json.empty()) {
      absl::Status written =
          Append(arguments.common.json, ToJsonLines(comparison, (*device)->name()));
      if (!written.ok()) return written;
    }
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--help") return fmt::print(kHelp), 0;
  }
  absl::StatusOr<Arguments> arguments = Parse(argc, argv);
  absl::Status status = arguments.ok() ? Run(*arguments) : arguments.status();
  if (status.ok()) return 0;
  fmt::print(stderr, "parameters_bench: {}\n", std::string(status.message()));
  return arguments.ok() ? 1 : 2;
}

}  // namespace
}  // namespace verbena::benchmarks

int main(int argc, char** argv) { return verbena::benchmarks::Main(argc, argv); }
