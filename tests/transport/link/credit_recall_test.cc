// A recall ends when the peer has returned what it borrowed, or shows that it has none to spare. A
// peer that does neither gets a number of checks, and no more.

#include "verbena/transport/link/credits.h"

#include <cstdint>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "verbena/transport/link/limits.h"

namespace verbena::internal {
namespace {

// A link whose peer borrowed 8 credits beyond a window of 8. Both counters are about to wrap
// around.
class CreditRecallTest : public testing::Test {
 protected:
  CreditRecallTest() { recall_.Begin(counts_, counts_.surplus); }

  void Return(uint32_t count) {
    counts_.returned += count;
    counts_.window -= count;
    counts_.surplus -= count;
    recall_.Update(counts_);
  }
  void Receive(uint32_t sends) { counts_.received += sends; }
  absl::Status Check(bool is_due = false) { return recall_.Check(counts_, is_due); }

  CreditRecall::Counts counts_ = {
      .returned = 0xfffffffe, .received = 0xfffffffd, .window = 16, .surplus = 8};
  CreditRecall recall_;
};

TEST_F(CreditRecallTest, IsNotOpenBeforeItBegins) { EXPECT_FALSE(CreditRecall().open()); }

TEST_F(CreditRecallTest, EndsWhenAllThatWasAskedForIsReturned) {
  EXPECT_TRUE(recall_.open());
  Return(7);
  EXPECT_TRUE(recall_.open());
  Return(1);
  EXPECT_FALSE(recall_.open());
}

TEST_F(CreditRecallTest, CountsSendsOnTheirWayOnlyBesideCreditsThatAreReturned) {
  Receive(7);
  EXPECT_EQ(Check(), absl::OkStatus());
  EXPECT_TRUE(recall_.open());
  Return(1);
  EXPECT_FALSE(recall_.open());
}

TEST_F(CreditRecallTest, EndsWhenThePeerHasSentAsMuchAsItMayHold) {
  Receive(15);
  EXPECT_EQ(Check(), absl::OkStatus());
  EXPECT_TRUE(recall_.open());
  Receive(1);
  EXPECT_EQ(Check(), absl::OkStatus());
  EXPECT_FALSE(recall_.open());
}

TEST_F(CreditRecallTest, FailsAfterAFewChecksWithoutAnAnswer) {
  for (uint32_t i = 0; i < kMaxUnansweredRecalls; ++i) EXPECT_EQ(Check(), absl::OkStatus());
  const absl::Status status = Check();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_TRUE(recall_.open());
}

TEST_F(CreditRecallTest, AsksForAPartOfWhatThePeerBorrowed) {
  recall_.Begin(counts_, 3);
  EXPECT_EQ(recall_.limit(), 1u) << "three more than were returned, modulo 2^32";
  Return(2);
  EXPECT_TRUE(recall_.open());
  Return(1);
  EXPECT_FALSE(recall_.open());
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
  Return(8);
  ASSERT_FALSE(recall_.open());
  counts_.window += 4;
  counts_.surplus += 4;
  recall_.Begin(counts_, counts_.surplus);
  EXPECT_TRUE(recall_.open());
  EXPECT_EQ(Check(true), absl::OkStatus());
  EXPECT_EQ(Check(), absl::OkStatus());
  Return(3);
  EXPECT_TRUE(recall_.open());
  Return(1);
  EXPECT_FALSE(recall_.open());
}

}  // namespace
}  // namespace verbena::internal
