// A server that has more calls than it can serve: a greedy client sends a thousand lookups at once,
// a modest one sends one after the other, and heartbeats. First each call starts when it
// arrives, then the server has bounds.

#include <chrono>
#include <iomanip>
#include <iostream>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/common/latencies.h"
#include "examples/overload/overload.verbena.pb.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/task.h"

namespace {

using examples::Latencies;
using overload::Store;
using verbena::Clock;
using verbena::Duration;
using verbena::Runtime;
using verbena::Task;
using verbena::TimePoint;

constexpr int kGreedyCalls = 1000;
constexpr Duration kWork = std::chrono::microseconds(50);
constexpr Duration kPhase = std::chrono::seconds(1);
constexpr Duration kHeartbeatEvery = std::chrono::milliseconds(10);

class StoreService final : public Store::Service {
  Task<absl::Status> Lookup(verbena::ServerContext&, const overload::LookupRequest&,
                            overload::LookupReply&) override {
    const TimePoint until = Clock::Real().Now() + kWork;
    while (Clock::Real().Now() < until) {
    }
    co_return absl::OkStatus();
  }
  Task<absl::Status> Heartbeat(verbena::ServerContext&, const overload::HeartbeatRequest&,
                               overload::HeartbeatReply&) override {
    co_return absl::OkStatus();
  }
};

struct Calls {
  Latencies served;
  uint64_t refused = 0;
  bool failed = false;  // otherwise than by a refusal
};

void Note(Calls& calls, TimePoint begin, const absl::Status& status) {
  if (status.ok()) calls.served.Record((Clock::Real().Now() - begin).count());
  if (absl::IsResourceExhausted(status)) ++calls.refused;
  calls.failed = calls.failed || (!status.ok() && !absl::IsResourceExhausted(status));
}

// Whether a client goes on: until its time is over and the server has served it once. On a busy
// machine it may begin late.
bool GoesOn(TimePoint until, const Calls& calls) {
  return Clock::Real().Now() < until || (calls.served.count() == 0 && !calls.failed);
}

Task<void> LookUp(verbena::Channel& channel, TimePoint until, Calls& calls) {
  Store::Stub store(channel);
  while (GoesOn(until, calls)) {
    const TimePoint begin = Clock::Real().Now();
    const absl::Status status = (co_await store.Lookup({})).status();
    Note(calls, begin, status);
    // A refused call was not executed: the same call may come again, after this long.
    std::optional<Duration> pause = verbena::RetryAfterOf(status);
    if (pause) (void)co_await verbena::Sleep(*pause);
  }
}

Task<void> SendHeartbeats(verbena::Channel& channel, TimePoint until, Calls& calls) {
  Store::Stub store(channel);
  while (GoesOn(until, calls)) {
    const TimePoint begin = Clock::Real().Now();
    const auto sent = co_await store.Heartbeat({}, {.priority = verbena::Priority::kControl});
    Note(calls, begin, sent.status());
    (void)co_await verbena::Sleep(kHeartbeatEvery);
  }
}

Task<void> BeGreedy(verbena::Channel& channel, TimePoint until, Calls& calls) {
  verbena::TaskScope scope(co_await verbena::CurrentContext());
  for (int i = 0; i < kGreedyCalls; ++i) scope.Spawn(LookUp(channel, until, calls));
  co_await scope.Join();
}

void Print(const char* name, const Calls& calls) {
  std::cout << std::setw(20) << name << std::setw(10) << calls.served.count() << std::setw(10)
            << calls.refused << std::setw(12) << calls.served.PercentileNs(50) / 1e6
            << std::setw(12) << calls.served.PercentileNs(99) / 1e6 << std::endl;
}

// Each client is a runtime, by which the server knows it.
absl::Status RunPhase(const char* title, const verbena::ServerOptions& options) {
  StoreService service;
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Runtime> runtime, Runtime::Start());
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<verbena::Server> server,
                           verbena::Server::Start(*runtime, {&service}, options));
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Runtime> greedy, Runtime::Start());
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Runtime> modest, Runtime::Start());
  Calls greedy_calls, modest_calls, heartbeats;
  {
    verbena::Channel greedy_channel(*greedy, server->address());
    verbena::Channel modest_channel(*modest, server->address());
    VERBENA_RETURN_IF_ERROR(greedy->BlockOn(greedy_channel.Connect()));
    VERBENA_RETURN_IF_ERROR(modest->BlockOn(modest_channel.Connect()));
    const TimePoint until = Clock::Real().Now() + kPhase;
    auto one = greedy->Spawn(BeGreedy(greedy_channel, until, greedy_calls));
    auto two = modest->Spawn(LookUp(modest_channel, until, modest_calls));
    auto three = modest->Spawn(SendHeartbeats(modest_channel, until, heartbeats));
    one.Join();
    two.Join();
    three.Join();
  }
  std::cout << title << "\n"
            << std::setw(20) << "" << std::setw(10) << "served" << std::setw(10) << "refused"
            << std::setw(12) << "p50 ms" << std::setw(12) << "p99 ms" << std::endl;
  Print("the greedy client", greedy_calls);
  Print("the modest client", modest_calls);
  Print("its heartbeats", heartbeats);
  return absl::OkStatus();
}

absl::Status Run() {
  std::cout << std::fixed << std::setprecision(2);
  VERBENA_RETURN_IF_ERROR(RunPhase("each call starts when it arrives", {}));
  return RunPhase("with bounds", {.admission = {.max_running = 64,
                                                .max_queue_age = std::chrono::milliseconds(2)}});
}

}  // namespace

int main() {
  absl::Status status = Run();
  if (!status.ok()) return std::cerr << status << std::endl, 1;
  return 0;
}
