// A failure that is explained to people keeps its code, outcome and details for programs.

#include "examples/common/explained.h"

#include <string>

#include "absl/strings/cord.h"
#include "gtest/gtest.h"
#include "verbena/rpc/status.h"

namespace examples {
namespace explained_test {

using verbena::Outcome;

TEST(ExplainedTest, OutcomeAndDetailsOfAFailedCallSurvive) {
  for (const Outcome outcome :
       {Outcome::kNotExecuted, Outcome::kExecuted, Outcome::kMaybeExecuted}) {
    absl::Status failed = verbena::WithOutcome(absl::UnavailableError("the link is lost"), outcome);
    failed.SetPayload("type.test/detail", absl::Cord("detail"));
    const absl::Status explained = Explained("Write of volume 'v'", failed);
    EXPECT_EQ(explained.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(verbena::OutcomeOf(explained), outcome);
    EXPECT_EQ(explained.GetPayload("type.test/detail"), absl::Cord("detail"));
    EXPECT_EQ(std::string(explained.message()), std::string("Write of volume 'v': UNAVAILABLE (") +
                                                    verbena::OutcomeName(outcome) +
                                                    "): the link is lost");
  }
}

TEST(ExplainedTest, SuccessStaysSuccess) { EXPECT_TRUE(Explained("Write", absl::OkStatus()).ok()); }

}  // namespace explained_test
}  // namespace examples
