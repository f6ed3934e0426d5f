#include "verbena/benchmarks/floor/tcp_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "verbena/benchmarks/floor/floor.h"
#include "verbena/benchmarks/floor/payload_table.h"
#include "verbena/benchmarks/floor/tcp_fan.h"
#include "verbena/benchmarks/floor/tcp_floor.h"
#include "verbena/benchmarks/harness/cpu_time.h"
#include "verbena/benchmarks/harness/median.h"
#include "verbena/benchmarks/harness/server_process.h"

namespace verbena::benchmarks {
namespace {

// Busy connections of a fan.
constexpr int kFewConnections = 16;
constexpr int kManyConnections = 64;

// Short, so that whatever disturbs the machine disturbs all ways alike.
constexpr int kSliceMs = 50;

struct Way {
  TcpWay way;
  const char* bench;
  const char* variant;
};

constexpr Way kMessageWays[] = {{TcpWay::kSockets, "tcp_socket", ""},
                                {TcpWay::kUring, "tcp_uring", ""}};
constexpr Way kFanWays[] = {{TcpWay::kSockets, "fan_socket", ""},
                            {TcpWay::kUring, "fan_uring", ""}};
constexpr Way kPayloadWays[] = {{TcpWay::kSockets, "tcp_socket", ""},
                                {TcpWay::kUring, "tcp_uring", ""},
                                {TcpWay::kUringMultishot, "tcp_uring", "_multi"},
                                {TcpWay::kUringZeroCopy, "tcp_uring", "_zc"}};

// The client's side, and the server's process. `Floor` is a TcpFloor or a TcpFan.
template <typename Floor>
class Pair {
 public:
  using Serve = absl::Status (*)(Floor& floor);

  static absl::StatusOr<Pair> Start(const TwoCores& cores, absl::StatusOr<Floor> floor,
                                    Serve serve) {
    if (!floor.ok()) return floor.status();
    absl::StatusOr<ServerProcess> server =
        ServerProcess::Start("tcp floor", [&](const Ready& ready) {
          if (absl::Status status = PinToCore(cores.server); !status.ok()) return status;
          ready("none");
          while (true) {
            if (absl::Status status = serve(*floor); !status.ok()) return status;
          }
        });
    if (!server.ok()) return server.status();
    if (absl::Status status = PinToCore(cores.client); !status.ok()) return status;
    return Pair(*std::move(floor), *std::move(server));
  }

  // Returns the `ways` that can run `slice` here. Says once why another one cannot.
  template <std::size_t kCount>
  std::vector<Way> Possible(const Way (&ways)[kCount], const CopySlice& slice) {
    std::vector<Way> possible;
    for (const Way& way : ways) {
      const absl::Status can = CheckTcpWay(way.way, slice);
      if (can.ok()) {
        possible.push_back(way);
      } else if (said_.insert(can.ToString() + way.bench + way.variant).second) {
        fmt::print("{}{} is left out: {}\n", way.bench, way.variant, can.ToString());
      }
    }
    return possible;
  }

  Floor& floor() { return floor_; }
  pid_t server() const { return server_.pid(); }

 private:
  Pair(Floor floor, ServerProcess server) : floor_(std::move(floor)), server_(std::move(server)) {}

  Floor floor_;
  ServerProcess server_;
  std::set<std::string> said_;
};

int Rounds(double seconds, std::size_t ways) {
  return std::max(1, static_cast<int>(seconds * 1000 / (static_cast<double>(ways) * kSliceMs)));
}

// The slices of one way at one point.
struct Messages {
  std::vector<double> p50, p99, rate;
};

// `run(way)` runs one slice.
template <typename RunSlice>
absl::Status ReportMessagePoint(const std::vector<Way>& ways, const FloorSlice& slice,
                                double seconds, Report& report, RunSlice run) {
  std::vector<Messages> samples(ways.size());
  const int rounds = Rounds(seconds, ways.size());
  for (int round = -1; round < rounds; ++round) {  // the first one warms up
    for (std::size_t i = 0; i < ways.size(); ++i) {
      absl::StatusOr<FloorSample> sample = run(ways[i].way);
      if (!sample.ok()) return sample.status();
      if (round < 0) continue;
      samples[i].p50.push_back(sample->p50_ns);
      samples[i].p99.push_back(sample->p99_ns);
      samples[i].rate.push_back(sample->calls_per_s);
    }
  }
  for (std::size_t i = 0; i < ways.size(); ++i) {
    report.Add({.bench = ways[i].bench,
                .device = "tcp",
                .mode = "busy",
                .size = slice.size,
                .outstanding = slice.outstanding,
                .p50_us = Median(samples[i].p50) / 1e3,
                .p99_us = Median(samples[i].p99) / 1e3,
                .calls_per_s = Median(samples[i].rate),
                .floor_p50_us = Median(samples.front().p50) / 1e3});
  }
  return absl::OkStatus();
}

absl::StatusOr<CopySample> AddSlice(Pair<TcpFloor>& pair, const CopySlice& slice, TcpWay way,
                                    PayloadPoint* point) {
  const std::uint64_t client_cpu = CpuNanoseconds();
  const std::uint64_t server_cpu = CpuNanoseconds(pair.server());
  absl::StatusOr<CopySample> sample = RunTcpCopySlice(pair.floor(), slice, way);
  if (!sample.ok() || point == nullptr) return sample;
  point->Add({.p50_ns = sample->p50_ns,
              .p99_ns = sample->p99_ns,
              .calls_per_s = sample->copies_per_s,
              .calls = static_cast<std::uint64_t>(sample->copies_per_s * slice.duration_ms / 1e3),
              .client_cpu_ns = CpuNanoseconds() - client_cpu,
              .server_cpu_ns = CpuNanoseconds(pair.server()) - server_cpu});
  return sample;
}

absl::Status ReportPayloadPoint(Pair<TcpFloor>& pair, const CopySlice& slice, double seconds,
                                Report& report) {
  const std::vector<Way> ways = pair.Possible(kPayloadWays, slice);
  std::vector<PayloadPoint> points(ways.size(),
                                   PayloadPoint(slice.direction, slice.size, slice.outstanding));
  const int rounds = Rounds(seconds, ways.size());
  for (int round = -1; round < rounds; ++round) {  // the first one warms up
    for (std::size_t i = 0; i < ways.size(); ++i) {
      absl::StatusOr<CopySample> sample =
          AddSlice(pair, slice, ways[i].way, round < 0 ? nullptr : &points[i]);
      if (!sample.ok()) return sample.status();
      if (round < 0 || ways[i].way != TcpWay::kSockets) continue;
      for (PayloadPoint& point : points) point.AddFloor(*sample);
    }
  }
  for (std::size_t i = 0; i < ways.size(); ++i) {
    PrintPayloadRow(points[i].ToRow(ways[i].bench, ways[i].variant, "tcp", "busy"), report);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReportTcpMessages(const TwoCores& cores, const Options& options, Report& report) {
  absl::StatusOr<Pair<TcpFloor>> pair =
      Pair<TcpFloor>::Start(cores, TcpFloor::Create(), &ServeTcpSlice);
  if (!pair.ok()) return pair.status();
  const std::vector<Way> ways = pair->Possible(kMessageWays, {});
  for (const int size : options.sizes) {
    for (const int outstanding : options.outstanding) {
      const FloorSlice slice{.size = size, .outstanding = outstanding, .duration_ms = kSliceMs};
      absl::Status status =
          ReportMessagePoint(ways, slice, options.seconds, report,
                             [&](TcpWay way) { return RunTcpSlice(pair->floor(), slice, way); });
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

absl::Status ReportTcpFan(const TwoCores& cores, const Options& options, Report& report) {
  absl::StatusOr<Pair<TcpFan>> pair =
      Pair<TcpFan>::Start(cores, TcpFan::Create(kManyConnections), &ServeTcpFanSlice);
  if (!pair.ok()) return pair.status();
  const std::vector<Way> ways = pair->Possible(kFanWays, {});
  for (const int size : options.sizes) {
    if (size > TcpFan::kMaxSize) continue;
    for (const int connections : {kFewConnections, kManyConnections}) {
      const FloorSlice slice{.size = size, .outstanding = connections, .duration_ms = kSliceMs};
      absl::Status status =
          ReportMessagePoint(ways, slice, options.seconds, report,
                             [&](TcpWay way) { return RunTcpFanSlice(pair->floor(), slice, way); });
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

absl::Status ReportTcpPayloads(const TwoCores& cores, const Options& options,
                               const std::vector<CopyDirection>& directions, Report& report) {
  absl::StatusOr<Pair<TcpFloor>> pair =
      Pair<TcpFloor>::Start(cores, TcpFloor::Create(), &ServeTcpSlice);
  if (!pair.ok()) return pair.status();
  for (const CopyDirection direction : directions) {
    for (const int size : options.sizes) {
      for (const int outstanding : options.outstanding) {
        const CopySlice slice{.direction = direction,
                              .size = size,
                              .outstanding = outstanding,
                              .duration_ms = kSliceMs};
        absl::Status status = ReportPayloadPoint(*pair, slice, options.seconds, report);
        if (!status.ok()) return status;
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace verbena::benchmarks
