#include "examples/kv/demo.h"

#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/common/amounts.h"
#include "examples/common/phase.h"
#include "examples/common/progress.h"
#include "examples/common/run_phase.h"
#include "examples/common/server_process.h"
#include "examples/common/signals.h"
#include "examples/kv/corpus.h"
#include "examples/kv/direct_workers.h"
#include "examples/kv/kv.pb.h"
#include "examples/kv/kv.verbena.pb.h"
#include "examples/kv/open_store.h"
#include "examples/kv/report.h"
#include "examples/kv/scratch_directory.h"
#include "examples/kv/store.h"
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
    if (!worked.ok()) return worked;
    VERBENA_RETURN_IF_ERROR(stopped);
    return WorkDirectly();
  }

  // The table, and how calls compare with the same work without them.
  std::string Figures() const {
    std::vector<PhaseReport> rows;
    for (const PhaseReport* report : {&puts_, &gets_, &scans_, &direct_puts_, &direct_gets_}) {
      if (!report->name.empty()) rows.push_back(*report);
    }
    if (rows.empty()) return "";
    return Table(rows) + Ratio(puts_, direct_puts_) + Ratio(gets_, direct_gets_);
  }

 private:
  absl::Status StartServer() {
    VERBENA_ASSIGN_OR_RETURN(const std::string directory, DirectoryOfServer());
    std::vector<std::string> arguments = {fmt::format("--address={}", options_.address),
                                          fmt::format("--executors={}", options_.executors),
                                          fmt::format("--mode={}", options_.mode_name),
                                          fmt::format("--max_bytes={}", options_.store.max_bytes),
                                          fmt::format("--store={}", options_.store.engine),
                                          fmt::format("--durable={}", options_.store.durable)};
    if (!directory.empty()) arguments.push_back("--directory=" + directory);
    VERBENA_ASSIGN_OR_RETURN(server_, ServerProcess::Start(options_.server, arguments));
    VERBENA_RETURN_IF_ERROR(server_->WaitUntilReady(signals_));
    fmt::print(stderr, "kv_server is process {}, listening on {}\n", server_->pid(),
               server_->address());
    return absl::OkStatus();
  }

  // Empty for a store in memory.
  absl::StatusOr<std::string> DirectoryOfServer() {
    if (options_.store.engine != "rocksdb" || !options_.store.directory.empty()) {
      return options_.store.directory;
    }
    VERBENA_ASSIGN_OR_RETURN(servers_scratch_, ScratchDirectory::Make("kv_demo"));
    return servers_scratch_->path();
  }

  absl::Status WorkWithServer() {
    VERBENA_ASSIGN_OR_RETURN(
        std::unique_ptr<verbena::Runtime> runtime,
        verbena::Runtime::Start({.executors = options_.executors, .mode = options_.mode}));
    verbena::Channel channel(*runtime, server_->address());
    const v1::KeyValue::Stub stub(channel);
    VERBENA_ASSIGN_OR_RETURN(const v1::StatsReply before,
                             runtime->BlockOn(stub.Stats(v1::StatsRequest())));
    fmt::print("store: {}\n", before.store());
    std::fflush(stdout);
    for (uint64_t round = 0; round < options_.rounds; ++round) {
      PutWork put(channel, corpus_);
      VERBENA_RETURN_IF_ERROR(RunPhase(*runtime, put, puts_));
      GetWork get(channel, corpus_);
      VERBENA_RETURN_IF_ERROR(RunPhase(*runtime, get, gets_));
    }
    ScanWork scan(channel, corpus_);
    return RunPhase(*runtime, scan, scans_);
  }

  // The same puts and gets on a store of this process, on as many executors as the server had.
  absl::Status WorkDirectly() {
    StoreChoice choice = options_.store;
    choice.directory.clear();
    std::unique_ptr<ScratchDirectory> scratch;
    if (choice.engine == "rocksdb") {
      VERBENA_ASSIGN_OR_RETURN(scratch, ScratchDirectory::Make("kv_demo_direct"));
      choice.directory = scratch->path();
    }
    VERBENA_ASSIGN_OR_RETURN(const std::unique_ptr<Store> store, OpenStore(choice));
    VERBENA_ASSIGN_OR_RETURN(
        std::unique_ptr<verbena::Runtime> runtime,
        verbena::Runtime::Start({.executors = options_.executors, .mode = options_.mode}));
    for (uint64_t round = 0; round < options_.rounds; ++round) {
      DirectPutWork put(*store, corpus_);
      VERBENA_RETURN_IF_ERROR(RunPhase(*runtime, put, direct_puts_));
      DirectGetWork get(*store, corpus_);
      VERBENA_RETURN_IF_ERROR(RunPhase(*runtime, get, direct_gets_));
    }
    return absl::OkStatus();
  }

  absl::Status RunPhase(verbena::Runtime& runtime, examples::Work& work, PhaseReport& sum) {
    return examples::RunPhase(runtime, work, options_.in_flight, signals_, progress_, sum);
  }

  const DemoOptions& options_;
  const Corpus& corpus_;
  StopSignals& signals_;
  Progress progress_;
  std::unique_ptr<ScratchDirectory> servers_scratch_;  // outlives the server
  std::unique_ptr<ServerProcess> server_;
  PhaseReport puts_;
  PhaseReport gets_;
  PhaseReport scans_;
  PhaseReport direct_puts_;
  PhaseReport direct_gets_;
};

int Complain(const absl::Status& status) {
  // Without a message, the server has said it already.
  if (!status.message().empty()) fmt::print(stderr, "kv_demo: {}\n", std::string(status.message()));
  return 1;
}

}  // namespace

int RunDemo(const DemoOptions& options) {
  const absl::StatusOr<Corpus> corpus = Corpus::Load(options.paths, options.store.max_bytes);
  if (!corpus.ok()) return Complain(corpus.status());
  fmt::print("{}", Inventory(*corpus));
  std::fflush(stdout);

  const absl::StatusOr<std::unique_ptr<StopSignals>> signals = StopSignals::Block();
  if (!signals.ok()) return Complain(signals.status());
  Demo demo(options, *corpus, **signals);
  const absl::Status status = demo.Run();
  fmt::print("{}", demo.Figures());
  if ((*signals)->received() != 0) {
    fmt::print(stderr, "kv_demo: interrupted\n");
    return 128 + (*signals)->received();
  }
  return status.ok() ? 0 : Complain(status);
}

}  // namespace kv
