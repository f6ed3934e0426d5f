// Three servers behind one channel, one of them slow: hedging takes the slow server out of the
// slowest calls. Then a server that fails: retries make up for it, but never run a mutation twice.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/retries/retries.verbena.pb.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/policy.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/task.h"

namespace retries {
namespace {

using namespace std::chrono_literals;
using verbena::Channel;
using verbena::ChannelServer;
using verbena::Duration;
using verbena::Runtime;
using verbena::Server;
using verbena::ServiceConfig;
using verbena::Task;

constexpr int kServers = 3;

class StockService final : public Stock::Service {
 public:
  std::atomic<bool> slow{false};
  std::atomic<int> refusals{0};  // calls of Add that are refused before they run
  std::atomic<int> failures{0};  // and that fail after they have run
  std::atomic<uint64_t> count{0};

 private:
  Task<absl::Status> Look(verbena::ServerContext&, const LookRequest&, LookReply& reply) override {
    // As if its disk were failing.
    if (slow) (void)co_await verbena::Sleep(20ms);
    reply.set_count(count);
    co_return absl::OkStatus();
  }

  Task<absl::Status> Add(verbena::ServerContext& context, const AddRequest& request,
                         AddReply&) override {
    if (refusals > 0) {
      --refusals;
      co_return context.NotExecuted(
          verbena::WithRetryAfter(absl::UnavailableError("not the leader yet"), 5ms));
    }
    count += request.count();
    if (failures > 0) {
      --failures;
      co_return absl::UnavailableError("the log is full");
    }
    co_return absl::OkStatus();
  }
};

struct Member {
  explicit Member(Runtime& runtime) {
    absl::StatusOr<std::unique_ptr<Server>> started = Server::Start(runtime, {&service});
    if (!started.ok()) {
      std::cerr << "a server does not start: " << started.status() << "\n";
      std::exit(1);
    }
    server = *std::move(started);
  }

  StockService service;
  std::unique_ptr<Server> server;
};

// Waits until all servers are connected, so that the figures are those of three.
Task<absl::Status> AwaitReady(Channel& channel) {
  uint64_t seen = 0;
  for (;;) {
    VERBENA_CO_ASSIGN_OR_RETURN(seen, co_await channel.ServersChanged(seen));
    VERBENA_CO_ASSIGN_OR_RETURN(const std::vector<ChannelServer> servers, channel.Servers());
    const auto ready = std::count_if(servers.begin(), servers.end(), [](const auto& each) {
      return each.state == ChannelServer::State::kReady;
    });
    if (ready == kServers) co_return absl::OkStatus();
  }
}

// How long each of `calls` calls took, one after the other, in order of time.
Task<std::vector<Duration>> LookOften(Channel& channel, int calls) {
  const Stock::Stub stock(channel);
  std::vector<Duration> took;
  for (int i = 0; i < calls; ++i) {
    verbena::CallInfo info;
    const absl::StatusOr<LookReply> reply =
        co_await stock.Look(LookRequest(), {.deadline = 10s, .info = &info});
    if (!reply.ok()) std::cout << "a call failed: " << reply.status() << "\n";
    took.push_back(info.elapsed);
  }
  std::sort(took.begin(), took.end());
  co_return took;
}

void Measure(const char* what, Runtime& client, const std::string& target, ServiceConfig config) {
  Channel channel(
      client, target,
      {.balancing = verbena::Balancing::kLeastInFlight, .service_config = std::move(config)});
  if (const absl::Status ready = client.BlockOn(AwaitReady(channel)); !ready.ok()) {
    std::cerr << "the servers: " << ready << "\n";
    std::exit(1);
  }
  const std::vector<Duration> took = client.BlockOn(LookOften(channel, 300));
  const auto milliseconds = [&took](size_t percent) {
    return std::chrono::duration<double, std::milli>(took[took.size() * percent / 100]).count();
  };
  std::cout << std::fixed << std::setprecision(1) << what << ": p50 " << milliseconds(50)
            << " ms, p99 " << milliseconds(99) << " ms, " << channel.retry_stats().hedges
            << " hedges for 300 calls\n";
}

void Hedge(Runtime& client, const std::string& target) {
  Measure("without hedging", client, target, {});
  Measure("with hedging", client, target,
          {.methods = {
               {.name = "retries.Stock/Look", .hedging = verbena::HedgingPolicy{.delay = 2ms}}}});
}

// As it stands in a file that several programs share; gRPC reads the same.
constexpr char kConfig[] = R"({
  "methodConfig": [{
    "name": [{"service": "retries.Stock"}],
    "timeout": "10s",
    "retryPolicy": {
      "maxAttempts": 4,
      "initialBackoff": "0.001s",
      "maxBackoff": "0.1s",
      "backoffMultiplier": 2,
      "retryableStatusCodes": ["UNAVAILABLE"]
    }
  }],
  "retryThrottling": {"maxTokens": 100, "tokenRatio": 0.1}
})";

Task<absl::Status> Add(Channel& channel) {
  const Stock::Stub stock(channel);
  AddRequest request;
  request.set_count(1);
  co_return (co_await stock.Add(request)).status();
}

void Retry(Runtime& client, Member& member) {
  absl::StatusOr<ServiceConfig> config = verbena::ParseServiceConfig(kConfig);
  if (!config.ok()) {
    std::cerr << "the service config: " << config.status() << "\n";
    std::exit(1);
  }
  Channel channel(client, member.server->address(), {.service_config = *std::move(config)});
  StockService& stock = member.service;
  stock.refusals = 2;
  const absl::Status refused = client.BlockOn(Add(channel));
  std::cout << "refused twice before it ran: " << (refused.ok() ? "OK" : "failed") << ", "
            << channel.retry_stats().attempts << " attempts, added " << stock.count << "\n";
  stock.count = 0;
  stock.failures = 1;
  const uint64_t before = channel.retry_stats().attempts;
  const absl::Status failed = client.BlockOn(Add(channel));
  std::cout << "failed after it ran: " << failed.message() << " ("
            << verbena::OutcomeName(verbena::OutcomeOf(failed)) << "), "
            << channel.retry_stats().attempts - before << " attempt, added " << stock.count << "\n";
}

int Main() {
  absl::StatusOr<std::unique_ptr<Runtime>> servers = Runtime::Start();
  absl::StatusOr<std::unique_ptr<Runtime>> client = Runtime::Start();
  if (!servers.ok() || !client.ok()) {
    std::cerr << servers.status() << " " << client.status() << "\n";
    return 1;
  }
  std::vector<std::unique_ptr<Member>> members;
  std::string target;
  for (int i = 0; i < kServers; ++i) {
    members.push_back(std::make_unique<Member>(**servers));
    target += (i == 0 ? "static:" : ",") + members.back()->server->address();
  }
  members[1]->service.slow = true;
  Hedge(**client, target);
  Retry(**client, *members[0]);
  return 0;
}

}  // namespace
}  // namespace retries

int main() { return retries::Main(); }
