#include "verbena/benchmarks/links/links_server.h"

#include <sys/resource.h>
#include <sys/wait.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <utility>

#include "benchmarks/rpc/bench.verbena.pb.h"
#include "fmt/format.h"
#include "verbena/benchmarks/harness/drive.h"
#include "verbena/rpc/server.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/executor/executor.h"

namespace verbena::benchmarks {
namespace {

constexpr std::chrono::minutes kServerPatience{2};
// As many as 4,000 links with 16 calls each have.
constexpr uint32_t kMaxCalls = 65536;

class LinksService final : public bench::Bench::Service {
 public:
  Task<absl::Status> Echo(ServerContext&, const bench::EchoMessage& request,
                          bench::EchoMessage& reply) override {
    reply.set_data(request.data());
    co_return absl::OkStatus();
  }
  Task<absl::Status> Pull(ServerContext&, const bench::PullRequest& request,
                          ServerWriter<bench::EchoMessage>& writer) override {
    bench::EchoMessage message;
    message.mutable_data()->resize(request.size());
    for (;;) VERBENA_CO_RETURN_IF_ERROR(co_await writer.Write(message));
  }
  Task<absl::Status> Fetch(ServerContext& context, const bench::PullRequest& request,
                           bench::EchoMessage&) override {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer answer, co_await context.AllocateBuffer(request.size()));
    context.SetResponsePayload(std::move(answer));
    co_return absl::OkStatus();
  }
  Task<absl::Status> Control(ServerContext&, const bench::ControlRequest&,
                             bench::ServerCounters&) override {
    co_return absl::UnimplementedError("this server has no counters");
  }
};

}  // namespace

void RaiseDescriptorLimit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

std::unique_ptr<Service> MakeLinksService() { return std::make_unique<LinksService>(); }

absl::StatusOr<GuidedServer> GuidedServer::Start(const std::string& device,
                                                 const std::string& address) {
  auto pipes = std::make_unique<Pipes>();
  VERBENA_ASSIGN_OR_RETURN(ServerProcess process,
                           ServerProcess::Start("links_bench", [&](const Ready& ready) {
                             return Serve(device, address, *pipes, ready);
                           }));
  return GuidedServer(std::move(pipes), std::move(process));
}

absl::StatusOr<HandshakeCounts> GuidedServer::Count() const {
  pipes_->commands.Write(-1);
  HandshakeCounts counts;
  VERBENA_RETURN_IF_ERROR(pipes_->answers.ReadWithin(counts, kServerPatience));
  return counts;
}

absl::StatusOr<Duration> GuidedServer::ShutDown(Duration grace) const {
  const uint64_t begin = NowNs();
  pipes_->commands.Write(grace.count());
  siginfo_t end{};
  // The destructor of ServerProcess takes the exit status.
  if (waitid(P_PID, static_cast<id_t>(process_.pid()), &end, WEXITED | WNOWAIT) != 0) {
    return absl::InternalError(fmt::format("waitid: {}", std::strerror(errno)));
  }
  if (end.si_code != CLD_EXITED || end.si_status != 0) {
    return absl::InternalError("the server did not end well");
  }
  return Duration(NowNs() - begin);
}

absl::Status GuidedServer::Serve(const std::string& device, const std::string& address,
                                 const Pipes& pipes, const Ready& ready) {
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Runtime> runtime, Runtime::Start({.device = device}));
  LinksService service;
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Server> server,
                           Server::Start(*runtime, {&service}, {.address = address}));
  ready(server->address());
  for (Command command = 0; pipes.commands.Read(command);) {
    if (command >= 0) {
      server->Shutdown(Duration(command));
      break;
    }
    const ServerStats stats = server->stats();
    pipes.answers.Write({.failed = stats.handshakes_failed,
                         .evicted = stats.handshakes_evicted,
                         .links_refused = stats.links_refused});
  }
  return absl::OkStatus();
}

absl::Status RunLinksServer(const LinkLimits& limits, int core, const Ready& ready) {
  RuntimeOptions options;
  options.mode = ExecutorMode::kAdaptive;
  options.cpus = {core};
  options.device = "soft";
  options.limits = limits;
  options.threads = false;
  absl::StatusOr<std::unique_ptr<Runtime>> runtime = Runtime::Start(std::move(options));
  if (!runtime.ok()) return runtime.status();
  LinksService service;
  // One client opens all links, and has all calls.
  ServerOptions server_options;
  HandshakeLimits& handshakes = server_options.handshakes;
  handshakes.links_per_client = handshakes.links_per_source = limits.max_links;
  server_options.max_concurrent_calls = kMaxCalls;
  server_options.max_calls_per_client = server_options.max_calls_per_source = kMaxCalls;
  absl::StatusOr<std::unique_ptr<Server>> server =
      Server::Start(**runtime, {&service}, server_options);
  if (!server.ok()) return server.status();
  ready((*server)->address());
  (*runtime)->executor(0).Run();
  return absl::OkStatus();
}

}  // namespace verbena::benchmarks
