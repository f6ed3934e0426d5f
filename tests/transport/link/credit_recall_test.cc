// A recall is open until as many credits are free as were asked for. It tells credits that the peer
// was asked for from others. A peer that keeps some gets a number of checks, and no more.

#include "verbena/transport/link/credits.h"

#include <cstdint>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "verbena/transport/link/limits.h"

namespace verbena::internal {
namespace credit_recall_test {

class CreditRecallTest : public testing::Test {
 protected:
  CreditRecallTest() { recall_.Begin(8); }

  absl::Status Check(bool is_due = false) { return recall_.Check(is_due); }

  CreditRecall recall_;
};

TEST_F(CreditRecallTest, IsNotOpenBeforeItBegins) { EXPECT_FALSE(CreditRecall().open()); }

TEST_F(CreditRecallTest, EndsWhenAllThatWasAskedForIsFree) {
  EXPECT_TRUE(recall_.open());
  recall_.Free(7);
  EXPECT_EQ(recall_.missing(), 1u);
  EXPECT_TRUE(recall_.open());
  recall_.Free(1);
  EXPECT_FALSE(recall_.open());
}

TEST_F(CreditRecallTest, IsNotOpenIfNothingIsAskedFor) {
  recall_.Begin(0);
  EXPECT_FALSE(recall_.open());
}

TEST_F(CreditRecallTest, TellsWhichReturnsWereAskedFor) {
  EXPECT_EQ(recall_.Answer(5), 5u);
  EXPECT_EQ(recall_.Answer(5), 3u);
  EXPECT_EQ(recall_.Answer(5), 0u);
}

TEST_F(CreditRecallTest, ExpectsALateAnswerAfterItsEnd) {
  recall_.Free(8);
  EXPECT_EQ(recall_.Answer(9), 8u);
}

// A RECALL's limit counts all that was ever returned.
TEST_F(CreditRecallTest, TwoRecallsAllowTheGreaterOfBoth) {
  recall_.Free(8);
  recall_.Begin(3);
  EXPECT_EQ(recall_.Answer(1), 1u);
  recall_.Free(3);
  recall_.Begin(6);
  EXPECT_EQ(recall_.Answer(9), 7u);
}

TEST_F(CreditRecallTest, FailsAfterAFewChecksWithoutAnAnswer) {
  for (uint32_t i = 0; i < kMaxUnansweredRecalls; ++i) EXPECT_EQ(Check(), absl::OkStatus());
  const absl::Status status = Check();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_TRUE(recall_.open());
}

// A RECALL that could not be sent yet is no fault of the answer.
TEST_F(CreditRecallTest, CountsChecksBeforeTheRecallWasSentForThemselves) {
  for (uint32_t i = 0; i < kMaxUnsentRecalls; ++i) EXPECT_EQ(Check(true), absl::OkStatus());
  for (uint32_t i = 0; i < kMaxUnansweredRecalls; ++i) EXPECT_EQ(Check(), absl::OkStatus());
  const absl::Status status = Check(true);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
}

TEST_F(CreditRecallTest, JudgesASecondRecallByItself) {
  for (uint32_t i = 0; i < kMaxUnsentRecalls; ++i) EXPECT_EQ(Check(true), absl::OkStatus());
  for (uint32_t i = 0; i < kMaxUnansweredRecalls; ++i) EXPECT_EQ(Check(), absl::OkStatus());
  recall_.Free(8);
  ASSERT_FALSE(recall_.open());
  recall_.Begin(4);
  EXPECT_TRUE(recall_.open());
  EXPECT_EQ(Check(true), absl::OkStatus());
  EXPECT_EQ(Check(), absl::OkStatus());
}

}  // namespace credit_recall_test
}  // namespace verbena::internal
