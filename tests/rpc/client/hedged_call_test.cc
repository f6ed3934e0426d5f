// A call with a HedgingPolicy asks a second server if the first one is slow, and takes the first
// good answer. So one slow server of three no longer makes the slowest calls. It never does so for
// a method that changes something, or while servers ask for time.

#include "verbena/rpc/client/attempts.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tests/rpc/client/scripted_attempts.h"
#include "tests/rpc/testing.pb.h"
#include "tests/support/manual_scheduler.h"
#include "tests/transport/coro/started.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/context.h"

namespace verbena::internal {
namespace hedged_call_test {

using namespace std::chrono_literals;
using absl::StatusCode;

class HedgedCallTest : public ::testing::Test {
 protected:
  VERBENA_CORO_WRAPPER Task<absl::Status> Call(ScriptedAttempts& attempts,
                                               CallOptions options = {}) {
    return CallFor(account_, attempts, std::move(options));
  }
  Task<absl::Status> CallFor(RetryAccount& account, ScriptedAttempts& attempts,
                             CallOptions options) {
    CallBuffers buffers(options, {});
    const CallSpec spec{.channel = nullptr,
                        .method = kReads,
                        .request = request_,
                        .reply = reply_,
                        .options = options,
                        .buffers = buffers,
                        .deadline = options.deadline.when(),
                        .info = options.info};
    absl::Status status = co_await HedgedCall(attempts, account, policy_, spec);
    buffers.Return();
    co_return status;
  }
  absl::Status Run(ScriptedAttempts& attempts, CallOptions options = {}) {
    began_ = scheduler_.now();
    return scheduler_.Run(Call(attempts, std::move(options)));
  }
  Duration passed() const { return scheduler_.now() - began_; }
  RetryStats stats() const {
    RetryStats stats;
    account_.AddTo(stats);
    return stats;
  }
  // The 99th percentile of `calls`, each of which takes the next of three servers, whose third is
  // slow.
  Duration SlowestOfHundred(int calls) {
    int turn = 0;
    ScriptedAttempts attempts(
        [&turn](int) { return ScriptedAttempt{.takes = turn++ % 3 == 2 ? 100ms : 1ms}; });
    std::vector<Duration> took;
    for (int i = 0; i < calls; ++i) {
      EXPECT_EQ(Run(attempts), absl::OkStatus());
      took.push_back(passed());
    }
    std::sort(took.begin(), took.end());
    return took[took.size() * 99 / 100];
  }

  ManualScheduler scheduler_;
  HedgingPolicy policy_;
  RetryAccount account_{RetryBudget{}};
  testing::EchoRequest request_;
  testing::EchoReply reply_;
  TimePoint began_;
};

TEST_F(HedgedCallTest, OneSlowServerOfThreeNoLongerMakesTheSlowestCalls) {
  policy_.delay = 1h;
  EXPECT_EQ(SlowestOfHundred(300), 100ms) << "without a second attempt";
  policy_.delay = 2ms;
  EXPECT_EQ(SlowestOfHundred(300), 3ms);
  EXPECT_LE(stats().hedges, 150u) << "calls that are fast have one attempt";
}

TEST_F(HedgedCallTest, TheFirstGoodAnswerWinsAndTheOthersAreCancelled) {
  ScriptedAttempts attempts({{.takes = 1h}, {.takes = 5ms}});
  CallInfo info{.request_bytes = 7};
  EXPECT_EQ(Run(attempts, {.info = &info}), absl::OkStatus());
  EXPECT_EQ(reply_.number(), 1u) << "the second attempt's reply";
  EXPECT_EQ(passed(), 15ms);
  EXPECT_EQ(info.request_bytes, 7u);
  EXPECT_EQ(attempts.cut_off, 1);
  EXPECT_EQ(stats().hedges, 1u);
}

TEST_F(HedgedCallTest, AFirstAnswerThatComesInTimeIsTheOnlyAttempt) {
  ScriptedAttempts attempts({{.takes = 9ms}});
  EXPECT_EQ(Run(attempts), absl::OkStatus());
  EXPECT_EQ(attempts.begun, 1);
  EXPECT_EQ(passed(), 9ms);
}

TEST_F(HedgedCallTest, AFailureThatMayPassMakesTheNextAttemptBeginAtOnce) {
  ScriptedAttempts attempts(
      {{.takes = 1ms, .status = Unavailable(Outcome::kNotExecuted)}, {.takes = 1ms}});
  EXPECT_EQ(Run(attempts), absl::OkStatus());
  EXPECT_EQ(passed(), 2ms);
}

TEST_F(HedgedCallTest, AnyOtherFailureEndsTheCall) {
  ScriptedAttempts attempts(
      {{.takes = 1h},
       {.takes = 1ms, .status = Failure(StatusCode::kNotFound, Outcome::kExecuted)}});
  EXPECT_TRUE(absl::IsNotFound(Run(attempts)));
  EXPECT_EQ(passed(), 11ms);
  EXPECT_EQ(attempts.cut_off, 1);
}

TEST_F(HedgedCallTest, AGoodAnswerThatComesWithAFailureWins) {
  policy_ = {.max_attempts = 3, .delay = Duration::zero()};
  ScriptedAttempts attempts(
      {{.takes = 1ms, .status = Failure(StatusCode::kNotFound, Outcome::kNotExecuted)},
       {.takes = 1ms},
       {.takes = 1ms, .status = Failure(StatusCode::kNotFound, Outcome::kNotExecuted)}});
  EXPECT_EQ(Run(attempts), absl::OkStatus());
  EXPECT_EQ(reply_.number(), 1u);
  EXPECT_EQ(attempts.cut_off, 0);
}

TEST_F(HedgedCallTest, TheCallFailsOnceAllAttemptsHaveFailed) {
  ScriptedAttempts attempts({{.takes = 30ms, .status = Unavailable(Outcome::kNotExecuted)},
                             {.takes = 1ms, .status = Unavailable(Outcome::kMaybeExecuted)}});
  const absl::Status status = Run(attempts);
  EXPECT_EQ(status.message(),
            "with 2 attempts: as the test says; no further attempt: HedgingPolicy::max_attempts is "
            "2");
  EXPECT_EQ(OutcomeOf(status), Outcome::kMaybeExecuted);
  EXPECT_EQ(passed(), 30ms) << "the first one might have done better";
}

TEST_F(HedgedCallTest, AServerThatAsksForTimeStopsFurtherAttempts) {
  policy_.max_attempts = 3;
  ScriptedAttempts attempts(
      {{.takes = 50ms},
       {.takes = 1ms, .status = WithRetryAfter(Unavailable(Outcome::kNotExecuted), 1s)},
       {.takes = 1ms}});
  EXPECT_EQ(Run(attempts), absl::OkStatus());
  EXPECT_EQ(attempts.begun, 2);
  EXPECT_EQ(reply_.number(), 0u);
}

TEST_F(HedgedCallTest, NoFurtherAttemptBeginsWhileTheBudgetIsEmpty) {
  for (int i = 0; i < 60; ++i) account_.OnFailure(Unavailable(Outcome::kNotExecuted));
  ScriptedAttempts attempts({{.takes = 50ms}});
  EXPECT_EQ(Run(attempts), absl::OkStatus());
  EXPECT_EQ(attempts.begun, 1);
  EXPECT_EQ(stats().refused_by_budget, 1u);
  ScriptedAttempts failing({{.takes = 50ms, .status = Unavailable(Outcome::kNotExecuted)}});
  EXPECT_EQ(Run(failing).message(),
            "as the test says; no further attempt: the retry budget is used up "
            "(RetryBudget::max_tokens is 100)");
}

TEST_F(HedgedCallTest, AFailureSaysThatItsServerAskedForTime) {
  ScriptedAttempts attempts(
      {{.takes = 1ms, .status = WithRetryAfter(Unavailable(Outcome::kNotExecuted), 1s)}});
  EXPECT_EQ(Run(attempts).message(),
            "as the test says; no further attempt: a server asked for time (retry_after)");
  ScriptedAttempts fatal({{.status = Failure(StatusCode::kNotFound, Outcome::kExecuted)}});
  EXPECT_EQ(Run(fatal).message(), "as the test says") << "no attempt could do better";
}

TEST_F(HedgedCallTest, NoHedgeBeginsWhileAnAttemptWaitsForAServer) {
  for (const Duration delay : {Duration(0), Duration(10ms)}) {
    policy_ = {.max_attempts = 3, .delay = delay};
    ScriptedAttempts attempts({{.takes = 5ms + delay, .seeks = 1s}, {.takes = 1h}, {.takes = 1h}});
    Started call(scheduler_, Call(attempts));
    scheduler_.AdvanceBy(999ms);
    EXPECT_EQ(attempts.begun, 1);
    scheduler_.AdvanceBy(1ms + delay);
    EXPECT_GT(attempts.begun, 1) << "so long after it has found one";
    scheduler_.AdvanceBy(5ms);
    ASSERT_TRUE(call.done());
    EXPECT_EQ(call.result(), absl::OkStatus());
  }
}

// A budget of two tokens allows no further attempt once one is gone.
TEST_F(HedgedCallTest, ACallsDeadlineTakesNoTokenHoweverTheCallHearsOfIt) {
  policy_.non_fatal_codes = {StatusCode::kDeadlineExceeded};
  for (const bool through_its_scope : {false, true}) {
    SCOPED_TRACE(through_its_scope);
    RetryAccount account{RetryBudget{.max_tokens = 2}};
    ScriptedAttempts attempts({{.takes = 1h}, {.takes = 1h}});
    const TimePoint deadline = scheduler_.now() + 50ms;
    Task<absl::Status> call = CallFor(account, attempts, {.deadline = deadline});
    if (through_its_scope) call = WithDeadline(std::move(call), deadline);
    EXPECT_TRUE(absl::IsDeadlineExceeded(scheduler_.Run(std::move(call))));
    EXPECT_EQ(attempts.begun, 2);
    EXPECT_TRUE(account.MayTakeMore());
  }
}

TEST_F(HedgedCallTest, ADelayOfZeroBeginsAllAtOnce) {
  policy_ = {.max_attempts = 3, .delay = Duration::zero()};
  ScriptedAttempts attempts({{.takes = 1h}, {.takes = 1h}, {.takes = 1ms}});
  EXPECT_EQ(Run(attempts), absl::OkStatus());
  EXPECT_EQ(passed(), 1ms);
}

TEST_F(HedgedCallTest, ACallerThatGivesUpEndsAllAttempts) {
  ScriptedAttempts attempts({{.takes = 1h}, {.takes = 1h}});
  CancelScope scope;
  Started call(scheduler_, Call(attempts), &scope);
  scheduler_.AdvanceBy(20ms);
  EXPECT_EQ(attempts.begun, 2);
  scope.Request();
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(call.done());
  EXPECT_TRUE(absl::IsCancelled(call.result()));
  EXPECT_EQ(attempts.cut_off, 2);
  // Before it began.
  ScriptedAttempts none({{.takes = 1h}});
  Started late(scheduler_, Call(none), &scope);
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(late.done());
  EXPECT_TRUE(absl::IsCancelled(late.result()));
}

TEST_F(HedgedCallTest, ACallThatIsDestroyedTakesItsAttemptsAlong) {
  ScriptedAttempts attempts({{.takes = 1h}, {.takes = 1h}});
  Started call(scheduler_, Call(attempts));
  scheduler_.AdvanceBy(20ms);
  call.Abandon();
  EXPECT_EQ(scheduler_.timer_count(), 0u);
}

TEST_F(HedgedCallTest, OnlyMethodsWithoutSideEffectsAreHedged) {
  EXPECT_TRUE(MayBeHedged(kReads, {}));
  EXPECT_FALSE(MayBeHedged(kSets, {}));
  EXPECT_FALSE(MayBeHedged(kAdds, {}));
  EXPECT_FALSE(MayBeHedged(kReads, {.request_payload = Payload::Empty()}))
      << "a payload goes with one attempt alone";
}

}  // namespace hedged_call_test
}  // namespace verbena::internal
