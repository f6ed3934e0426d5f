#include "verbena/rpc/shard/call_counts.h"

#include "verbena/transport/base/check.h"

namespace verbena::internal {

MethodCounts::~MethodCounts() {
  for (const std::atomic<CallTimes*>& each : failed_) delete each.load();
}

void MethodCounts::End(Ticks ticks, absl::StatusCode code, Outcome outcome) {
  Add(OfCode(code), ticks, 1);
  if (code != absl::StatusCode::kOk) AddFailed(outcome);
}

void MethodCounts::EndNow(Ticks began, absl::StatusCode code, Outcome outcome) {
  End(ticks_.Read() - began, code, outcome);
}

CallTimes& MethodCounts::OfFailure(absl::StatusCode code) {
  // A peer may send any number.
  const auto number = static_cast<size_t>(code);
  const size_t known = number < kCodes ? number : static_cast<size_t>(absl::StatusCode::kUnknown);
  std::atomic<CallTimes*>& place = failed_[known];
  CallTimes* times = place.load(std::memory_order_relaxed);
  if (times == nullptr) {
    times = new CallTimes;
    place.store(times, std::memory_order_release);
  }
  return *times;
}

void MethodCounts::Scale(Ticks ticks) {
  last_ = ticks;
  units_ = UnitsIn(TicksBetween(0, ticks), units_per_tick_);
  slot_ = CallTimes::SlotOf(units_);
}

CallCounts::CallCounts(const TurnTicks& ticks)
    : ticks_(ticks), units_per_tick_(ticks.source().UnitsPerTick(CallTimes::kUnitNanoseconds)) {}

CallCounts::~CallCounts() {
  for (const std::atomic<MethodCounts*>& each : methods_) delete each.load();
}

MethodCounts& CallCounts::Make(const MethodDescriptor& method) {
  const uint32_t index = method.index.value();
  if (index >= kMaxMethods) return other_;
  std::atomic<MethodCounts*>& place = methods_[index];
  if (MethodCounts* const made = place.load(std::memory_order_relaxed)) return *made;
  auto* counts = new MethodCounts(method.full_name, ticks_, units_per_tick_);
  place.store(counts, std::memory_order_release);
  return *counts;
}

void ServedCalls::Begin(const Run& run) {
  const bool is_first = runs_[0].times == nullptr;
  if (is_first) {
    executor_.FlushLater(*this, FlushPriority::kSends);
  } else if (++last_ == kRuns) {
    --last_;
    Flush();
    return Begin(run);
  }
  runs_[last_] = run;
}

void ServedCalls::Flush() {
  const Ticks now = counts_.ticks().Read();
  for (size_t i = 0; i <= last_; ++i) {
    const Run& run = runs_[i];
    if (run.times != nullptr) run.method->Add(*run.times, now - run.arrived, run.calls);
  }
  runs_[0] = {};
  last_ = 0;
}

const char* NameOf(RefusalBound bound) {
  static constexpr std::array<const char*, kRefusalBounds> kNames = {
      "executor", "client",   "source",         "method", "bytes",   "queue",
      "age",      "metadata", "unknown_method", "shape",  "shutdown"};
  const auto index = static_cast<size_t>(bound);
  VERBENA_CHECK(index < kNames.size()) << "bound " << index;
  return kNames[index];
}

}  // namespace verbena::internal
