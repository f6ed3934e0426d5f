// A call with a RetryPolicy makes attempts one after another, within its own deadline, with the
// caller's memory in each, and says what all of them together may have done.

#include "verbena/rpc/client/attempts.h"

#include <chrono>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tests/rpc/client/scripted_attempts.h"
#include "tests/rpc/testing.pb.h"
#include "tests/support/manual_scheduler.h"
#include "tests/transport/coro/started.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/client/fence.h"
#include "verbena/rpc/client/spec.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/sync.h"

namespace verbena::internal {
namespace retried_call_test {

using namespace std::chrono_literals;
using absl::StatusCode;

// Its first attempt has its server's word that its time has passed, in the turn in which the timer
// of the attempt is about to be called.
class AnswersAheadOfTheTimer final : public AttemptMaker, private Timer {
 public:
  // Made before the call begins, whose attempts may take `time`.
  AnswersAheadOfTheTimer(Scheduler& scheduler, Duration time) : scheduler_(scheduler) {
    scheduler_.StartTimer(*this, scheduler_.now() + time);
  }
  ~AnswersAheadOfTheTimer() override { scheduler_.StopTimer(*this); }

  Task<absl::Status> Attempt(CallSpec spec) override {
    if (++begun > 1) co_return absl::OkStatus();
    fence_ = spec.fence;
    VERBENA_CO_RETURN_IF_ERROR(co_await answered_.Wait());
    co_return Failure(StatusCode::kDeadlineExceeded, Outcome::kExecuted);
  }

  int begun = 0;

 private:
  void OnTimer() override {
    fence_->OnAnswered();
    answered_.Set();
  }

  Scheduler& scheduler_;
  AttemptFence* fence_ = nullptr;
  Event answered_;
};

class RetriedCallTest : public ::testing::Test {
 protected:
  VERBENA_CORO_WRAPPER Task<absl::Status> Call(AttemptMaker& attempts,
                                               const MethodDescriptor& method,
                                               CallOptions options = {}) {
    return CallFor(account_, attempts, method, std::move(options));
  }
  Task<absl::Status> CallFor(RetryAccount& account, AttemptMaker& attempts,
                             const MethodDescriptor& method, CallOptions options) {
    CallBuffers buffers(options, {});
    const CallSpec spec{.channel = nullptr,
                        .method = method,
                        .request = request_,
                        .reply = reply_,
                        .options = options,
                        .buffers = buffers,
                        .deadline = options.deadline.when(),
                        .info = options.info};
    absl::Status status = co_await RetriedCall(attempts, account, policy_, spec);
    buffers.Return();
    co_return status;
  }
  absl::Status Run(AttemptMaker& attempts, const MethodDescriptor& method,
                   CallOptions options = {}) {
    return scheduler_.Run(Call(attempts, method, std::move(options)));
  }
  Duration passed() const { return scheduler_.now() - ManualScheduler::kStart; }

  ManualScheduler scheduler_;
  RetryPolicy policy_;
  RetryAccount account_{RetryBudget{}};
  testing::EchoRequest request_;
  testing::EchoReply reply_;
};

TEST_F(RetriedCallTest, AttemptsFollowUntilOneEndsWell) {
  ScriptedAttempts attempts({{.status = Unavailable(Outcome::kNotExecuted)},
                             {.takes = 3ms, .status = Unavailable(Outcome::kNotExecuted)},
                             {.takes = 1ms}});
  CallInfo info{.request_bytes = 7};
  EXPECT_EQ(Run(attempts, kAdds, {.info = &info}), absl::OkStatus());
  EXPECT_EQ(reply_.number(), 2u);
  EXPECT_EQ(info.request_bytes, 7u) << "an attempt that does not measure its request keeps this";
  RetryStats stats;
  account_.AddTo(stats);
  EXPECT_EQ(stats.calls, 1u);
  EXPECT_EQ(stats.retries, 2u);
  EXPECT_EQ(stats.attempts, 3u);
}

TEST_F(RetriedCallTest, TheLastFailureTellsHowManyAttemptsThereWere) {
  ScriptedAttempts attempts(
      [](int) { return ScriptedAttempt{.status = Unavailable(Outcome::kNotExecuted)}; });
  const absl::Status status = Run(attempts, kAdds);
  EXPECT_EQ(attempts.begun, 3);
  EXPECT_EQ(status.message(),
            "after 3 attempts: as the test says; no further attempt: RetryPolicy::max_attempts is "
            "3");
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
}

TEST_F(RetriedCallTest, TheOutcomeIsThatOfAllAttempts) {
  ScriptedAttempts maybe({{.status = Unavailable(Outcome::kMaybeExecuted)},
                          {.status = Unavailable(Outcome::kExecuted)},
                          {.status = Unavailable(Outcome::kNotExecuted)}});
  EXPECT_EQ(OutcomeOf(Run(maybe, kSets)), Outcome::kMaybeExecuted);
  ScriptedAttempts ran({{.status = Unavailable(Outcome::kNotExecuted)},
                        {.status = Unavailable(Outcome::kExecuted)},
                        {.status = Unavailable(Outcome::kNotExecuted)}});
  EXPECT_EQ(OutcomeOf(Run(ran, kSets)), Outcome::kExecuted);
}

TEST_F(RetriedCallTest, AnAttemptThatHangsIsCutOffAndTheNextOneAnswers) {
  policy_.attempt_timeout = 20ms;
  for (const MethodDescriptor* method : {&kReads, &kSets}) {
    const Duration before = passed();
    ScriptedAttempts attempts({{.takes = 1h}, {.takes = 1ms}});
    EXPECT_EQ(Run(attempts, *method), absl::OkStatus());
    EXPECT_EQ(attempts.cut_off, 1);
    EXPECT_LT(passed() - before, 40ms);
  }
}

TEST_F(RetriedCallTest, AnAttemptHasTimedOutAlsoIfItsServerSaysSoFirst) {
  policy_.attempt_timeout = 20ms;
  AnswersAheadOfTheTimer attempts(scheduler_, policy_.attempt_timeout);
  EXPECT_EQ(Run(attempts, kSets), absl::OkStatus());
  EXPECT_EQ(attempts.begun, 2);
}

TEST_F(RetriedCallTest, TheCallsDeadlineHoldsForAllAttemptsTogether) {
  policy_.attempt_timeout = 20ms;
  policy_.max_attempts = 5;
  policy_.initial_backoff = 1ms;
  for (const MethodDescriptor* method : {&kReads, &kSets}) {
    const Duration before = passed();
    ScriptedAttempts attempts([](int) { return ScriptedAttempt{.takes = 1h}; });
    const absl::Status status = Run(attempts, *method, {.deadline = scheduler_.now() + 50ms});
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    EXPECT_EQ(attempts.begun, 3);
    EXPECT_EQ(passed() - before, 50ms);
  }
}

// A budget of two tokens allows no further attempt once one is gone.
TEST_F(RetriedCallTest, ACallsDeadlineTakesNoTokenHoweverTheCallHearsOfIt) {
  policy_.retryable_codes = {StatusCode::kDeadlineExceeded};
  for (const bool through_its_scope : {false, true}) {
    SCOPED_TRACE(through_its_scope);
    RetryAccount account{RetryBudget{.max_tokens = 2}};
    ScriptedAttempts attempts({{.takes = 1h}});
    const TimePoint deadline = scheduler_.now() + 50ms;
    Task<absl::Status> call = CallFor(account, attempts, kReads, {.deadline = deadline});
    if (through_its_scope) call = WithDeadline(std::move(call), deadline);
    EXPECT_TRUE(absl::IsDeadlineExceeded(scheduler_.Run(std::move(call))));
    EXPECT_EQ(attempts.begun, 1);
    EXPECT_TRUE(account.MayTakeMore());
  }
}

TEST_F(RetriedCallTest, ACancelledCallMakesNoFurtherAttempt) {
  ScriptedAttempts attempts({{.takes = 1h}});
  CancelScope scope;
  Started call(scheduler_, Call(attempts, kReads), &scope);
  scheduler_.RunUntilIdle();
  scope.Request();
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(call.done());
  EXPECT_TRUE(absl::IsCancelled(call.result()));
  EXPECT_EQ(attempts.begun, 1);
}

TEST_F(RetriedCallTest, ACancellationEndsAPause) {
  policy_.initial_backoff = 1s;
  ScriptedAttempts attempts({{.status = Unavailable(Outcome::kExecuted)}});
  CancelScope scope;
  Started call(scheduler_, Call(attempts, kReads), &scope);
  scheduler_.RunUntilIdle();
  ASSERT_FALSE(call.done());
  scope.Request();
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(call.done());
  const absl::Status status = call.result();
  EXPECT_TRUE(absl::IsCancelled(status));
  EXPECT_EQ(OutcomeOf(status), Outcome::kExecuted);
}

TEST_F(RetriedCallTest, ThePayloadGoesWithEachAttemptAndComesBack) {
  ScriptedAttempts attempts({{.status = Unavailable(Outcome::kNotExecuted)}, {}});
  Payload back;
  EXPECT_EQ(Run(attempts, kAdds, {.request_payload = Payload::Empty(), .returned_payload = &back}),
            absl::OkStatus());
  EXPECT_EQ(attempts.had_payload, (std::vector<bool>{true, true}));
  EXPECT_TRUE(back.present());
}

// The caller could change it meanwhile.
TEST_F(RetriedCallTest, APayloadThatAServerMayStillReadIsSentAgainAndDoesNotComeBack) {
  ScriptedAttempts attempts(
      {{.status = Unavailable(Outcome::kMaybeExecuted), .payload_comes_back = false}, {}});
  Payload back = Payload::Empty();
  EXPECT_EQ(Run(attempts, kSets, {.request_payload = Payload::Empty(), .returned_payload = &back}),
            absl::OkStatus());
  EXPECT_EQ(attempts.had_payload, (std::vector<bool>{true, true}));
  EXPECT_FALSE(back.present());
}

TEST_F(RetriedCallTest, ALostPayloadIsNotBlamedOnMemoryForTheResponse) {
  ScriptedAttempts attempts(
      {{.status = Unavailable(Outcome::kNotExecuted), .payload_is_dropped = true}, {}});
  const absl::Status status = Run(attempts, kAdds, {.request_payload = Payload::Empty()});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_EQ(status.message().find("response_payload_into"), std::string_view::npos) << status;
  EXPECT_EQ(attempts.begun, 1);
}

}  // namespace retried_call_test
}  // namespace verbena::internal
