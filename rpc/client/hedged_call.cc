#include "verbena/rpc/client/hedged_call.h"

#include <array>
#include <memory>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "fmt/format.h"
#include "verbena/rpc/annotate.h"
#include "verbena/rpc/client/retry_rules.h"
#include "verbena/rpc/retry_after.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/deadline.h"
#include "verbena/transport/coro/event.h"
#include "verbena/transport/coro/task_scope.h"

namespace verbena::internal {
namespace {

using google::protobuf::MessageLite;

// The attempts of one call. They run in a scope that ends before it does.
class Hedges {
 public:
  Hedges(const RetryableCall& call, const HedgingPolicy& policy, const CallOptions& options)
      : call_(call), policy_(policy), options_(options) {}
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
  bool won() const { return last_ != nullptr && last_->status.ok(); }
  bool may_begin() const { return may_begin_ && begun_ < policy_.max_attempts; }
  Task<absl::Status> Changed() { co_return co_await changed_.Wait(); }

  const RetryableCall& call_;
  const HedgingPolicy& policy_;
  const CallOptions& options_;
  std::array<Attempt, RetryPolicy::kMaxAttempts> attempts_;
  TriedServers tried_;
  Event changed_;  // an attempt has ended
  int begun_ = 0;
  int running_ = 0;
  bool may_begin_ = true;
  bool next_is_due_ = false;  // an attempt has failed
  bool decided_ = false;      // last_ is the call's result, unless another one is good
  Attempt* last_ = nullptr;   // of those that have ended
};

void Hedges::Begin(TaskScope& running) {
  if (begun_ > 0) {
    if (!call_.account.MayTakeMore()) {
      may_begin_ = false;
      return;
    }
    call_.account.Add(RetryAccount::Count::kHedges);
  }
  Attempt& attempt = attempts_[begun_];
  if (begun_ > 0) attempt.own_reply.reset(call_.reply.New());
  ++begun_;
  ++running_;
  running.Spawn(Run(attempt));
}

Task<void> Hedges::Run(Attempt& attempt) {
  absl::Cleanup ended = [this, &attempt] {
    attempt.ended = true;
    changed_.Set();
  };
  CallOptions options = OptionsOfAttempt(options_);
  if (options_.info != nullptr) options.info = &attempt.info;
  PayloadSink received;
  if (call_.received.payload != nullptr) received = {&attempt.payload, &attempt.has_payload};
  MessageLite& reply = attempt.own_reply != nullptr ? *attempt.own_reply : call_.reply;
  attempt.status = co_await call_.maker.Attempt(reply, received, std::move(options), tried_);
}

// A good answer counts also if it comes at once with, or behind, a failure that ends the call: its
// server has run the call.
void Hedges::Look() {
  for (int i = 0; i < begun_ && !won(); ++i) {
    Attempt& attempt = attempts_[i];
    if (!attempt.ended || attempt.seen) continue;
    attempt.seen = true;
    --running_;
    if (attempt.status.ok()) {
      last_ = &attempt;
      call_.account.OnSuccess();
      decided_ = true;
    } else if (!decided_) {
      last_ = &attempt;
      OnFailure(attempt);
    }
  }
}

void Hedges::OnFailure(const Attempt& attempt) {
  if (!HasCode(policy_.non_fatal_codes, attempt.status)) {
    decided_ = true;
    return;
  }
  call_.account.OnFailure();
  if (RetryAfterOf(attempt.status).has_value()) may_begin_ = false;
  next_is_due_ = true;
}

Task<void> Hedges::Race() {
  const TaskContext context = co_await CurrentContext();
  TaskScope running(context);
  TimePoint next = context.scheduler->now();
  const auto gives_up = [&context] {
    return context.cancel != nullptr && context.cancel->requested();
  };
  for (;;) {
    Look();
    if (decided_ || (begun_ > 0 && gives_up())) break;
    if (may_begin() && (next_is_due_ || next <= context.scheduler->now())) {
      Begin(running);
      next_is_due_ = false;
      next = SaturatingAdd(context.scheduler->now(), policy_.delay);
      continue;
    }
    if (running_ == 0) break;
    changed_.Reset();
    (void)co_await WithDeadline(Changed(), may_begin() ? next : kNever);
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
  if (options_.info != nullptr) *options_.info = std::move(last_->info);
  if (!last_->status.ok()) {
    if (begun_ == 1) return last_->status;
    return outcome.Of(Annotate(last_->status, fmt::format("with {} attempts", begun_)));
  }
  if (last_->own_reply != nullptr) {
    call_.reply.Clear();
    call_.reply.CheckTypeAndMergeFrom(*last_->own_reply);
  }
  call_.received.Set(std::move(last_->payload), last_->has_payload);
  return absl::OkStatus();
}

}  // namespace

bool MayBeHedged(const MethodDescriptor& method, const CallOptions& options) {
  return MayRunAtOnce(method) && !options.request_payload.present() &&
         !options.response_payload_into;
}

Task<absl::Status> HedgedCall(RetryableCall call, const HedgingPolicy& policy,
                              CallOptions options) {
  const Scheduler& scheduler = *(co_await CurrentContext()).scheduler;
  const TimePoint began = scheduler.now();
  call.account.Add(RetryAccount::Count::kCalls);
  if (options.returned_payload != nullptr) *options.returned_payload = Payload();
  call.received.Set(Buffer(), false);
  Hedges hedges(call, policy, options);
  co_await hedges.Race();
  absl::Status status = hedges.Take();
  if (options.info != nullptr) options.info->elapsed = scheduler.now() - began;
  co_return status;
}

}  // namespace verbena::internal
