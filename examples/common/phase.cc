#include "examples/common/phase.h"

#include <algorithm>
#include <utility>

#include "verbena/rpc/runtime.h"
#include "verbena/rpc/task.h"

namespace examples {

using verbena::Clock;
using verbena::Task;

void Lane::CountCall(verbena::TimePoint began, uint64_t bytes) {
  latencies_.Record(static_cast<uint64_t>((Clock::Real().Now() - began).count()));
  calls_.fetch_add(1, std::memory_order_relaxed);
  bytes_.fetch_add(bytes, std::memory_order_relaxed);
}

void Lane::Fail(absl::Status error) {
  if (cancel_.requested() && absl::IsCancelled(error)) return;
  ++errors_;
  if (first_error_.ok()) first_error_ = std::move(error);
  stop_.store(true, std::memory_order_relaxed);
}

void PhaseReport::Add(const PhaseReport& other) {
  calls += other.calls;
  bytes += other.bytes;
  credit_waits += other.credit_waits;
  errors += other.errors;
  elapsed += other.elapsed;
  latencies += other.latencies;
  if (first_error.ok()) first_error = other.first_error;
}

Phase::Phase(verbena::Runtime& runtime, Work& work, int in_flight, Wakeup& ended)
    : runtime_(runtime),
      work_(work),
      workers_(std::min(in_flight, work.max_workers())),
      ended_(ended) {
  for (int i = 0; i < runtime.executors(); ++i) lanes_.push_back(std::make_unique<Lane>(stop_));
}

void Phase::Start() {
  credit_waits_before_ = CreditWaits();
  began_ = Clock::Real().Now();
  const int lanes = static_cast<int>(lanes_.size());
  lanes_running_ = lanes;
  for (int i = 0; i < lanes; ++i) {
    const int workers = workers_ / lanes + (i < workers_ % lanes ? 1 : 0);
    runtime_.Spawn(RunLane(*lanes_[i], workers), i);
  }
}

Task<void> Phase::RunLane(Lane& lane, int workers) {
  co_await RunWorkers(lane, workers).In(&lane.cancel_);
  if (lanes_running_.fetch_sub(1) > 1) co_return;
  ended_at_ = Clock::Real().Now();
  // Nothing of the phase may be used after this: the thread that waits destroys it.
  ended_.Wake();
}

Task<void> Phase::RunWorkers(Lane& lane, int workers) {
  verbena::TaskScope scope(co_await verbena::CurrentContext());
  for (int i = 0; i < workers; ++i) scope.Spawn(work_.RunWorker(lane));
  co_await scope.Join();
}

namespace {

Task<void> Request(verbena::CancelScope& scope) {
  scope.Request();
  co_return;
}

}  // namespace

void Phase::Cancel() {
  // Waits for each executor, so that no request is left that would use a destroyed lane.
  for (size_t i = 0; i < lanes_.size(); ++i) {
    runtime_.BlockOn(Request(lanes_[i]->cancel_), static_cast<int>(i));
  }
}

uint64_t Phase::calls() const {
  uint64_t sum = 0;
  for (const auto& lane : lanes_) sum += lane->calls_.load(std::memory_order_relaxed);
  return sum;
}

uint64_t Phase::bytes() const {
  uint64_t sum = 0;
  for (const auto& lane : lanes_) sum += lane->bytes_.load(std::memory_order_relaxed);
  return sum;
}

std::chrono::duration<double> Phase::running_for() const { return Clock::Real().Now() - began_; }

uint64_t Phase::CreditWaits() const {
  uint64_t sum = 0;
  for (int i = 0; i < runtime_.executors(); ++i) {
    sum += runtime_.endpoint_stats(i).traffic.credit_waits;
  }
  return sum;
}

PhaseReport Phase::Report() const {
  PhaseReport report;
  report.name = work_.name();
  report.calls = calls();
  report.bytes = bytes();
  report.credit_waits = CreditWaits() - credit_waits_before_;
  report.elapsed = ended_at_ - began_;
  for (const auto& lane : lanes_) {
    report.errors += lane->errors_;
    report.latencies += lane->latencies_;
    if (report.first_error.ok()) report.first_error = lane->first_error_;
  }
  return report;
}

}  // namespace examples
