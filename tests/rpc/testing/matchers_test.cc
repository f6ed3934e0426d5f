// Each matcher tells what matches from what does not, and says why in words.

#include "verbena/rpc/testing/matchers.h"

#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/rpc/testing/notes.verbena.pb.h"
#include "tests/rpc/testing/notes_service.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/status.h"
#include "verbena/testing.h"

namespace verbena::testing::notes {
namespace matchers_test {

using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::Not;

template <typename Matcher, typename T>
std::string Explain(const Matcher& matcher, const T& value) {
  ::testing::StringMatchResultListener listener;
  ::testing::SafeMatcherCast<const T&>(matcher).MatchAndExplain(value, &listener);
  return listener.str();
}

template <typename T, typename Matcher>
std::string Describe(const Matcher& matcher) {
  return ::testing::DescribeMatcher<T>(matcher);
}

TEST(MatchersTest, IsOkTakesStatusesAndResults) {
  EXPECT_THAT(absl::OkStatus(), IsOk());
  EXPECT_THAT(absl::StatusOr<int>(1), IsOk());
  EXPECT_THAT(absl::NotFoundError("a"), Not(IsOk()));
  EXPECT_THAT(absl::StatusOr<int>(absl::NotFoundError("a")), Not(IsOk()));
  EXPECT_EQ(Explain(IsOk(), absl::NotFoundError("a")), "which is NOT_FOUND: a");
}

TEST(MatchersTest, IsOkAndHoldsLooksAtTheValue) {
  EXPECT_THAT(absl::StatusOr<int>(1), IsOkAndHolds(1));
  EXPECT_THAT(absl::StatusOr<int>(2), IsOkAndHolds(Gt(1)));
  EXPECT_THAT(absl::StatusOr<int>(2), Not(IsOkAndHolds(1)));
  EXPECT_THAT(absl::StatusOr<int>(absl::NotFoundError("a")), Not(IsOkAndHolds(1)));
  EXPECT_EQ(Explain(IsOkAndHolds(1), absl::StatusOr<int>(absl::NotFoundError("a"))),
            "which is NOT_FOUND: a");
  EXPECT_EQ(Describe<absl::StatusOr<int>>(IsOkAndHolds(1)),
            "is OK and holds a value that is equal to 1");
}

TEST(MatchersTest, StatusIsLooksAtCodeAndMessage) {
  const absl::Status status = absl::NotFoundError("no block");
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(absl::StatusOr<int>(status), StatusIs(absl::StatusCode::kNotFound, "no block"));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound, HasSubstr("block")));
  EXPECT_THAT(status, Not(StatusIs(absl::StatusCode::kNotFound, "block")));
  EXPECT_THAT(status, Not(StatusIs(absl::StatusCode::kAborted)));
  EXPECT_EQ(Describe<absl::Status>(StatusIs(absl::StatusCode::kNotFound, HasSubstr("x"))),
            "is NOT_FOUND, and its message has substring \"x\"");
}

TEST(MatchersTest, HasOutcomeLooksAtWhatIsKnownOfTheCall) {
  const absl::Status status = WithOutcome(absl::UnavailableError("gone"), Outcome::kNotExecuted);
  EXPECT_THAT(status, HasOutcome(Outcome::kNotExecuted));
  EXPECT_THAT(absl::StatusOr<int>(status), HasOutcome(Outcome::kNotExecuted));
  EXPECT_THAT(status, Not(HasOutcome(Outcome::kMaybeExecuted)));
  EXPECT_THAT(absl::OkStatus(), HasOutcome(Outcome::kExecuted));
  EXPECT_THAT(absl::UnavailableError("bare"), HasOutcome(Outcome::kMaybeExecuted));
  EXPECT_THAT(Explain(HasOutcome(Outcome::kExecuted), status),
              HasSubstr("whose outcome is not_executed, which is UNAVAILABLE: gone"));
}

TEST(MatchersTest, PayloadIsLooksAtBytes) {
  InProcess<NotesService> notes;
  absl::StatusOr<WithPayload<Text>> reply =
      notes.Run(Notes::Stub(notes.channel()).Fetch(TextOf("some bytes")));
  EXPECT_THAT(reply, IsOkAndHolds(PayloadIs("some bytes")));
  ASSERT_THAT(reply, IsOk());
  EXPECT_THAT(*reply, Not(PayloadIs("some byte")));
  EXPECT_THAT(reply->payload, PayloadIs("some bytes"));
  EXPECT_THAT(reply->payload.view(), PayloadIs(HasSubstr("bytes")));
  EXPECT_EQ(Explain(PayloadIs("x"), *reply), "whose payload has 10 bytes: \"some bytes\"");
  Payload parts;
  parts.Add(std::move(reply->payload), {{5, 5}, {0, 4}});
  EXPECT_THAT(parts, PayloadIs("bytessome"));
  EXPECT_THAT(Payload::Empty(), PayloadIs(""));
}

}  // namespace matchers_test
}  // namespace verbena::testing::notes
