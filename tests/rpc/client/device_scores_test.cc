// A device is passed over for a server's address after three losses within a minute, until a link
// over it has proven itself again; the entries are bounded.

#include "verbena/rpc/client/device_scores.h"

#include <chrono>
#include <string>

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace verbena::internal {
namespace device_scores_test {

using std::chrono::seconds;

constexpr TimePoint kStart = TimePoint{} + seconds(1000);

class DeviceScoresTest : public ::testing::Test {
 protected:
  bool Lose(TimePoint now, const std::string& address = "a:1", size_t device = 0) {
    return scores_.NoteLoss(address, device, absl::UnavailableError("the path broke"), now);
  }

  DeviceScores scores_;
};

TEST_F(DeviceScoresTest, TheThirdLossWithinAMinutePassesTheDeviceOver) {
  EXPECT_FALSE(Lose(kStart));
  EXPECT_FALSE(Lose(kStart + seconds(30)));
  EXPECT_EQ(scores_.WhyPassedOver("a:1", 0), "");
  EXPECT_TRUE(Lose(kStart + seconds(60)));
  EXPECT_NE(scores_.WhyPassedOver("a:1", 0).find("the path broke"), std::string::npos);
  EXPECT_FALSE(Lose(kStart + seconds(61))) << "it is passed over already";
}

TEST_F(DeviceScoresTest, LossesThatAreFurtherApartDoNotCountTogether) {
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(Lose(kStart + i * seconds(31)));
}

TEST_F(DeviceScoresTest, OtherDevicesAndAddressesCountByThemselves) {
  for (int i = 0; i < 3; ++i) Lose(kStart);
  EXPECT_NE(scores_.WhyPassedOver("a:1", 0), "");
  EXPECT_EQ(scores_.WhyPassedOver("a:1", 1), "");
  EXPECT_EQ(scores_.WhyPassedOver("b:1", 0), "");
}

TEST_F(DeviceScoresTest, ADeviceThatHasReturnedIsPassedOverAfterOneLossMore) {
  for (int i = 0; i < 3; ++i) Lose(kStart);
  scores_.NoteReturn("a:1", 0, kStart + seconds(100));
  EXPECT_EQ(scores_.WhyPassedOver("a:1", 0), "");
  EXPECT_TRUE(Lose(kStart + seconds(160)));
}

TEST_F(DeviceScoresTest, ADeviceThatStayedForAMinuteBeginsAnew) {
  for (int i = 0; i < 3; ++i) Lose(kStart);
  scores_.NoteReturn("a:1", 0, kStart + seconds(100));
  EXPECT_FALSE(Lose(kStart + seconds(161)));
  EXPECT_FALSE(Lose(kStart + seconds(162)));
  EXPECT_TRUE(Lose(kStart + seconds(163)));
}

TEST_F(DeviceScoresTest, TheReturnOfADeviceThatWasNotPassedOverChangesNothing) {
  Lose(kStart);
  scores_.NoteReturn("a:1", 0, kStart);
  scores_.NoteReturn("b:1", 0, kStart);
  EXPECT_FALSE(Lose(kStart + seconds(1)));
  EXPECT_TRUE(Lose(kStart + seconds(2)));
}

TEST_F(DeviceScoresTest, OneEntryTooManyTakesThePlaceOfTheOldest) {
  for (int i = 0; i < 3; ++i) {
    Lose(kStart, "oldest:1");
    Lose(kStart + seconds(1), "next:1");
  }
  for (size_t i = 0; scores_.size() < DeviceScores::kMaxEntries; ++i) {
    Lose(kStart + seconds(2), "address:" + std::to_string(i));
  }
  EXPECT_NE(scores_.WhyPassedOver("oldest:1", 0), "");
  Lose(kStart + seconds(2), "one:more");
  EXPECT_EQ(scores_.size(), DeviceScores::kMaxEntries);
  EXPECT_EQ(scores_.WhyPassedOver("oldest:1", 0), "");
  EXPECT_NE(scores_.WhyPassedOver("next:1", 0), "");
}

}  // namespace device_scores_test
}  // namespace verbena::internal
