// After a failed attempt of a call, another one follows only if the policy, the rules of safety,
// the budget and the deadline allow it, and the pause before it is the policy's or the server's.

#include "verbena/rpc/client/attempts.h"

#include <chrono>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/rpc/client/scripted_attempts.h"
#include "verbena/rpc/call/status_codec.h"
#include "verbena/rpc/policy.h"
#include "verbena/rpc/status.h"

namespace verbena::internal {
namespace retry_series_test {

using namespace std::chrono_literals;
using absl::StatusCode;

constexpr TimePoint kNow{1h};

// The failure of a call that was under way on this link.
absl::Status LostWithLink(int link) {
  absl::Status failure = Unavailable(Outcome::kMaybeExecuted);
  const std::string number = std::to_string(link);
  failure.SetPayload(kLostLinkPayloadUrl, absl::Cord(number));
  return failure;
}

class RetrySeriesTest : public ::testing::Test {
 protected:
  // The pause after a first attempt that failed so.
  std::optional<Duration> AfterFirst(const MethodDescriptor& method, const absl::Status& failure,
                                     TimePoint deadline = kNever) {
    RetrySeries series(policy_, method, account_, random_);
    return series.After({.status = failure, .now = kNow, .deadline = deadline});
  }
  // What the caller of a call hears whose first attempt failed so, and had no second one.
  std::string Heard(const MethodDescriptor& method, RetryAccount& account,
                    const absl::Status& failure, TimePoint deadline = kNever) {
    RetrySeries series(policy_, method, account, random_);
    EXPECT_FALSE(series.After({.status = failure, .now = kNow, .deadline = deadline}).has_value());
    const absl::Status explained = series.Explained(failure);
    EXPECT_EQ(explained.code(), failure.code());
    EXPECT_EQ(OutcomeOf(explained), OutcomeOf(failure));
    return std::string(explained.message());
  }
  RetryStats stats() const {
    RetryStats stats;
    account_.AddTo(stats);
    return stats;
  }

  RetryPolicy policy_;
  RetryAccount account_{RetryBudget{}};
  SeededRandom random_{1};
};

TEST_F(RetrySeriesTest, SafetyDependsOnTheOutcomeAndTheMethod) {
  EXPECT_TRUE(AfterFirst(kReads, Unavailable(Outcome::kMaybeExecuted)).has_value());
  EXPECT_TRUE(AfterFirst(kSets, Unavailable(Outcome::kExecuted)).has_value());
  EXPECT_TRUE(AfterFirst(kAdds, Unavailable(Outcome::kNotExecuted)).has_value());
  EXPECT_EQ(stats().refused_as_unsafe, 0u);
  EXPECT_FALSE(AfterFirst(kAdds, Unavailable(Outcome::kMaybeExecuted)).has_value());
  EXPECT_FALSE(AfterFirst(kAdds, Unavailable(Outcome::kExecuted)).has_value());
  // Nothing is known of a Status without an outcome.
  EXPECT_FALSE(AfterFirst(kAdds, absl::UnavailableError("")).has_value());
  EXPECT_EQ(stats().refused_as_unsafe, 3u);
}

TEST_F(RetrySeriesTest, OnlyCodesOfThePolicyAreRetried) {
  policy_.retryable_codes = {StatusCode::kAborted};
  EXPECT_TRUE(AfterFirst(kReads, Failure(StatusCode::kAborted, Outcome::kNotExecuted)).has_value());
  EXPECT_FALSE(AfterFirst(kReads, Unavailable(Outcome::kNotExecuted)).has_value());
}

TEST_F(RetrySeriesTest, ThereAreNoMoreAttemptsThanThePolicyAllows) {
  policy_.max_attempts = 3;
  RetrySeries series(policy_, kReads, account_, random_);
  const absl::Status failure = Unavailable(Outcome::kNotExecuted);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(series.After({.status = failure, .now = kNow}).has_value());
    series.Begin();
  }
  EXPECT_EQ(series.attempts(), 3);
  EXPECT_FALSE(series.After({.status = failure, .now = kNow}).has_value());
  EXPECT_EQ(series.Explained(failure).message(),
            "as the test says; no further attempt: RetryPolicy::max_attempts is 3");
  EXPECT_EQ(stats().retries, 2u);
}

TEST_F(RetrySeriesTest, PausesGrowAndVaryAtRandom) {
  policy_ = {.max_attempts = 4, .initial_backoff = 10ms, .max_backoff = 15ms};
  std::set<Duration> first;
  const absl::Status failure = Unavailable(Outcome::kNotExecuted);
  for (int i = 0; i < 20; ++i) {
    RetryAccount account{RetryBudget{.max_tokens = 0}};
    RetrySeries series(policy_, kReads, account, random_);
    const Duration pause = *series.After({.status = failure, .now = kNow});
    first.insert(pause);
    EXPECT_GE(pause, 8ms);
    EXPECT_LE(pause, 12ms);
    series.Begin();
    const Duration second = *series.After({.status = failure, .now = kNow});
    EXPECT_GE(second, 12ms) << "20 ms would be longer than the longest pause";
    EXPECT_LE(second, 18ms);
  }
  EXPECT_GT(first.size(), 10u);
}

TEST_F(RetrySeriesTest, APauseLastsAtLeastAsLongAsTheServerAsks) {
  const absl::Status failure = WithRetryAfter(Unavailable(Outcome::kNotExecuted), 500ms);
  const std::optional<Duration> pause = AfterFirst(kAdds, failure);
  ASSERT_TRUE(pause.has_value());
  EXPECT_GE(*pause, 500ms);
  EXPECT_LE(*pause, 510ms);
  // A peer may send any delay.
  const absl::Status odd = WithRetryAfter(Unavailable(Outcome::kNotExecuted), Duration::max());
  EXPECT_LE(*AfterFirst(kAdds, odd), 25h);
}

TEST_F(RetrySeriesTest, NoAttemptFollowsThatWouldBeginAfterTheDeadline) {
  const absl::Status failure = WithRetryAfter(Unavailable(Outcome::kNotExecuted), 500ms);
  EXPECT_FALSE(AfterFirst(kAdds, failure, kNow + 400ms).has_value());
  EXPECT_TRUE(AfterFirst(kAdds, failure, kNow + 600ms).has_value());
}

TEST_F(RetrySeriesTest, AnAttemptThatTimedOutIsRetriedWhateverItsCodeIs) {
  const absl::Status failure = Failure(StatusCode::kDeadlineExceeded, Outcome::kMaybeExecuted);
  EXPECT_FALSE(AfterFirst(kReads, failure).has_value());
  RetrySeries reads(policy_, kReads, account_, random_);
  EXPECT_TRUE(reads.After({.status = failure, .timed_out = true, .now = kNow}).has_value());
  RetrySeries adds(policy_, kAdds, account_, random_);
  EXPECT_FALSE(adds.After({.status = failure, .timed_out = true, .now = kNow}).has_value());
}

TEST_F(RetrySeriesTest, NoFurtherAttemptBeginsOnceHalfTheTokensAreGone) {
  RetryAccount account{RetryBudget{.max_tokens = 10, .token_ratio = 0.5}};
  const absl::Status failure = Unavailable(Outcome::kNotExecuted);
  const auto may_follow = [&] {
    RetrySeries series(policy_, kReads, account, random_);
    return series.After({.status = failure, .now = kNow}).has_value();
  };
  // Each failure takes a token: 9, 8, 7 and 6 are left, then 5.
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(may_follow());
  EXPECT_FALSE(may_follow());
  // 4.5 tokens, after the failure is counted.
  account.OnSuccess();
  EXPECT_FALSE(may_follow());
  // 7, and 6 after the failure.
  for (int i = 0; i < 5; ++i) account.OnSuccess();
  EXPECT_TRUE(may_follow());
  RetryStats stats;
  account.AddTo(stats);
  EXPECT_EQ(stats.refused_by_budget, 2u);
}

TEST_F(RetrySeriesTest, CallsOfALostLinkTakeOneTokenTogether) {
  RetryAccount account{RetryBudget{.max_tokens = 6}};
  const auto may_follow = [&](const absl::Status& failure) {
    RetrySeries series(policy_, kReads, account, random_);
    return series.After({.status = failure, .now = kNow}).has_value();
  };
  for (int call = 0; call < 100; ++call) {
    // 5 tokens are left, then 4: the calls of two links may end in any order.
    EXPECT_TRUE(may_follow(LostWithLink(1))) << call;
    EXPECT_TRUE(may_follow(LostWithLink(2))) << call;
  }
  // 3 are left. What a server answers takes one each time.
  EXPECT_FALSE(may_follow(Unavailable(Outcome::kNotExecuted)));
}

// As when servers crash again and again: what many lost links add has an end, too.
TEST_F(RetrySeriesTest, ManyLostLinksUseTheBudgetUp) {
  RetryAccount account{RetryBudget{.max_tokens = 6}};
  int further = 0;
  for (int link = 1; link <= 10; ++link) {
    for (int call = 0; call < 100; ++call) {
      RetrySeries series(policy_, kReads, account, random_);
      further += series.After({.status = LostWithLink(link), .now = kNow}).has_value() ? 1 : 0;
    }
  }
  EXPECT_EQ(further, 200) << "of two links; the third leaves half of the tokens";
  for (int call = 0; call < 31; ++call) account.OnSuccess();
  EXPECT_TRUE(account.MayTakeMore()) << "calls that end well give tokens back";
}

// The account knows the last 16 links that were lost.
TEST_F(RetrySeriesTest, ALinkThatWasLostLongAgoTakesAnotherToken) {
  RetryAccount account{RetryBudget{.max_tokens = 36}};
  for (int link = 1; link <= 17; ++link) account.OnFailure(LostWithLink(link));
  account.OnFailure(LostWithLink(17));
  EXPECT_TRUE(account.MayTakeMore()) << "19 are left";
  account.OnFailure(LostWithLink(1));
  EXPECT_FALSE(account.MayTakeMore()) << "18 are left";
}

TEST_F(RetrySeriesTest, AFailureEndsWithTheReasonWhyNoAttemptFollows) {
  const absl::Status passing = Unavailable(Outcome::kMaybeExecuted);
  EXPECT_EQ(Heard(kAdds, account_, passing),
            "as the test says; no further attempt: test.Test/Adds is neither idempotent nor "
            "deduplicated, and the outcome is maybe_executed");
  const MethodDescriptor deduplicated("test.Test/Adds", Idempotency::kUnknown, Payloads::kNone,
                                      Streams::kNone, /*is_deduplicated=*/true);
  EXPECT_EQ(Heard(deduplicated, account_, Unavailable(Outcome::kExecuted)),
            "as the test says; no further attempt: the server keeps this result of the "
            "deduplicated call");
  EXPECT_THAT(Heard(kReads, account_, WithRetryAfter(passing, 500ms), kNow + 400ms),
              ::testing::ContainsRegex("as the test says; no further attempt: the pause of 5.. ms "
                                       "before it would outlast the call's deadline"));
  RetryAccount small{RetryBudget{.max_tokens = 1.5}};
  EXPECT_EQ(Heard(kReads, small, passing),
            "as the test says; no further attempt: the retry budget is used up "
            "(RetryBudget::max_tokens is 1.5)");
  EXPECT_EQ(Heard(kReads, account_, Failure(StatusCode::kNotFound, Outcome::kExecuted)),
            "as the test says")
      << "the policy does not retry it";
}

TEST_F(RetrySeriesTest, TokensNeitherExceedTheirMostNorFallBelowNone) {
  RetryAccount account{RetryBudget{.max_tokens = 2, .token_ratio = 1}};
  for (int i = 0; i < 10; ++i) account.OnSuccess();
  EXPECT_TRUE(account.MayTakeMore());
  account.OnFailure(Unavailable(Outcome::kNotExecuted));
  EXPECT_FALSE(account.MayTakeMore());
  for (int i = 0; i < 10; ++i) account.OnFailure(Unavailable(Outcome::kNotExecuted));
  for (int i = 0; i < 2; ++i) account.OnSuccess();
  EXPECT_TRUE(account.MayTakeMore());
}

TEST_F(RetrySeriesTest, TheLongestNameThatFitsSaysWhatHoldsForAMethod) {
  const ServiceConfig config{.methods = {{.name = "", .timeout = 1s},
                                         {.name = "test.Test", .timeout = 2s},
                                         {.name = "test.Test/Reads", .timeout = 3s}}};
  const CallPolicies policies(config, 1);
  EXPECT_EQ(policies.Of(kReads)->timeout, 3s);
  EXPECT_EQ(policies.Of(kSets)->timeout, 2s);
  const MethodDescriptor other("test.Tests/Reads", Idempotency::kUnknown);
  EXPECT_EQ(policies.Of(other)->timeout, 1s);
  const ServiceConfig one{.methods = {{.name = "test.Test/Reads"}}};
  const CallPolicies narrow(one, 1);
  EXPECT_EQ(narrow.Of(kSets), nullptr);
}

}  // namespace retry_series_test
}  // namespace verbena::internal
