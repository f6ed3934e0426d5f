#include "verbena/benchmarks/payload/payload_server.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "benchmarks/payload/payload_bench.verbena.pb.h"
#include "verbena/benchmarks/harness/stamps.h"
#include "verbena/rpc/memory.h"
#include "verbena/rpc/server.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/executor/executor.h"

namespace verbena::benchmarks {
namespace {

Stamps Which(const bench::Block& block) {
  if (block.ends()) return Stamps::kEnds;
  return block.all_words() ? Stamps::kAllWords : Stamps::kPages;
}

class PayloadService final : public bench::PayloadBench::Service {
 public:
  explicit PayloadService(Executor& executor) : executor_(executor) {}

  Task<absl::Status> Read(ServerContext& context, const bench::Block& wanted,
                          bench::Nothing&) override {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer block, co_await context.AllocateBuffer(wanted.bytes()));
    WriteStamps(block.data(), block.size(), wanted.number(), Which(wanted));
    context.SetResponsePayload(std::move(block));
    co_return absl::OkStatus();
  }

  Task<absl::Status> Write(ServerContext& context, const bench::Block& sent,
                           bench::Nothing&) override {
    const Buffer block = context.TakeRequestPayload();
    if (block.size() != sent.bytes() ||
        !HasStamps(block.data(), block.size(), sent.number(), Which(sent))) {
      co_return absl::DataLossError("a payload that was written is wrong");
    }
    co_return absl::OkStatus();
  }

  Task<absl::Status> Lend(ServerContext& context, const bench::Blocks& wanted,
                          bench::LentBlocks& lent) override {
    while (!loans_.empty()) {
      Loan loan = std::move(loans_.back());
      loans_.pop_back();
      VERBENA_CO_RETURN_IF_ERROR(co_await std::move(loan).End());
    }
    lent_.clear();
    for (uint64_t i = 0; i < wanted.count(); ++i) {
      VERBENA_CO_ASSIGN_OR_RETURN(Buffer block, co_await context.AllocateBuffer(wanted.bytes()));
      VERBENA_CO_ASSIGN_OR_RETURN(
          Loan loan, co_await context.Lend(block.view(), LeaseAccess::kRead | LeaseAccess::kWrite));
      *lent.add_blocks() = loan.handle();
      lent_.push_back(std::move(block));
      loans_.push_back(std::move(loan));
    }
    co_return absl::OkStatus();
  }

  Task<absl::Status> Echo(ServerContext&, const bench::SmallMessage& request,
                          bench::SmallMessage& reply) override {
    reply.set_data(request.data());
    co_return absl::OkStatus();
  }

  Task<absl::Status> ServeFloorSlice(ServerContext&, const bench::Nothing&,
                                     bench::Nothing&) override {
    executor_.Stop();
    co_return absl::OkStatus();
  }

 private:
  Executor& executor_;
  std::vector<Buffer> lent_;
  std::vector<Loan> loans_;
};

}  // namespace

absl::Status RunPayloadServer(const RuntimeOptions& options,
                              const std::function<absl::Status()>& serve_floor,
                              const Ready& ready) {
  absl::StatusOr<std::unique_ptr<Runtime>> runtime = Runtime::Start(options);
  if (!runtime.ok()) return runtime.status();
  Executor& executor = (*runtime)->executor(0);
  PayloadService service(executor);
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(**runtime, {&service});
  if (!server.ok()) return server.status();
  ready((*server)->address());
  while (true) {
    executor.Run();
    if (absl::Status status = serve_floor(); !status.ok()) return status;
  }
}

}  // namespace verbena::benchmarks
