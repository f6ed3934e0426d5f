#include "verbena/benchmarks/rpc/bench_server.h"

#include <memory>

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

}  // namespace

absl::Status RunBenchServer(const BenchServerOptions& options,
                            const std::function<absl::Status()>& serve_floor, const Ready& ready) {
  absl::StatusOr<std::unique_ptr<Runtime>> runtime = Runtime::Start(
      {.mode = options.mode, .cpus = {options.core}, .device = options.device, .threads = false});
  if (!runtime.ok()) return runtime.status();
  BenchService service(**runtime);
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(**runtime, {&service});
  if (!server.ok()) return server.status();
  ready((*server)->address());
  while (true) {
    (*runtime)->executor(0).Run();
    const bench::ControlRequest::Action action = service.TakeAction();
    if (action == bench::ControlRequest::QUIT) return absl::OkStatus();
    if (action != bench::ControlRequest::SERVE_FLOOR_SLICE) continue;
    if (absl::Status status = serve_floor(); !status.ok()) return status;
  }
}

}  // namespace verbena::benchmarks
