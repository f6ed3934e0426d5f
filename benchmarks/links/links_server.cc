#include "verbena/benchmarks/links/links_server.h"

#include <sys/resource.h>

#include <memory>

#include "benchmarks/rpc/bench.verbena.pb.h"
#include "verbena/rpc/server.h"
#include "verbena/transport/executor/executor.h"

namespace verbena::benchmarks {
namespace {

class EchoService final : public bench::Bench::Service {
 public:
  Task<absl::Status> Echo(ServerContext&, const bench::EchoMessage& request,
                          bench::EchoMessage& reply) override {
    reply.set_data(request.data());
    co_return absl::OkStatus();
  }
  Task<absl::Status> Control(ServerContext&, const bench::ControlRequest&,
                             bench::ServerCounters&) override {
    co_return absl::UnimplementedError("this server only echoes");
  }
};

}  // namespace

void RaiseDescriptorLimit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
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
  EchoService service;
  // One client opens all links.
  HandshakeLimits handshakes;
  handshakes.links_per_client = handshakes.links_per_source = limits.max_links;
  absl::StatusOr<std::unique_ptr<Server>> server =
      Server::Start(**runtime, {&service}, {.handshakes = handshakes});
  if (!server.ok()) return server.status();
  ready((*server)->address());
  (*runtime)->executor(0).Run();
  return absl::OkStatus();
}

}  // namespace verbena::benchmarks
