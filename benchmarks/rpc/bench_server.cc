#include "verbena/benchmarks/rpc/bench_server.h"

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_join.h"
#include "benchmarks/rpc/bench.verbena.pb.h"
#include "verbena/benchmarks/harness/cpu_time.h"
#include "verbena/benchmarks/rpc/allocation_count.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/link/endpoint.h"

namespace verbena::benchmarks {
namespace {

class BenchService final : public bench::Bench::Service {
 public:
  explicit BenchService(Runtime& runtime) : runtime_(runtime) {}

  Task<absl::Status> Echo(ServerContext&, const bench::EchoMessage& request,
                          bench::EchoMessage& reply) override {
    ++calls_;
    reply.set_data(request.data());
    co_return absl::OkStatus();
  }

  Task<absl::Status> Pull(ServerContext&, const bench::PullRequest& request,
                          ServerWriter<bench::EchoMessage>& writer) override {
    bench::EchoMessage message;
    message.mutable_data()->resize(request.size());
    for (uint8_t round = 0;; ++round) {
      std::string& data = *message.mutable_data();
      data.front() = static_cast<char>(round);
      data.back() = static_cast<char>(~round);
      absl::Status written = co_await writer.Write(message);
      if (!written.ok()) co_return written;
    }
  }

  // Carried out by the thread that runs the executor, once this handler has stopped it.
  Task<absl::Status> Control(ServerContext&, const bench::ControlRequest& request,
                             bench::ServerCounters& reply) override {
    const LinkStats traffic = (*internal::CoreOf(runtime_).shard(0).EndpointOn(0))->stats().traffic;
    reply.set_allocations(AllocationCount());
    reply.set_cpu_us(CpuNanoseconds() / 1000);
    reply.set_calls(calls_);
    reply.set_sends(traffic.sends);
    reply.set_frames_sent(traffic.frames_sent);
    reply.set_receives(traffic.receives);
    reply.set_frames_received(traffic.frames_received);
    reply.set_doorbells(traffic.doorbells);
    reply.set_credit_waits(traffic.credit_waits);
    action_ = request.action();
    if (action_ != bench::ControlRequest::NOTHING) runtime_.executor(0).Stop();
    co_return absl::OkStatus();
  }

  bench::ControlRequest::Action TakeAction() {
    return std::exchange(action_, bench::ControlRequest::NOTHING);
  }

 private:
  Runtime& runtime_;
  uint64_t calls_ = 0;
  bench::ControlRequest::Action action_ = bench::ControlRequest::NOTHING;
};

// One runtime, and what it serves on the calling thread.
class ServingRuntime {
 public:
  static absl::StatusOr<std::unique_ptr<ServingRuntime>> Start(const BenchServerOptions& options,
                                                               bool metrics) {
    absl::StatusOr<std::unique_ptr<Runtime>> runtime = Runtime::Start({.mode = options.mode,
                                                                       .cpus = {options.core},
                                                                       .device = options.device,
                                                                       .threads = false,
                                                                       .metrics = metrics});
    if (!runtime.ok()) return runtime.status();
    std::unique_ptr<ServingRuntime> serving(new ServingRuntime(*std::move(runtime)));
    absl::StatusOr<std::unique_ptr<Server>> server =
        Server::Start(*serving->runtime_, {&serving->service_});
    if (!server.ok()) return server.status();
    serving->server_ = *std::move(server);
    return serving;
  }

  const std::string& address() const { return server_->address(); }

  // Serves until a client asks this thread for something. Returns that.
  bench::ControlRequest::Action Serve() {
    runtime_->executor(0).Run();
    return service_.TakeAction();
  }

 private:
  explicit ServingRuntime(std::unique_ptr<Runtime> runtime)
      : runtime_(std::move(runtime)), service_(*runtime_) {}

  const std::unique_ptr<Runtime> runtime_;
  BenchService service_;
  std::unique_ptr<Server> server_;
};

}  // namespace

absl::Status RunBenchServer(const BenchServerOptions& options,
                            const std::function<absl::Status()>& serve_floor, const Ready& ready) {
  std::vector<std::unique_ptr<ServingRuntime>> runtimes;
  std::vector<std::string> addresses;
  for (const bool metrics : options.metrics) {
    absl::StatusOr<std::unique_ptr<ServingRuntime>> started =
        ServingRuntime::Start(options, metrics);
    if (!started.ok()) return started.status();
    addresses.push_back((*started)->address());
    runtimes.push_back(*std::move(started));
  }
  ready(absl::StrJoin(addresses, " "));
  size_t serving = 0;
  while (true) {
    switch (runtimes[serving]->Serve()) {
      case bench::ControlRequest::QUIT:
        return absl::OkStatus();
      case bench::ControlRequest::SERVE_NEXT:
        serving = (serving + 1) % runtimes.size();
        break;
      case bench::ControlRequest::SERVE_FLOOR_SLICE:
        if (absl::Status status = serve_floor(); !status.ok()) return status;
        break;
      default:
        break;
    }
  }
}

}  // namespace verbena::benchmarks
