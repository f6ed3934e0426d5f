#include "verbena/rpc/testing/fault_injector.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "verbena/transport/base/check.h"

namespace verbena::testing {
namespace {

bool IsOf(std::string_view full_name, std::string_view method) {
  if (method.empty() || full_name == method) return true;
  const size_t slash = full_name.find('/');
  return slash != std::string_view::npos && full_name.substr(slash + 1) == method;
}

// Until the call's deadline, or its cancellation. Returns why it ended.
Task<absl::Status> WaitForTheEnd(const ClientCallView& call, Outcome outcome) {
  const TimePoint end = call.deadline().is_set() ? call.deadline().when() : kNever;
  absl::Status status = co_await SleepUntil(end);
  if (status.ok())
    status = absl::DeadlineExceededError("the deadline passed; a fault was injected");
  co_return WithOutcome(std::move(status), outcome);
}

}  // namespace

void FaultInjector::Add(Fault fault) {
  VERBENA_CHECK(!fault.fail.ok() || fault.outcome == Outcome::kNotExecuted)
      << "a Fault has an outcome and no `fail`";
  std::lock_guard lock(mutex_);
  faults_.push_back({std::move(fault)});
}

void FaultInjector::Clear() {
  std::lock_guard lock(mutex_);
  faults_.clear();
}

uint64_t FaultInjector::injected() const {
  std::lock_guard lock(mutex_);
  return injected_;
}

std::optional<Fault> FaultInjector::FaultOf(const char* full_name) {
  std::lock_guard lock(mutex_);
  std::optional<Fault> found;
  // Each fault counts all calls of its method, also those that another fault happens to.
  for (Counted& each : faults_) {
    if (!IsOf(full_name, each.fault.method)) continue;
    const uint64_t seen = each.seen++;
    if (found.has_value() || seen < each.fault.after) continue;
    if (seen - each.fault.after < each.fault.times) found = each.fault;
  }
  if (found.has_value()) ++injected_;
  return found;
}

Task<absl::Status> FaultInjector::Intercept(ClientCallView& call, ClientNext next) {
  const std::optional<Fault> fault = FaultOf(call.method().full_name);
  if (!fault.has_value()) co_return co_await next();
  if (fault->delay > Duration::zero()) {
    const TimePoint now = (co_await CurrentContext()).scheduler->now();
    const TimePoint end = SaturatingAdd(now, fault->delay);
    if (call.deadline().is_set() && call.deadline().when() <= end) {
      co_return co_await WaitForTheEnd(call, Outcome::kNotExecuted);
    }
    absl::Status slept = co_await SleepUntil(end);
    if (!slept.ok()) co_return WithOutcome(std::move(slept), Outcome::kNotExecuted);
  }
  if (fault->drop_request) co_return co_await WaitForTheEnd(call, Outcome::kMaybeExecuted);
  if (!fault->fail.ok() && fault->outcome == Outcome::kNotExecuted) {
    co_return WithOutcome(fault->fail, Outcome::kNotExecuted);
  }
  absl::Status status = co_await next();
  if (fault->drop_reply) {
    call.reply().Clear();
    co_return co_await WaitForTheEnd(call, Outcome::kMaybeExecuted);
  }
  // A fault must not claim that the server ran what never reached it.
  if (fault->fail.ok() || OutcomeOf(status) != Outcome::kExecuted) co_return status;
  call.reply().Clear();
  co_return WithOutcome(fault->fail, fault->outcome);
}

}  // namespace verbena::testing
