#include "examples/kv/demo.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/kv/corpus.h"
#include "examples/kv/phase.h"
#include "examples/kv/progress.h"
#include "examples/kv/report.h"
#include "examples/kv/server_process.h"
#include "examples/kv/signals.h"
#include "examples/kv/workers.h"
#include "fmt/format.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/runtime.h"
#include "verbena/transport/coro/status_macros.h"

namespace kv {
namespace {

std::string ProgressLine(const Work& work, const Phase& phase) {
  const uint64_t calls = phase.calls();
  const double seconds = phase.running_for().count();
  const auto rate = static_cast<uint64_t>(static_cast<double>(calls) / std::max(seconds, 1e-6));
  const std::string total =
      work.total_calls() == 0 ? "" : fmt::format(" of {}", Grouped(work.total_calls()));
  return fmt::format("{:<4} {}{} calls, {}, {}/s", work.name(), Grouped(calls), total,
                     Sized(phase.bytes()), Grouped(rate));
}

std::string LastLine(const PhaseReport& report) {
  return fmt::format("{:<4} {} calls, {}, in {:.2f} s", report.name, Grouped(report.calls),
                     Sized(report.bytes), report.elapsed.count());
}

// 1 and "line" as "1 line", 2 as "2 lines".
std::string Counted(uint64_t count, const char* noun) {
  return fmt::format("{} {}{}", Grouped(count), noun, count == 1 ? "" : "s");
}

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

  // Runs one phase to its end, and adds what it took to `sum`.
  absl::Status RunPhase(verbena::Runtime& runtime, Work& work, PhaseReport& sum) {
    VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Wakeup> ended, Wakeup::Create());
    Phase phase(runtime, work, options_.in_flight, *ended);
    phase.Start();
    while (true) {
      const Woken woken = signals_.WaitReadable(ended->fd(), progress_.interval());
      if (woken == Woken::kReadable) break;
      if (woken == Woken::kBySignal) phase.Cancel();
      if (woken == Woken::kTimeout) progress_.Update(ProgressLine(work, phase));
    }
    PhaseReport report = phase.Report();
    progress_.Finish(LastLine(report));
    sum.name = report.name;
    sum.Add(report);
    if (signals_.received() != 0) return absl::CancelledError("interrupted");
    return report.first_error;
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
