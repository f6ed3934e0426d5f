// rpc_instructions: the calls whose instructions benchmarks/rpc/instructions.py counts under
// callgrind.
//
// Client and server are two runtimes without threads over the in-process wire, or a device that is
// named, polled in turn by one thread, so every run executes the same instructions. Only what
// happens inside ClientTurns() and ServerTurns() is collected, which also splits the figure by
// side.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "benchmarks/rpc/bench.verbena.pb.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/rpc/policy.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/shard/open_device.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/connect/local_bootstrap.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/memory/buffer.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::benchmarks {

// A clock that does not move while calls are counted: reading the real one may take a path of its
// own.
class StillClock final : public Clock {
 public:
  TimePoint Now() override { return now_; }
  void Advance(Duration by) { now_ += by; }

 private:
  TimePoint now_ = TimePoint(std::chrono::seconds(1));
};

class EchoService final : public bench::Bench::Service {
 public:
  Task<absl::Status> Echo(ServerContext&, const bench::EchoMessage& request,
                          bench::EchoMessage& reply) override {
    reply.set_data(request.data());
    co_return absl::OkStatus();
  }
  Task<absl::Status> Fetch(ServerContext& context, const bench::PullRequest& request,
                           bench::EchoMessage&) override {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer block, co_await context.AllocateBuffer(request.size()));
    context.SetResponsePayload(std::move(block));
    co_return absl::OkStatus();
  }
  Task<absl::Status> Pull(ServerContext&, const bench::PullRequest& request,
                          ServerWriter<bench::EchoMessage>& messages) override {
    bench::EchoMessage message;
    message.set_data(std::string(request.size(), 'v'));
    for (uint32_t i = 0; i < request.messages(); ++i) {
      VERBENA_CO_RETURN_IF_ERROR(co_await messages.Write(message));
    }
    co_return absl::OkStatus();
  }
};

// Interceptors that do nothing themselves.
class ClientPassOn final : public ClientInterceptor {
 public:
  Task<absl::Status> Intercept(ClientCallView&, ClientNext next) override {
    co_return co_await next();
  }
};
class ServerPassOn final : public ServerInterceptor {
 public:
  Task<absl::Status> Intercept(ServerCallView&, ServerNext next) override {
    co_return co_await next();
  }
};

struct Sides {
  Runtime* client;
  Runtime* server;
};

// Named for callgrind's --toggle-collect; never inlined, so that the names are there.
[[gnu::noinline]] void ClientTurns(Sides sides) { sides.client->executor(0).Poll(); }
[[gnu::noinline]] void ServerTurns(Sides sides) { sides.server->executor(0).Poll(); }

namespace {

// A row of the kinds of calls that are counted.
enum class Kind {
  kEcho,          // plain unary calls
  kDeadline,      // the same with a deadline each
  kMetadata,      // the same with one entry of metadata each
  kInterceptors,  // the same through two interceptors on each side
  kRetry,         // the same with a retry policy, whose first attempt ends well
  kPayload,       // calls whose responses have a payload
  kStream,        // messages of a stream, which the client reads, each counted as a call
};

// Several servers in the place of one.
struct SetOfServers {
  // A policy by which one channel chooses; or the floor of policies: a channel to each server,
  // which the caller takes in turn ("turns") or at random ("random"), by calls with a route key if
  // "random_keyed". "": one server.
  std::string_view policy;
  int servers = 1;

  bool is_floor() const { return policy == "turns" || policy.starts_with("random"); }
  bool keyed() const { return policy == "route_key" || policy == "random_keyed"; }
};

using Stubs = std::vector<std::unique_ptr<bench::Bench::Stub>>;

constexpr size_t kBytes = 32;
constexpr uint32_t kPayloadBytes = 16 << 10;

[[noreturn]] void Fail(const absl::Status& status) {
  fmt::print(stderr, "rpc_instructions: {}\n", status.ToString());
  std::exit(1);
}

Metadata Tenant() {
  Metadata metadata;
  metadata.Add("tenant", "blue");
  return metadata;
}

std::optional<Balancing> PolicyNamed(std::string_view name) {
  if (name == "pick_first") return Balancing::kPickFirst;
  if (name == "round_robin") return Balancing::kRoundRobin;
  if (name == "weighted") return Balancing::kWeighted;
  if (name == "least_in_flight") return Balancing::kLeastInFlight;
  if (name == "route_key") return Balancing::kRouteKey;
  return std::nullopt;
}

Task<void> Call(bench::Bench::Stub& stub, Kind kind, int calls, int& left) {
  bench::EchoMessage request;
  bench::EchoMessage reply;
  request.set_data(std::string(kBytes, 'v'));
  for (int i = 0; i < calls; ++i) {
    absl::Status status = kind == Kind::kMetadata
                              ? co_await stub.Echo(request, reply, {.metadata = Tenant()})
                              : co_await stub.Echo(request, reply);
    if (!status.ok() || reply.data() != request.data()) Fail(status);
  }
  --left;
}

// Apart from Call(), whose own instructions the plain rows count.
Task<void> CallInTime(bench::Bench::Stub& stub, int calls, int& left) {
  bench::EchoMessage request;
  bench::EchoMessage reply;
  request.set_data(std::string(kBytes, 'v'));
  for (int i = 0; i < calls; ++i) {
    absl::Status status = co_await stub.Echo(request, reply, {.deadline = std::chrono::seconds(1)});
    if (!status.ok() || reply.data() != request.data()) Fail(status);
  }
  --left;
}

Task<void> Fetch(bench::Bench::Stub& stub, int calls, int& left) {
  bench::PullRequest request;
  request.set_size(kPayloadBytes);
  WithPayload<bench::EchoMessage> reply;
  for (int i = 0; i < calls; ++i) {
    absl::Status status = co_await stub.Fetch(request, reply);
    if (!status.ok() || reply.payload.size() != kPayloadBytes) Fail(status);
  }
  --left;
}

// Which of `stubs` each call takes; the same work for the caller whether one of them chooses or
// not.
std::vector<size_t> OrderOf(const Stubs& stubs, bool random, int calls) {
  std::vector<size_t> order;
  order.reserve(static_cast<size_t>(calls));
  std::minstd_rand generator(1);
  for (int i = 0; i < calls; ++i) {
    order.push_back((random ? generator() : static_cast<size_t>(i)) % stubs.size());
  }
  return order;
}

Task<void> CallSet(const Stubs& stubs, const std::vector<size_t>& order, bool keyed, int& left) {
  bench::EchoMessage request;
  bench::EchoMessage reply;
  request.set_data(std::string(kBytes, 'v'));
  uint64_t key = 0;
  for (const size_t place : order) {
    bench::Bench::Stub& stub = *stubs[place];
    ++key;
    absl::Status status = keyed ? co_await stub.Echo(request, reply, {.route_key = key})
                                : co_await stub.Echo(request, reply);
    if (!status.ok() || reply.data() != request.data()) Fail(status);
  }
  --left;
}

Task<void> Read(bench::Bench::Stub& stub, int messages, int& left) {
  bench::PullRequest request;
  request.set_size(kBytes);
  request.set_messages(static_cast<uint32_t>(messages));
  ClientReader<bench::EchoMessage> reader = stub.Pull(request);
  bench::EchoMessage message;
  int read = 0;
  while (co_await reader.Read(message)) ++read;
  absl::Status status = co_await reader.Finish();
  if (!status.ok() || read != messages) Fail(status);
  --left;
}

// Until all callers have ended. Polls before that connect are not collected, since the names of the
// turns are not on the stack then.
void Run(Sides sides, std::vector<Task<void>> callers, const int& left, bool collected) {
  for (Task<void>& caller : callers) sides.client->Spawn(std::move(caller));
  while (left > 0) {
    if (collected) {
      ClientTurns(sides);
      ServerTurns(sides);
    } else {
      sides.client->executor(0).Poll();
      sides.server->executor(0).Poll();
    }
  }
}

// `calls` calls by each of `outstanding` callers.
void RunCalls(Sides sides, const Stubs& stubs, Kind kind, const SetOfServers& set, int outstanding,
              int calls, bool collected) {
  int left = outstanding;
  // Calls before those that are collected connect to each server.
  const bool random = collected && set.policy.starts_with("random");
  const std::vector<size_t> order = OrderOf(stubs, random, calls);
  std::vector<Task<void>> callers;
  callers.reserve(static_cast<size_t>(outstanding));
  for (int i = 0; i < outstanding; ++i) {
    callers.push_back(!set.policy.empty()       ? CallSet(stubs, order, set.keyed(), left)
                      : kind == Kind::kStream   ? Read(*stubs[0], calls, left)
                      : kind == Kind::kPayload  ? Fetch(*stubs[0], calls, left)
                      : kind == Kind::kDeadline ? CallInTime(*stubs[0], calls, left)
                                                : Call(*stubs[0], kind, calls, left));
  }
  Run(sides, std::move(callers), left, collected);
}

absl::StatusOr<std::unique_ptr<internal::Device>> DeviceNamed(const char* name, Clock& clock) {
  if (name != nullptr) return internal::OpenDevice(name);
  return internal::SoftDevice::Create(
      {.engine_thread = false, .shared_memory = false, .clock = &clock});
}

Task<size_t> CountReady(Channel& channel) {
  size_t ready = 0;
  const absl::StatusOr<std::vector<ChannelServer>> servers = channel.Servers();
  if (!servers.ok()) Fail(servers.status());
  for (const ChannelServer& each : *servers) ready += each.state == ChannelServer::State::kReady;
  co_return ready;
}

// Connects to all servers of a set.
void AwaitReady(Sides sides, Channel& channel, size_t servers, StillClock& clock) {
  do {
    // Attempts to connect that failed are made again after a pause.
    clock.Advance(std::chrono::milliseconds(1));
    for (int i = 0; i < 100; ++i) {
      sides.client->executor(0).Poll();
      sides.server->executor(0).Poll();
    }
  } while (sides.client->BlockOn(CountReady(channel)) < servers);
}

int Main(int outstanding, int calls, Kind kind, const char* device_name, const SetOfServers& set,
         bool counted) {
  StillClock clock;
  absl::StatusOr<std::unique_ptr<internal::Device>> device = DeviceNamed(device_name, clock);
  if (!device.ok()) return fmt::print(stderr, "{}\n", device.status().ToString()), 1;
  LocalNetwork network;
  LocalBootstrap bootstrap(network);
  RuntimeOptions options{.mode = ExecutorMode::kBusy, .threads = false};
  options.use_bootstrap = &bootstrap;
  options.clock = &clock;
  options.metrics = counted;
  absl::StatusOr<std::unique_ptr<Runtime>> server_runtime =
      internal::RuntimeCore::Start(options, {.use = device->get()});
  absl::StatusOr<std::unique_ptr<Runtime>> client_runtime =
      internal::RuntimeCore::Start(options, {.use = device->get()});
  if (!server_runtime.ok() || !client_runtime.ok()) {
    return fmt::print(stderr, "{} {}\n", server_runtime.status().ToString(),
                      client_runtime.status().ToString()),
           1;
  }
  EchoService service;
  ServerOptions server_options;
  ChannelOptions channel_options;
  if (kind == Kind::kInterceptors) {
    server_options.interceptors = {2, std::make_shared<ServerPassOn>()};
    channel_options.interceptors = {2, std::make_shared<ClientPassOn>()};
  }
  if (kind == Kind::kRetry) {
    channel_options.service_config.methods = {{.retry = RetryPolicy()}};
  }
  std::vector<std::unique_ptr<Server>> servers;
  std::vector<std::string> targets;
  for (int i = 0; i < set.servers; ++i) {
    server_options.address = fmt::format("bench:{}", i + 1);
    absl::StatusOr<std::unique_ptr<Server>> server =
        Server::Start(**server_runtime, {&service}, server_options);
    if (!server.ok()) return fmt::print(stderr, "{}\n", server.status().ToString()), 1;
    targets.push_back((*server)->address());
    servers.push_back(*std::move(server));
  }
  const bool chooses = !set.policy.empty() && !set.is_floor();
  if (chooses) {
    channel_options.balancing = *PolicyNamed(set.policy);
    targets = {fmt::format("static:{}", fmt::join(targets, ","))};
  }
  std::vector<std::unique_ptr<Channel>> channels;
  Stubs stubs;
  for (const std::string& target : targets) {
    channels.push_back(std::make_unique<Channel>(**client_runtime, target, channel_options));
    stubs.push_back(std::make_unique<bench::Bench::Stub>(*channels.back()));
  }
  const Sides sides{client_runtime->get(), server_runtime->get()};
  const bool all = channel_options.balancing != Balancing::kPickFirst;
  if (chooses) AwaitReady(sides, *channels[0], all ? servers.size() : 1, clock);
  RunCalls(sides, stubs, kind, set, outstanding, /*calls=*/200, /*collected=*/false);
  RunCalls(sides, stubs, kind, set, outstanding, calls / outstanding, /*collected=*/true);
  fmt::print("{} calls, {} in flight\n", calls / outstanding * outstanding, outstanding);
  std::fflush(stdout);
  // Both sides would wait for each other to close, on one thread: the process just ends.
  std::_Exit(0);
}

std::optional<Kind> KindNamed(std::string_view name) {
  if (name == "echo") return Kind::kEcho;
  if (name == "deadline") return Kind::kDeadline;
  if (name == "metadata") return Kind::kMetadata;
  if (name == "interceptors") return Kind::kInterceptors;
  if (name == "retry") return Kind::kRetry;
  if (name == "payload") return Kind::kPayload;
  if (name == "stream") return Kind::kStream;
  return std::nullopt;
}

}  // namespace
}  // namespace verbena::benchmarks

int main(int argc, char** argv) {
  using verbena::benchmarks::KindNamed;
  const int outstanding = argc > 1 ? std::atoi(argv[1]) : 1;
  const int calls = argc > 2 ? std::atoi(argv[2]) : 4000;
  const auto kind = KindNamed(argc > 3 ? argv[3] : "echo");
  const char* device = argc > 4 && *argv[4] != '\0' ? argv[4] : nullptr;
  const verbena::benchmarks::SetOfServers set{argc > 5 ? argv[5] : "",
                                              argc > 6 ? std::atoi(argv[6]) : 1};
  const std::string_view counted = argc > 7 ? argv[7] : "counted";
  if (outstanding < 1 || calls < outstanding || !kind.has_value() || set.servers < 1 ||
      (counted != "counted" && counted != "uncounted") ||
      (set.policy.empty() ? set.servers > 1
                          : !set.is_floor() && !verbena::benchmarks::PolicyNamed(set.policy))) {
    fmt::print(
        stderr,
        "usage: rpc_instructions [calls in flight] [calls] "
        "[echo|deadline|metadata|interceptors|retry|payload|stream] [device, or \"\"] "
        "[pick_first|round_robin|weighted|least_in_flight|route_key|turns|random|random_keyed] "
        "[servers] [counted|uncounted]\n");
    return 2;
  }
  return verbena::benchmarks::Main(outstanding, calls, *kind, device, set, counted == "counted");
}
