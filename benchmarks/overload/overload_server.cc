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
  Task<absl::Status> Work(ServerContext&, const bench::WorkRequest& request,
                          bench::WorkReply&) override {
    const uint64_t begin = NowNs();
    ++starts_;
    if (request.late_from_ns() != 0 && begin >= request.late_from_ns()) ++late_;
    const uint64_t work_ns = request.work_us() != 0 ? uint64_t{request.work_us()} * 1000
                                                    : static_cast<uint64_t>(kWorkTime.count());
    while (NowNs() < begin + work_ns) {
    }
    co_return absl::OkStatus();
  }
  Task<absl::Status> Starts(ServerContext&, const bench::StartsRequest&,
                            bench::StartsReply& reply) override {
    reply.set_all(starts_);
    reply.set_late(late_);
    co_return absl::OkStatus();
  }

 private:
  uint64_t starts_ = 0;
  uint64_t late_ = 0;
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
