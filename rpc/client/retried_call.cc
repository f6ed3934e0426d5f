#include "verbena/rpc/client/retried_call.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/annotate.h"
#include "verbena/rpc/client/retry_rules.h"
#include "verbena/rpc/client/retry_series.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/deadline.h"
#include "verbena/transport/coro/sleep.h"

namespace verbena::internal {
namespace {

// The caller's memory, which goes with each attempt, and comes back when a failed one has ended if
// its server provably cannot use it any more.
class CallersMemory {
 public:
  CallersMemory(CallOptions& options, PayloadSink received)
      : received_(received),
        gave_payload_(options.request_payload.present()),
        gave_room_(static_cast<bool>(options.response_payload_into)),
        payload_(std::move(options.request_payload)),
        room_(std::move(options.response_payload_into)),
        returned_payload_(options.returned_payload) {}
  CallersMemory(const CallersMemory&) = delete;
  CallersMemory& operator=(const CallersMemory&) = delete;

  void GiveTo(CallOptions& attempt) {
    attempt.request_payload = std::exchange(payload_, Payload());
    attempt.response_payload_into = std::exchange(room_, Buffer());
    if (gave_payload_ || returned_payload_ != nullptr) attempt.returned_payload = &payload_;
  }
  // Whether another attempt can have it after one that failed.
  bool is_back() const {
    return (!gave_payload_ || payload_.present()) &&
           (!gave_room_ || (received_.payload != nullptr && *received_.payload));
  }
  // Another attempt follows.
  void TakeBack() {
    if (gave_room_) room_ = std::exchange(*received_.payload, Buffer());
  }
  // The call has ended. Memory for the response is where the last attempt left it.
  void Return() {
    if (returned_payload_ != nullptr) *returned_payload_ = std::move(payload_);
    if (room_) received_.Set(std::move(room_), false);
  }

 private:
  const PayloadSink received_;
  const bool gave_payload_;
  const bool gave_room_;
  Payload payload_;
  Buffer room_;
  Payload* const returned_payload_;
};

}  // namespace

Task<absl::Status> RetriedCall(RetryableCall call, const RetryPolicy& policy, CallOptions options) {
  const TaskContext context = co_await CurrentContext();
  const Scheduler& scheduler = *context.scheduler;
  const TimePoint began = scheduler.now();
  const TimePoint deadline = options.deadline.when();
  call.account.Add(RetryAccount::Count::kCalls);
  RetrySeries series(policy, call.method, call.account);
  CallersMemory memory(options, call.received);
  CombinedOutcome outcome;
  TriedServers tried;
  CallInfo info;
  absl::Status status;
  for (;;) {
    CallOptions attempt = OptionsOfAttempt(options);
    TimePoint limit = kNever;
    if (policy.attempt_timeout > Duration::zero()) {
      limit = SaturatingAdd(scheduler.now(), policy.attempt_timeout);
    }
    // A server that heard of the limit would keep the end of a deduplicated call by it as its
    // result.
    attempt.deadline = call.method.dedupe ? deadline : std::min(deadline, limit);
    if (options.info != nullptr) attempt.info = &(info = CallInfo());
    memory.GiveTo(attempt);
    Task<absl::Status> made =
        call.maker.Attempt(call.reply, call.received, std::move(attempt), tried);
    if (call.method.dedupe) made = WithDeadline(std::move(made), limit);
    status = co_await std::move(made);
    if (status.ok()) {
      call.account.OnSuccess();
      break;
    }
    outcome.Add(status);
    // The caller gives up.
    if (context.cancel != nullptr && context.cancel->requested()) break;
    const TimePoint now = scheduler.now();
    const std::optional<Duration> pause =
        series.After({.status = status,
                      .timed_out = absl::IsDeadlineExceeded(status) && limit <= now,
                      .has_its_buffers = memory.is_back(),
                      .now = now,
                      .deadline = deadline});
    if (!pause.has_value()) break;
    memory.TakeBack();
    if (StaysWithItsServer(call.method) && outcome.may_have_run()) tried.Stay();
    if (const absl::Status slept = co_await Sleep(*pause); !slept.ok()) {
      status = slept;
      break;
    }
    series.Begin();
  }
  memory.Return();
  if (options.info != nullptr) {
    *options.info = std::move(info);
    options.info->elapsed = scheduler.now() - began;
  }
  if (status.ok()) co_return status;
  if (series.attempts() > 1) {
    status = Annotate(status, fmt::format("after {} attempts", series.attempts()));
  }
  co_return outcome.Of(std::move(status));
}

}  // namespace verbena::internal
