#include "verbena/benchmarks/links/restarts.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "benchmarks/rpc/bench.verbena.pb.h"
#include "verbena/benchmarks/harness/drive.h"
#include "verbena/benchmarks/harness/median.h"
#include "verbena/benchmarks/harness/server_process.h"
#include "verbena/benchmarks/links/held_address.h"
#include "verbena/benchmarks/links/links_server.h"
#include "verbena/benchmarks/links/pipe.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/server.h"
#include "verbena/transport/base/status.h"

namespace verbena::benchmarks {
namespace {

constexpr int kRestartReadBytes = 1 << 20;
constexpr int kCallers = 2;
constexpr std::chrono::seconds kDeadline{60};
constexpr std::chrono::minutes kRestartPatience{2};

Task<absl::Status> ReadOnce(bench::Bench::Stub& stub) {
  bench::PullRequest request;
  request.set_size(kRestartReadBytes);
  WithPayload<bench::EchoMessage> reply;
  co_return co_await stub.Fetch(
      request, reply,
      {.deadline = kDeadline, .max_response_payload = kRestartReadBytes, .wait_for_ready = true});
}

// Repeats a read until one ends well, or fails for another reason than the loss of its link.
Task<absl::Status> ReadAgain(bench::Bench::Stub& stub) {
  absl::Status status;
  do {
    status = co_await ReadOnce(stub);
  } while (absl::IsUnavailable(status));
  co_return status;
}

Task<void> ReadAgainAndAgain(bench::Bench::Stub& stub) {
  while ((co_await ReadAgain(stub)).ok()) {
  }
}

// One of the two processes.
class Neighbour {
 public:
  // Returns when the neighbour listens at `self`. It calls `other`.
  static absl::StatusOr<Neighbour> Start(const std::string& device, const std::string& self,
                                         const std::string& other) {
    auto pipes = std::make_unique<Pipes>();
    VERBENA_ASSIGN_OR_RETURN(ServerProcess process,
                             ServerProcess::Start("links_bench", [&](const Ready& ready) {
                               return Be(device, self, other, *pipes, ready);
                             }));
    return Neighbour(std::move(pipes), std::move(process));
  }

  // Has the neighbour begin a call to the other one now.
  void Ask() const { pipes_->asked.Write('a'); }
  // Returns the time at which that call has ended well.
  absl::StatusOr<uint64_t> Answer() const {
    uint64_t at_ns = 0;
    VERBENA_RETURN_IF_ERROR(pipes_->answers.ReadWithin(at_ns, kRestartPatience));
    if (at_ns == 0) return absl::InternalError("a call of a neighbour failed");
    return at_ns;
  }

 private:
  struct Pipes {
    Pipe<char> asked;
    Pipe<uint64_t> answers;
  };

  Neighbour(std::unique_ptr<Pipes> pipes, ServerProcess process)
      : pipes_(std::move(pipes)), process_(std::make_unique<ServerProcess>(std::move(process))) {}

  static absl::Status Be(const std::string& device, const std::string& self,
                         const std::string& other, const Pipes& pipes, const Ready& ready) {
    VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Runtime> runtime, Runtime::Start({.device = device}));
    const std::unique_ptr<Service> service = MakeLinksService();
    VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Server> server,
                             Server::Start(*runtime, {service.get()}, {.address = self}));
    ready(self);
    Channel channel(*runtime, other);
    bench::Bench::Stub stub(channel);
    for (int i = 0; i < kCallers; ++i) runtime->Spawn(ReadAgainAndAgain(stub));
    for (char asked = 0; pipes.asked.Read(asked);) {
      const absl::Status called = runtime->BlockOn(ReadAgain(stub));
      pipes.answers.Write(called.ok() ? NowNs() : 0);
      if (!called.ok()) return called;
    }
    return absl::OkStatus();
  }

  std::unique_ptr<Pipes> pipes_;
  std::unique_ptr<ServerProcess> process_;
};

double MillisecondsBetween(uint64_t begin, uint64_t end) {
  return static_cast<double>(end - begin) / 1e6;
}

}  // namespace

absl::Status MeasureRestarts(const std::string& device, int restarts, Report& report) {
  const std::array<HeldAddress, 2> addresses;
  const auto start = [&](size_t index) {
    return Neighbour::Start(device, addresses[index].text(), addresses[1 - index].text());
  };
  std::vector<Neighbour> neighbours;
  for (size_t i = 0; i < addresses.size(); ++i) {
    VERBENA_ASSIGN_OR_RETURN(Neighbour neighbour, start(i));
    neighbours.push_back(std::move(neighbour));
  }
  std::vector<double> to_listen_ms;
  std::vector<double> to_call_ms;
  for (int i = 0; i < restarts; ++i) {
    // The two are killed in turn, each after both have made a call that ended well.
    for (const Neighbour& each : neighbours) each.Ask();
    for (const Neighbour& each : neighbours) {
      VERBENA_RETURN_IF_ERROR(each.Answer().status());
    }
    const size_t victim = static_cast<size_t>(i) % neighbours.size();
    const Neighbour& survivor = neighbours[1 - victim];
    const uint64_t killed = NowNs();
    {
      const Neighbour dies = std::move(neighbours[victim]);
    }
    survivor.Ask();
    VERBENA_ASSIGN_OR_RETURN(neighbours[victim], start(victim));
    to_listen_ms.push_back(MillisecondsBetween(killed, NowNs()));
    VERBENA_ASSIGN_OR_RETURN(const uint64_t called, survivor.Answer());
    to_call_ms.push_back(MillisecondsBetween(killed, called));
  }
  Row row{.bench = "restart",
          .device = RunsOverTcp(device) ? "tcp" : "shm",
          .mode = "adaptive",
          .size = kRestartReadBytes,
          .outstanding = kCallers,
          .p50_us = Median(to_call_ms) * 1e3,
          .floor_p50_us = Median(to_listen_ms) * 1e3};
  row.extra = {{"restarts", restarts},
               {"longest_ms", *std::max_element(to_call_ms.begin(), to_call_ms.end())},
               {"floor_longest_ms", *std::max_element(to_listen_ms.begin(), to_listen_ms.end())}};
  report.Add(row);
  return absl::OkStatus();
}

}  // namespace verbena::benchmarks
