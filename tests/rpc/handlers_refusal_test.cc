// A handler's refusal: the caller learns that the call changed nothing, and when to try again.

#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "tests/rpc/testing_service.h"
#include "verbena/rpc/status.h"

namespace verbena::internal {
namespace handlers_refusal_test {

using std::chrono::microseconds;
using std::chrono::nanoseconds;

class HandlersRefusalTest : public RpcTest {
 protected:
  void SetUp() override { StartBoth(); }

  absl::Status Fail(const testing::FailRequest& request) {
    const auto call = [&]() -> Task<absl::Status> {
      co_return (co_await stub_->Fail(request)).status();
    };
    return Run(call());
  }
  static testing::FailRequest Failure() {
    testing::FailRequest request;
    request.set_code(static_cast<int>(absl::StatusCode::kUnavailable));
    request.set_message("not the leader");
    request.set_detail_url("example/leader");
    request.set_detail("storage-3:4000");
    return request;
  }
};

TEST_F(HandlersRefusalTest, TheCallerHearsThatNothingWasDoneAndWhenToTryAgain) {
  testing::FailRequest request = Failure();
  request.set_not_executed(true);
  request.set_retry_after_us(1500);
  const absl::Status status = Annotate(Fail(request), "a write");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "a write: not the leader");
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
  EXPECT_EQ(RetryAfterOf(status), microseconds(1500));
  EXPECT_EQ(status.GetPayload("example/leader"), absl::Cord("storage-3:4000"));
}

TEST_F(HandlersRefusalTest, OtherErrorsOfAHandlerAreExecuted) {
  const absl::Status status = Fail(Failure());
  EXPECT_EQ(OutcomeOf(status), Outcome::kExecuted);
  EXPECT_EQ(RetryAfterOf(status), std::nullopt);
}

TEST_F(HandlersRefusalTest, AnErrorThatTheHandlerMeetsLaterIsExecuted) {
  testing::FailRequest request = Failure();
  request.set_not_executed(true);
  request.set_goes_on(true);
  EXPECT_EQ(OutcomeOf(Fail(request)), Outcome::kExecuted);
  // The next call of the same pooled object begins anew.
  request.set_not_executed(false);
  EXPECT_EQ(OutcomeOf(Fail(request)), Outcome::kExecuted);
}

TEST_F(HandlersRefusalTest, ARefusalThatIsOkIsNoFailure) {
  testing::FailRequest request;
  request.set_not_executed(true);
  request.set_retry_after_us(1500);
  EXPECT_EQ(Fail(request), absl::OkStatus());
}

// A handler passes on the error of a call of its own, which was not executed; but it was.
TEST_F(HandlersRefusalTest, AnErrorFromElsewhereDoesNotSayThatThisHandlerDidNothing) {
  testing::FailRequest request = Failure();
  request.set_detail_url("type.verbena/outcome");
  request.set_detail("not_executed");
  EXPECT_EQ(OutcomeOf(Fail(request)), Outcome::kExecuted);
}

TEST_F(HandlersRefusalTest, AHandlerThatWentOnDoesNotRefuseByTheErrorOfACallOfItsOwn) {
  testing::FailRequest request = Failure();
  request.set_not_executed(true);
  request.set_goes_on(true);
  request.set_detail_url("type.verbena/outcome");
  request.set_detail("not_executed");
  EXPECT_EQ(OutcomeOf(Fail(request)), Outcome::kExecuted);
}

TEST(RetryAfterTest, DelaysAreRoundedUpAndTheLastOneCounts) {
  const absl::Status status = absl::UnavailableError("full");
  EXPECT_EQ(RetryAfterOf(WithRetryAfter(status, nanoseconds(0))), nanoseconds(0));
  EXPECT_EQ(RetryAfterOf(WithRetryAfter(status, nanoseconds(1))), microseconds(1));
  EXPECT_EQ(RetryAfterOf(WithRetryAfter(WithRetryAfter(status, microseconds(7)), microseconds(3))),
            microseconds(3));
  EXPECT_GT(*RetryAfterOf(WithRetryAfter(status, Duration::max())), std::chrono::hours(1'000'000));
}

TEST(RetryAfterTest, ADelayOfAPeerThatIsNoNumberIsNone) {
  for (const char* value : {"", "soon", "-1", "1e9", "99999999999999999999"}) {
    absl::Status status = absl::UnavailableError("full");
    status.SetPayload("type.verbena/retry_after_us", absl::Cord(value));
    EXPECT_EQ(RetryAfterOf(status), std::nullopt) << value;
  }
  absl::Status status = absl::UnavailableError("full");
  status.SetPayload("type.verbena/retry_after_us", absl::Cord("18446744073709551615"));
  EXPECT_EQ(RetryAfterOf(status), Duration::max());
}

TEST(RetryAfterTest, AnOkStatusStaysAsItIs) {
  EXPECT_EQ(WithRetryAfter(absl::OkStatus(), microseconds(1)), absl::OkStatus());
  EXPECT_EQ(WithOutcome(absl::OkStatus(), Outcome::kNotExecuted), absl::OkStatus());
}

TEST(RetryAfterDeathTest, ANegativeDelayAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(WithRetryAfter(absl::UnavailableError("full"), microseconds(-1)).IgnoreError(),
               "-1000 ns");
}

}  // namespace handlers_refusal_test
}  // namespace verbena::internal
