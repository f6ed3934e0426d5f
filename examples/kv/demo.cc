#include "examples/kv/demo.h"

#include <unistd.h>

#include <cstdio>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/common/amounts.h"
#include "examples/common/phase.h"
#include "examples/common/progress.h"
#include "examples/common/run_phase.h"
#include "examples/common/server_process.h"
#include "examples/common/signals.h"
#include "examples/kv/corpus.h"
#include "examples/kv/report.h"
#include "examples/kv/workers.h"
#include "fmt/format.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/task.h"

namespace kv {

using examples::Counted;
using examples::PhaseReport;
using examples::Progress;
using examples::ServerProcess;
using examples::Sized;
using examples::StopSignals;

namespace {

std::string Inventory(const Corpus& corpus) {
  std::string text = fmt::format("{}, {}, {} in all, under {}\n", Counted(corpus.files(), "file"),
                                 Counted(corpus.lines(), "line"), Sized(corpus.bytes()),
                                 Counted(corpus.distinct_keys(), "key"));
  if (corpus.long_lines() > 0) {
    text += fmt::format("{} too long for one message, stored as {}\n",
                        Counted(corpus.long_lines(), "line"), Counted(corpus.parts(), "part"));
  }
  return text;
}

class Demo {
 public:
  Demo(const DemoOptions& options, const Corpus& corpus, StopSignals& signals)
      : options_(options),
        corpus_(corpus),
        signals_(signals),
        progress_(stderr, isatty(STDERR_FILENO) != 0) {}

  absl::Status Run() {
    VERBENA_RETURN_IF_ERROR(StartServer());
    absl::Status worked = WorkWithServer();
    if (absl::Status running = server_->CheckRunning(); !running.ok()) return running;
    absl::Status stopped = server_->Stop(signals_);
    return worked.ok() ? stopped : worked;
  }

  const std::vector<PhaseReport>& reports() const { return reports_; }

 private:
  absl::Status StartServer() {
    VERBENA_ASSIGN_OR_RETURN(
        server_,
        ServerProcess::Start(options_.server, {fmt::format("--address={}", options_.address),
                                               fmt::format("--executors={}", options_.executors),
                                               fmt::format("--mode={}", options_.mode_name),
                                               fmt::format("--max_bytes={}", options_.max_bytes)}));
    VERBENA_RETURN_IF_ERROR(server_->WaitUntilReady(signals_));
    fmt::print(stderr, "kv_server is process {}, listening on {}\n", server_->pid(),
               server_->address());
    return absl::OkStatus();
  }

  absl::Status WorkWithServer() {
    VERBENA_ASSIGN_OR_RETURN(
        std::unique_ptr<verbena::Runtime> runtime,
        verbena::Runtime::Start({.executors = options_.executors, .mode = options_.mode}));
    verbena::Channel channel(*runtime, server_->address());
    PhaseReport puts;
    PhaseReport gets;
    absl::Status status;
    for (uint64_t round = 0; round < options_.rounds && status.ok(); ++round) {
      PutWork put(channel, corpus_);
      status = RunPhase(*runtime, put, puts);
      if (!status.ok()) break;
      GetWork get(channel, corpus_);
      status = RunPhase(*runtime, get, gets);
    }
    PhaseReport scans;
    if (status.ok()) {
      ScanWork scan(channel, corpus_);
      status = RunPhase(*runtime, scan, scans);
    }
    for (PhaseReport* report : {&puts, &gets, &scans}) {
      if (!report->name.empty()) reports_.push_back(std::move(*report));
    }
    return status;
  }

  absl::Status RunPhase(verbena::Runtime& runtime, examples::Work& work, PhaseReport& sum) {
    return examples::RunPhase(runtime, work, options_.in_flight, signals_, progress_, sum);
  }

  const DemoOptions& options_;
  const Corpus& corpus_;
  StopSignals& signals_;
  Progress progress_;
  std::unique_ptr<ServerProcess> server_;
  std::vector<PhaseReport> reports_;
};

int Complain(const absl::Status& status) {
  // Without a message, the server has said it already.
  if (!status.message().empty()) fmt::print(stderr, "kv_demo: {}\n", std::string(status.message()));
  return 1;
}

}  // namespace

int RunDemo(const DemoOptions& options) {
  const absl::StatusOr<Corpus> corpus = Corpus::Load(options.paths, options.max_bytes);
  if (!corpus.ok()) return Complain(corpus.status());
  fmt::print("{}", Inventory(*corpus));
  std::fflush(stdout);

  const absl::StatusOr<std::unique_ptr<StopSignals>> signals = StopSignals::Block();
  if (!signals.ok()) return Complain(signals.status());
  Demo demo(options, *corpus, **signals);
  const absl::Status status = demo.Run();
  fmt::print("{}", demo.reports().empty() ? "" : Table(demo.reports()));
  if ((*signals)->received() != 0) {
    fmt::print(stderr, "kv_demo: interrupted\n");
    return 128 + (*signals)->received();
  }
  return status.ok() ? 0 : Complain(status);
}

}  // namespace kv
