#include "examples/common/run_phase.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "examples/common/amounts.h"
#include "fmt/format.h"
#include "verbena/rpc/task.h"

namespace examples {
namespace {

std::string ProgressLine(const Work& work, const Phase& phase) {
  const uint64_t calls = phase.calls();
  const double seconds = phase.running_for().count();
  const auto rate = static_cast<uint64_t>(static_cast<double>(calls) / std::max(seconds, 1e-6));
  const std::string total =
      work.total_calls() == 0 ? "" : fmt::format(" of {}", Grouped(work.total_calls()));
  return fmt::format("{:<6} {}{} calls, {}, {}/s", work.name(), Grouped(calls), total,
                     Sized(phase.bytes()), Grouped(rate));
}

std::string LastLine(const PhaseReport& report) {
  return fmt::format("{:<6} {} calls, {}, in {:.2f} s", report.name, Grouped(report.calls),
                     Sized(report.bytes), report.elapsed.count());
}

}  // namespace

absl::Status RunPhase(verbena::Runtime& runtime, Work& work, int in_flight, StopSignals& signals,
                      Progress& progress, PhaseReport& sum) {
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Wakeup> ended, Wakeup::Create());
  Phase phase(runtime, work, in_flight, *ended);
  phase.Start();
  while (true) {
    const Woken woken = signals.WaitReadable(ended->fd(), progress.interval());
    if (woken == Woken::kReadable) break;
    if (woken == Woken::kBySignal) phase.Cancel();
    if (woken == Woken::kTimeout) progress.Update(ProgressLine(work, phase));
  }
  PhaseReport report = phase.Report();
  progress.Finish(LastLine(report));
  sum.name = report.name;
  sum.Add(report);
  if (signals.received() != 0) return absl::CancelledError("interrupted");
  return report.first_error;
}

}  // namespace examples
