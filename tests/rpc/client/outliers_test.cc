// Servers that fail or are slow beside the others are ejected, for longer each time, and come back;
// what handlers answer, and faults that all share, eject nobody. Only the test moves the time.

#include "verbena/rpc/client/subchannels.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "verbena/rpc/client/session.h"
#include "verbena/rpc/status.h"

namespace verbena::internal {
namespace outliers_test {

using std::chrono::microseconds;
using std::chrono::seconds;

void Answer(CallTally& tally, int calls) {
  for (int i = 0; i < calls; ++i) tally.OnResponse(0, 0);
}

void AnswerWith(CallTally& tally, int calls, absl::StatusCode code, Outcome outcome) {
  for (int i = 0; i < calls; ++i) {
    tally.OnResponse(static_cast<uint8_t>(code), static_cast<uint8_t>(outcome));
  }
}

void Fail(CallTally& tally, int calls) {
  for (int i = 0; i < calls; ++i) tally.OnFailure();
}

void Time(CallTally& tally, Duration each) {
  for (uint64_t i = 0; i < kLeastTimed; ++i) tally.OnTimed(each);
}

class OutliersTest : public ::testing::Test {
 protected:
  explicit OutliersTest(size_t servers = 4) : records_(servers), tallies_(servers) {}

  // A second later.
  bool Judge() {
    now_ += seconds(1);
    std::vector<JudgedServer> servers;
    for (size_t i = 0; i < records_.size(); ++i) servers.push_back({&records_[i], &tallies_[i]});
    return JudgeServers(options_, now_, servers);
  }
  std::vector<size_t> Ejected() const {
    std::vector<size_t> ejected;
    for (size_t i = 0; i < records_.size(); ++i) {
      if (records_[i].ejected) ejected.push_back(i);
    }
    return ejected;
  }
  // Each of the others answers calls.
  void AnswerAllBut(size_t server, int calls = 30) {
    for (size_t i = 0; i < tallies_.size(); ++i) {
      if (i != server) Answer(tallies_[i], calls);
    }
  }
  // Judges once a second until the server is back. Returns the seconds that this took.
  int AwaitReturn(size_t server) {
    int waited = 0;
    while (records_[server].ejected && waited < 1000) {
      ++waited;
      (void)Judge();
    }
    return waited;
  }

  using Indices = std::vector<size_t>;

  EjectionOptions options_ = {.interval = seconds(1), .latency_factor = 3};
  TimePoint now_ = TimePoint(seconds(1000));
  std::vector<OutlierRecord> records_;
  std::vector<CallTally> tallies_;
};

TEST_F(OutliersTest, FailuresInARowEject) {
  AnswerAllBut(2);
  Fail(tallies_[2], 4);
  EXPECT_FALSE(Judge());
  Fail(tallies_[2], 1);
  EXPECT_TRUE(Judge());
  EXPECT_EQ(Ejected(), Indices{2});
  EXPECT_EQ(records_[2].why, "5 calls in a row failed");
}

TEST_F(OutliersTest, AnAnswerInBetweenBeginsTheRowAnew) {
  AnswerAllBut(2);
  Fail(tallies_[2], 4);
  Answer(tallies_[2], 1);
  Fail(tallies_[2], 4);
  EXPECT_FALSE(Judge());
}

TEST_F(OutliersTest, AShareOfFailuresEjectsOnceThereAreEnoughCalls) {
  options_.consecutive_failures = 0;
  AnswerAllBut(1);
  Fail(tallies_[1], 19);
  EXPECT_FALSE(Judge()) << "19 calls";
  AnswerAllBut(1);
  Answer(tallies_[1], 11);
  Fail(tallies_[1], 10);
  EXPECT_FALSE(Judge()) << "47%";
  AnswerAllBut(1);
  Answer(tallies_[1], 10);
  Fail(tallies_[1], 10);
  EXPECT_TRUE(Judge());
  EXPECT_EQ(records_[1].why, "10 of 20 calls failed");
}

TEST_F(OutliersTest, AnswersOfHandlersEjectNobody) {
  AnswerAllBut(0);
  for (const Outcome outcome : {Outcome::kExecuted, Outcome::kNotExecuted}) {
    AnswerWith(tallies_[0], 50, absl::StatusCode::kUnavailable, outcome);
    AnswerWith(tallies_[0], 50, absl::StatusCode::kInternal, outcome);
  }
  AnswerWith(tallies_[0], 50, absl::StatusCode::kNotFound, Outcome::kMaybeExecuted);
  EXPECT_FALSE(Judge());
  AnswerAllBut(0);
  AnswerWith(tallies_[0], 5, absl::StatusCode::kInternal, Outcome::kMaybeExecuted);
  EXPECT_TRUE(Judge()) << "as of a handler that throws";
}

TEST_F(OutliersTest, AFaultThatMostServersHaveEjectsNobody) {
  for (const size_t server : {0, 1, 2}) Fail(tallies_[server], 30);
  Answer(tallies_[3], 30);
  EXPECT_FALSE(Judge());
  EXPECT_EQ(Ejected(), Indices{});
}

TEST_F(OutliersTest, AServerThatIsSlowBesideTheOthersIsEjected) {
  AnswerAllBut(4);
  for (const size_t server : {0, 1, 2}) Time(tallies_[server], microseconds(100));
  Time(tallies_[3], microseconds(290));
  EXPECT_FALSE(Judge()) << "less than three times the median";
  AnswerAllBut(4);
  for (const size_t server : {0, 1, 2}) Time(tallies_[server], microseconds(100));
  Time(tallies_[3], microseconds(310));
  EXPECT_TRUE(Judge());
  EXPECT_EQ(Ejected(), Indices{3});
  EXPECT_EQ(records_[3].why,
            "its calls took 310 us on average, and 100 us is the median of the set");
}

TEST_F(OutliersTest, AServerOfWhichFewCallsWereTimedIsNotJudgedByThem) {
  for (const size_t server : {0, 1, 2}) Time(tallies_[server], microseconds(100));
  for (uint64_t i = 1; i < kLeastTimed; ++i) tallies_[3].OnTimed(seconds(1));
  EXPECT_FALSE(Judge());
}

TEST_F(OutliersTest, NeverMoreThanHalfAreEjected) {
  Answer(tallies_[3], 30);
  Answer(tallies_[2], 30);
  for (const size_t server : {0, 1}) Fail(tallies_[server], 30);
  EXPECT_TRUE(Judge());
  EXPECT_EQ(Ejected(), (Indices{0, 1}));
  Fail(tallies_[2], 30);
  Answer(tallies_[3], 30);
  EXPECT_FALSE(Judge());
  EXPECT_EQ(Ejected(), (Indices{0, 1}));
  // Servers leave the set: the others must not be fewer than those that are ejected.
  records_.pop_back();
  tallies_.pop_back();
  EXPECT_TRUE(Judge());
  EXPECT_EQ(Ejected().size(), 1u);
}

TEST_F(OutliersTest, OneOfThreeMayBeEjectedWhateverThePercentage) {
  options_.max_ejected_percent = 10;
  for (const size_t servers : {5, 3}) {
    records_.assign(servers, {});
    tallies_.assign(servers, {});
    AnswerAllBut(0);
    AnswerAllBut(1);
    for (const size_t server : {0, 1}) Fail(tallies_[server], 5);
    EXPECT_TRUE(Judge());
    EXPECT_EQ(Ejected().size(), 1u) << "of " << servers;
  }
  records_.assign(2, {});
  tallies_.assign(2, {});
  Answer(tallies_[0], 30);
  Fail(tallies_[1], 5);
  EXPECT_FALSE(Judge()) << "half of them";
}

TEST_F(OutliersTest, ASingleServerIsNeverEjected) {
  records_.resize(1);
  tallies_.resize(1);
  Fail(tallies_[0], 100);
  EXPECT_FALSE(Judge());
}

TEST_F(OutliersTest, AnEjectionEndsByItselfAndTheNextIsLonger) {
  AnswerAllBut(2);
  Fail(tallies_[2], 5);
  ASSERT_TRUE(Judge());
  EXPECT_EQ(AwaitReturn(2), 10);
  AnswerAllBut(2);
  Fail(tallies_[2], 4);
  EXPECT_FALSE(Judge()) << "former failures are forgiven";
  Fail(tallies_[2], 1);
  ASSERT_TRUE(Judge());
  EXPECT_EQ(AwaitReturn(2), 20);
  // Good for as long as it was ejected: one is forgotten.
  for (int i = 0; i < 20; ++i) {
    Answer(tallies_[2], 1);
    AnswerAllBut(2);
    EXPECT_FALSE(Judge());
  }
  Fail(tallies_[2], 5);
  AnswerAllBut(2);
  ASSERT_TRUE(Judge());
  EXPECT_EQ(AwaitReturn(2), 20) << "the second again";
}

TEST_F(OutliersTest, AnEjectionIsNeverLongerThanTheLongest) {
  options_.longest_ejection = seconds(25);
  for (const int length : {10, 20, 25, 25}) {
    AnswerAllBut(2);
    Fail(tallies_[2], 5);
    ASSERT_TRUE(Judge());
    EXPECT_EQ(AwaitReturn(2), length);
  }
}

}  // namespace outliers_test
}  // namespace verbena::internal
