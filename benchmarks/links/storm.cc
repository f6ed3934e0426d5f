#include "verbena/benchmarks/links/storm.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "benchmarks/rpc/bench.verbena.pb.h"
#include "fmt/format.h"
#include "verbena/benchmarks/harness/drive.h"
#include "verbena/benchmarks/harness/latency_histogram.h"
#include "verbena/benchmarks/harness/server_process.h"
#include "verbena/benchmarks/links/crowd.h"
#include "verbena/benchmarks/links/held_address.h"
#include "verbena/benchmarks/links/links_server.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/base/status.h"

namespace verbena::benchmarks {
namespace {

constexpr int kExecutors = 4;
constexpr int kStormMessageBytes = 32;
constexpr std::chrono::seconds kStormDeadline{60};

// Signals of the crowd, in the order in which they are given.
enum Signal { kFloor, kFirst, kAgain, kSignals };

absl::Status Failed(const char* what) {
  return absl::InternalError(fmt::format("{}: {}", what, std::strerror(errno)));
}

// Sends one byte back on each connection, and closes it.
absl::Status RunFloorServer(const Ready& ready) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener, generic, bytes) != 0 || listen(listener, SOMAXCONN) != 0 ||
      getsockname(listener, generic, &bytes) != 0) {
    return Failed("listening");
  }
  ready(std::to_string(ntohs(address.sin_port)));
  for (;;) {
    const int fd = accept(listener, nullptr, nullptr);
    if (fd < 0) return Failed("accept");
    char byte = 0;
    if (read(fd, &byte, 1) == 1 && write(fd, &byte, 1) != 1) return Failed("write");
    close(fd);
  }
}

// Makes all of a client's connections, and then sends a byte over each and waits for it.
void ConnectBarely(uint16_t port, const Crowd::Member& me) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  std::array<int, kExecutors> fds{};
  absl::Status status;
  for (int& fd : fds) {
    fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
        write(fd, "b", 1) != 1) {
      status.Update(Failed("connect"));
    }
  }
  for (const int fd : fds) {
    char byte = 0;
    if (status.ok() && read(fd, &byte, 1) != 1) status = Failed("read");
    me.Tell(status);
    close(fd);
  }
}

// With `again` the client may not have noticed yet that its link is lost. A call over that link
// then fails as one that may have run, and this function repeats it.
Task<void> CallOnce(bench::Bench::Stub& stub, bool again, const Crowd::Member& me) {
  bench::EchoMessage request;
  request.mutable_data()->resize(kStormMessageBytes);
  absl::Status status;
  do {
    status = (co_await stub.Echo(request, {.deadline = kStormDeadline, .wait_for_ready = again}))
                 .status();
  } while (again && absl::IsUnavailable(status) && OutcomeOf(status) == Outcome::kMaybeExecuted);
  me.Tell(status);
}

absl::Status BeClient(const std::string& device, const std::string& address, uint16_t floor_port,
                      const Crowd::Member& me) {
  RuntimeOptions options{.executors = kExecutors, .device = device};
  // These limits suffice for one call at a time. Hundreds of executors then take little memory.
  options.limits.max_links = 16;
  options.limits.srq_depth = 256;
  options.limits.send_buffers = 64;
  absl::StatusOr<std::unique_ptr<Runtime>> runtime = Runtime::Start(std::move(options));
  me.Tell(runtime.status());
  if (!runtime.ok()) return runtime.status();
  Channel channel(**runtime, address);
  bench::Bench::Stub stub(channel);
  if (!me.Await(kFloor)) return absl::OkStatus();
  ConnectBarely(floor_port, me);
  for (const Signal signal : {kFirst, kAgain}) {
    if (!me.Await(signal)) return absl::OkStatus();
    std::vector<JoinHandle<void>> calls;
    calls.reserve(kExecutors);
    for (int i = 0; i < kExecutors; ++i) {
      calls.push_back((*runtime)->Spawn(CallOnce(stub, signal == kAgain, me), i));
    }
    for (JoinHandle<void>& call : calls) call.Join();
  }
  for (;;) pause();
}

// The times of those calls of one storm that ended well.
struct Times {
  Times(uint64_t begin, const Crowd::Done& calls) : failed(calls.failed) {
    for (const uint64_t end : calls.times) {
      const uint64_t took = std::max(end, begin) - begin;
      all.Record(took);
      last_ns = std::max(last_ns, took);
    }
  }

  LatencyHistogram all;
  uint64_t last_ns = 0;
  int failed;
};

absl::Status Add(const char* bench, const std::string& device, int clients, const Times& floor,
                 const Times& times, const HandshakeCounts& counts, Report& report) {
  const int links = clients * kExecutors;
  const auto lost = static_cast<double>(counts.failed + counts.evicted);
  const double last_ms = static_cast<double>(times.last_ns) / 1e6;
  const double floor_ms = static_cast<double>(floor.last_ns) / 1e6;
  Row row{.bench = bench,
          .device = RunsOverTcp(device) ? "tcp" : "shm",
          .mode = "adaptive",
          .size = kStormMessageBytes,
          .outstanding = links,
          .p50_us = times.all.PercentileNs(50) / 1e3,
          .p99_us = times.all.PercentileNs(99) / 1e3,
          .floor_p50_us = floor.all.PercentileNs(50) / 1e3};
  row.extra = {{"clients", clients},
               {"links", links},
               {"last_call_ms", last_ms},
               {"floor_last_ms", floor_ms},
               {"last_to_floor", last_ms / floor_ms},
               {"failed_calls", times.failed},
               {"failed_handshakes", static_cast<double>(counts.failed)},
               {"evicted_handshakes", static_cast<double>(counts.evicted)},
               {"links_refused", static_cast<double>(counts.links_refused)},
               {"failed_handshakes_per_link", lost / links}};
  report.Add(row);
  if (times.failed == 0) return absl::OkStatus();
  return absl::InternalError(fmt::format("{} of {} calls failed", times.failed, links));
}

}  // namespace

absl::Status MeasureStorm(const std::string& device, int clients, Report& report) {
  const int links = clients * kExecutors;
  VERBENA_ASSIGN_OR_RETURN(ServerProcess floor_server,
                           ServerProcess::Start("links_bench", RunFloorServer));
  const auto floor_port = static_cast<uint16_t>(std::stoi(floor_server.address()));
  const HeldAddress held;
  const std::string& address = held.text();
  VERBENA_ASSIGN_OR_RETURN(GuidedServer first, GuidedServer::Start(device, address));
  std::optional<GuidedServer> server(std::move(first));
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Crowd> crowd,
                           Crowd::Start(clients, kSignals, [&](Crowd::Member& me) {
                             return BeClient(device, address, floor_port, me);
                           }));
  VERBENA_RETURN_IF_ERROR(crowd->AwaitAll(clients).status());

  uint64_t begin = crowd->Signal(kFloor);
  VERBENA_ASSIGN_OR_RETURN(const std::vector<uint64_t> bare, crowd->AwaitAll(links));
  const Times floor(begin, {.times = bare});

  begin = crowd->Signal(kFirst);
  VERBENA_ASSIGN_OR_RETURN(Crowd::Done calls, crowd->Await(links));
  VERBENA_ASSIGN_OR_RETURN(HandshakeCounts counts, server->Count());
  VERBENA_RETURN_IF_ERROR(
      Add("storm", device, clients, floor, Times(begin, calls), counts, report));

  server.reset();  // killed
  begin = crowd->Signal(kAgain);
  VERBENA_ASSIGN_OR_RETURN(GuidedServer second, GuidedServer::Start(device, address));
  VERBENA_ASSIGN_OR_RETURN(calls, crowd->Await(links));
  VERBENA_ASSIGN_OR_RETURN(counts, second.Count());
  return Add("comeback", device, clients, floor, Times(begin, calls), counts, report);
}

}  // namespace verbena::benchmarks
