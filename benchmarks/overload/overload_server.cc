#include "verbena/benchmarks/overload/overload_server.h"

#include <memory>

#include "benchmarks/overload/overload.verbena.pb.h"
#include "verbena/benchmarks/harness/drive.h"
#include "verbena/rpc/runtime.h"
#include "verbena/transport/executor/executor.h"

namespace verbena::benchmarks {
namespace {

class OverloadService final : public bench::Overload::Service {
 public:
  Task<absl::Status> Work(ServerContext&, const bench::WorkRequest&, bench::WorkReply&) override {
    const uint64_t until = NowNs() + static_cast<uint64_t>(kWorkTime.count());
    while (NowNs() < until) {
    }
    co_return absl::OkStatus();
  }
};

}  // namespace

absl::Status RunOverloadServer(const ServerOptions& options, int core, const Ready& ready) {
  absl::StatusOr<std::unique_ptr<Runtime>> runtime =
      Runtime::Start({.mode = ExecutorMode::kBusy, .cpus = {core}, .threads = false});
  if (!runtime.ok()) return runtime.status();
  OverloadService service;
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(**runtime, {&service}, options);
  if (!server.ok()) return server.status();
  ready((*server)->address());
  (*runtime)->executor(0).Run();
  return absl::OkStatus();
}

}  // namespace verbena::benchmarks
