#include "verbena/rpc/client/attempts.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "fmt/format.h"
#include "verbena/rpc/client/fence.h"
#include "verbena/rpc/detail/message.h"
#include "verbena/rpc/shard/call_counts.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/coro/sync.h"

namespace verbena::internal {

namespace {

// What an attempt's own CallInfo begins with, from that of its call.
CallInfo BeforeAttempt(const CallInfo& call) { return {.request_bytes = call.request_bytes}; }

// Whether nobody waits for a call any more: its caller gives up, or its deadline has passed, which
// the call hears of by itself or through its scope. A failure that this makes takes no token of the
// budget: no further attempt could follow it.
bool IsOver(const TaskContext& context, TimePoint deadline) {
  return (context.cancel != nullptr && context.cancel->requested()) ||
         context.scheduler->now() >= deadline;
}

// The attempts of one call. They run in a scope that ends before it does, and need no fence: a
// method that is hedged has no side effects (MayBeHedged).
class Hedges {
 public:
  // All outlive it. `context` is that of the coroutine that awaits Race().
  Hedges(const TaskContext& context, AttemptMaker& maker, RetryAccount& account,
         const HedgingPolicy& policy, const CallSpec& spec)
      : context_(context), maker_(maker), account_(account), policy_(policy), spec_(spec) {}
  Hedges(const Hedges&) = delete;
  Hedges& operator=(const Hedges&) = delete;

  // Runs attempts until one has won, all have failed, or the caller gives up.
  Task<void> Race();
  // The call's result, after Race(): fills the caller's reply, payload and CallInfo.
  absl::Status Take();

 private:
  struct Attempt {
    std::unique_ptr<MessageLite> own_reply;  // null: the caller's
    Buffer payload;
    bool has_payload = false;
    CallInfo info;
    absl::Status status = absl::UnknownError("an interceptor threw");
    bool ended = false;
    bool seen = false;  // by Look()
  };

  void Begin(TaskScope& running);
  Task<void> Run(Attempt& attempt);
  // Looks at the attempts that have ended since.
  void Look();
  void OnFailure(const Attempt& attempt);
  // Why no further attempt followed that of last_, which has failed; empty if that ended the call.
  std::string Reason() const;
  bool won() const { return last_ != nullptr && last_->status.ok(); }
  // The attempt that began last has no server yet.
  bool seeks() const {
    return begun_ > 0 && !attempts_[begun_ - 1].ended && tried_.times_found() == found_before_;
  }
  bool may_begin() const { return may_begin_ && begun_ < policy_.max_attempts; }

  const TaskContext context_;
  AttemptMaker& maker_;
  RetryAccount& account_;
  const HedgingPolicy& policy_;
  const CallSpec& spec_;
  std::array<Attempt, RetryPolicy::kMaxAttempts> attempts_;
  Event changed_;  // an attempt has ended, or has its server
  TriedServers tried_{&changed_};
  int found_before_ = 0;  // servers, when the last attempt began
  int begun_ = 0;
  int running_ = 0;
  bool may_begin_ = true;
  bool refused_by_budget_ = false;
  bool next_is_due_ = false;  // an attempt has failed
  bool decided_ = false;      // last_ is the call's result, unless another one is good
  Attempt* last_ = nullptr;   // of those that have ended
};

void Hedges::Begin(TaskScope& running) {
  if (begun_ > 0) {
    if (!account_.MayTakeMore()) {
      refused_by_budget_ = true;
      may_begin_ = false;
      return;
    }
    account_.Add(RetryAccount::Count::kHedges);
    if (ExecutorCounts* counts = CountsOf(*context_.scheduler)) {
      counts->client.Of(spec_.method).hedges.Add(1);
    }
  }
  Attempt& attempt = attempts_[begun_];
  if (begun_ > 0) attempt.own_reply.reset(spec_.reply.New());
  found_before_ = tried_.times_found();
  ++begun_;
  ++running_;
  running.Spawn(Run(attempt));
}

Task<void> Hedges::Run(Attempt& attempt) {
  absl::Cleanup ended = [this, &attempt] {
    attempt.ended = true;
    changed_.Set();
  };
  CallBuffers buffers(spec_.options, {&attempt.payload, &attempt.has_payload});
  if (spec_.info != nullptr) attempt.info = BeforeAttempt(*spec_.info);
  const CallSpec spec{.channel = spec_.channel,
                      .method = spec_.method,
                      .request = spec_.request,
                      .reply = attempt.own_reply != nullptr ? *attempt.own_reply : spec_.reply,
                      .options = spec_.options,
                      .buffers = buffers,
                      .deadline = spec_.deadline,
                      .info = spec_.info != nullptr ? &attempt.info : nullptr,
                      .keeps_metadata = true,
                      .tried = &tried_};
  attempt.status = co_await maker_.Attempt(spec);
}

// A good answer counts also if it comes at once with, or behind, a failure that ends the call: its
// server has run the call.
void Hedges::Look() {
  for (int i = 0; i < begun_ && !won(); ++i) {
    Attempt& attempt = attempts_[i];
    if (!attempt.ended || attempt.seen) continue;
    attempt.seen = true;
    VERBENA_CHECK(running_ > 0) << begun_ << " attempts have begun";
    --running_;
    if (attempt.status.ok()) {
      last_ = &attempt;
      account_.OnSuccess();
      decided_ = true;
    } else if (!decided_) {
      last_ = &attempt;
      OnFailure(attempt);
    }
  }
}

void Hedges::OnFailure(const Attempt& attempt) {
  const bool is_over = IsOver(context_, spec_.deadline);
  if (is_over || !HasCode(policy_.non_fatal_codes, attempt.status)) {
    decided_ = true;
    return;
  }
  account_.OnFailure(attempt.status);
  if (RetryAfterOf(attempt.status).has_value()) may_begin_ = false;
  next_is_due_ = true;
}

std::string Hedges::Reason() const {
  if (decided_) return "";
  if (refused_by_budget_) return BudgetIsUsedUp(account_);
  if (begun_ == policy_.max_attempts) {
    return fmt::format("HedgingPolicy::max_attempts is {}", policy_.max_attempts);
  }
  // Otherwise its caller gave the call up.
  return may_begin_ ? "" : "a server asked for time (retry_after)";
}

Task<void> Hedges::Race() {
  const Scheduler& scheduler = *context_.scheduler;
  TaskScope running(context_);
  TimePoint next = scheduler.now();
  const auto gives_up = [this] {
    return context_.cancel != nullptr && context_.cancel->requested();
  };
  for (;;) {
    Look();
    if (decided_ || (begun_ > 0 && gives_up())) break;
    // A further attempt would only wait beside it, and go to the same server at the same time.
    if (seeks()) {
      changed_.Reset();
      (void)co_await changed_.Wait();
      next = SaturatingAdd(scheduler.now(), policy_.delay);
      continue;
    }
    if (may_begin() && (next_is_due_ || next <= scheduler.now())) {
      Begin(running);
      next_is_due_ = false;
      next = SaturatingAdd(scheduler.now(), policy_.delay);
      continue;
    }
    if (running_ == 0) break;
    changed_.Reset();
    (void)co_await WithDeadline(WaitFor(changed_), may_begin() ? next : kNever);
  }
  running.RequestCancel();
  co_await running.Join();
  // Attempts that ended meanwhile may have won after all. If the caller gave up, their own failures
  // tell.
  Look();
}

absl::Status Hedges::Take() {
  CombinedOutcome outcome;
  for (int i = 0; i < begun_; ++i) {
    if (!attempts_[i].status.ok()) outcome.Add(attempts_[i].status);
  }
  if (spec_.info != nullptr) *spec_.info = std::move(last_->info);
  if (!last_->status.ok()) {
    const std::string reason = Reason();
    absl::Status status = reason.empty() ? last_->status : NoFurtherAttempt(last_->status, reason);
    if (begun_ == 1) return status;
    return outcome.Of(Annotate(status, fmt::format("with {} attempts", begun_)));
  }
  if (last_->own_reply != nullptr) {
    spec_.reply.Clear();
    spec_.reply.CheckTypeAndMergeFrom(*last_->own_reply);
  }
  spec_.buffers.SetResponse(std::move(last_->payload), last_->has_payload);
  return absl::OkStatus();
}

// RetriedCall(), with spec.fence if the call needs one.
Task<absl::Status> Retried(AttemptMaker& maker, RetryAccount& account, const RetryPolicy& policy,
                           CallSpec spec) {
  const TaskContext context = co_await CurrentContext();
  const Scheduler& scheduler = *context.scheduler;
  account.Add(RetryAccount::Count::kCalls);
  RetrySeries series(policy, spec.method, account);
  CombinedOutcome outcome;
  TriedServers tried;
  CallInfo info;
  absl::Status status;
  CallSpec attempt = spec;
  attempt.tried = &tried;
  attempt.keeps_metadata = true;
  if (spec.info != nullptr) attempt.info = &info;
  AttemptFence* const fence = spec.fence;
  for (;;) {
    TimePoint limit = kNever;
    if (policy.attempt_timeout > Duration::zero()) {
      limit = SaturatingAdd(scheduler.now(), policy.attempt_timeout);
    }
    // A server that heard of the limit would keep the end of a deduplicated call by it as its
    // result. A fence bounds the attempt itself.
    if (!spec.method.dedupe && fence == nullptr) attempt.deadline = std::min(spec.deadline, limit);
    if (spec.info != nullptr) info = BeforeAttempt(*spec.info);
    Task<absl::Status> made = maker.Attempt(attempt);
    if (spec.method.dedupe) made = WithDeadline(std::move(made), limit);
    CancelScope* const scope = fence == nullptr ? context.cancel : fence->Begin(tried);
    status = co_await std::move(made).In(scope);
    // The pause keeps no connection in use.
    made = {};
    if (fence != nullptr) status = fence->End(std::move(status));
    if (status.ok()) {
      account.OnSuccess();
      break;
    }
    outcome.Add(status);
    const TimePoint now = scheduler.now();
    if (IsOver(context, spec.deadline)) break;
    const std::optional<Duration> pause =
        series.After({.status = status,
                      .timed_out = absl::IsDeadlineExceeded(status) &&
                                   (fence == nullptr ? limit <= now : fence->timed_out()),
                      .has_its_buffers = spec.buffers.is_back(),
                      .now = now,
                      .deadline = spec.deadline});
    if (!pause.has_value()) break;
    spec.buffers.TakeBack();
    if (StaysWithItsServer(spec.method) && outcome.may_have_run()) tried.Stay();
    if (const absl::Status slept = co_await Sleep(*pause); !slept.ok()) {
      status = slept;
      break;
    }
    series.Begin();
    if (ExecutorCounts* counts = CountsOf(scheduler)) {
      counts->client.Of(spec.method).retries.Add(1);
    }
  }
  if (spec.info != nullptr) *spec.info = std::move(info);
  if (status.ok()) co_return status;
  status = series.Explained(status);
  // A payload is lacking only if an interceptor destroyed the attempt.
  if (series.lacked_memory() && spec.buffers.payload_is_back()) {
    status = Annotate(status,
                      "no further attempt, since a lost link may still write to "
                      "response_payload_into; with max_response_payload each attempt has memory of "
                      "its own");
  }
  if (series.attempts() > 1) {
    status = Annotate(status, fmt::format("after {} attempts", series.attempts()));
  }
  co_return outcome.Of(std::move(status));
}

// In a coroutine of its own, so that other calls have no room for a fence.
Task<absl::Status> RetriedBehindFence(AttemptMaker& maker, RetryAccount& account,
                                      const RetryPolicy& policy, CallSpec spec) {
  AttemptFence fence(co_await CurrentContext(), {.channel = spec.channel,
                                                 .method = spec.method,
                                                 .options = spec.options,
                                                 .deadline = spec.deadline,
                                                 .brings_room = spec.buffers.gave_room(),
                                                 .attempt_timeout = policy.attempt_timeout});
  spec.fence = &fence;
  co_return co_await Retried(maker, account, policy, spec);
}

}  // namespace

VERBENA_CORO_WRAPPER Task<absl::Status> RetriedCall(AttemptMaker& maker, RetryAccount& account,
                                                    const RetryPolicy& policy, CallSpec spec) {
  return AttemptFence::IsNeeded(spec.method) ? RetriedBehindFence(maker, account, policy, spec)
                                             : Retried(maker, account, policy, spec);
}

bool MayBeHedged(const MethodDescriptor& method, const CallOptions& options) {
  return MayRunAtOnce(method) && !options.request_payload.present() &&
         !options.response_payload_into;
}

Task<absl::Status> HedgedCall(AttemptMaker& maker, RetryAccount& account,
                              const HedgingPolicy& policy, CallSpec spec) {
  account.Add(RetryAccount::Count::kCalls);
  Hedges hedges(co_await CurrentContext(), maker, account, policy, spec);
  co_await hedges.Race();
  co_return hedges.Take();
}

}  // namespace verbena::internal
