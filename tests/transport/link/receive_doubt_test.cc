// A doubt finds the receives that a device dropped by the order of a shared receive queue, and no
// others: one that completes late is not missing any more.

#include "verbena/transport/link/receives.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace verbena::internal {
namespace receive_doubt_test {

class ReceiveDoubtTest : public testing::Test {
 protected:
  // Receives 0 to 3 are posted.
  ReceiveDoubtTest() {
    for (uint32_t index = 0; index < 4; ++index) Post(index);
  }

  void Post(uint32_t index) {
    posted_.has[index] = true;
    ++posted_.count;
  }
  void TakeOut(uint32_t index) {
    posted_.has[index] = false;
    --posted_.count;
  }
  void Complete(uint32_t index) {
    TakeOut(index);
    doubt_.OnCompletion(index);
  }
  std::vector<uint32_t> Missing() const {
    std::vector<uint32_t> missing;
    for (uint32_t index = 0; index < 8; ++index) {
      if (doubt_.IsMissing(index)) missing.push_back(index);
    }
    EXPECT_EQ(missing.size(), doubt_.missing());
    return missing;
  }
  // As their owner does, before it ends the doubt.
  void TakeOutMissing() {
    for (const uint32_t index : Missing()) TakeOut(index);
  }

  ReceiveSet posted_{.has = std::vector<bool>(8, false)};
  ReceiveDoubt doubt_{posted_};
};

TEST_F(ReceiveDoubtTest, KnowsWhatIsMissingOnceANewerReceiveCompletes) {
  EXPECT_FALSE(doubt_.open());
  doubt_.Raise(2);
  EXPECT_TRUE(doubt_.open());
  EXPECT_EQ(doubt_.number(), 1u);
  EXPECT_EQ(doubt_.suspected(), 2u);
  Post(4);
  Complete(1);
  EXPECT_FALSE(doubt_.last_was_newer());
  EXPECT_EQ(doubt_.missing(), 0u) << "older ones may still be with the device";
  // The same receive, posted again, is a newer one.
  Post(1);
  Complete(1);
  EXPECT_TRUE(doubt_.last_was_newer());
  EXPECT_TRUE(doubt_.older_are_taken());
  EXPECT_EQ(Missing(), (std::vector<uint32_t>{0, 2, 3}));
  EXPECT_EQ(doubt_.suspected(), 0u) << "it is known now";
}

TEST_F(ReceiveDoubtTest, AReceiveThatCompletesLateIsNotMissing) {
  doubt_.Raise(1);
  Post(4);
  Complete(4);
  ASSERT_EQ(doubt_.missing(), 4u);
  Complete(2);
  EXPECT_EQ(Missing(), (std::vector<uint32_t>{0, 1, 3}));
  EXPECT_FALSE(doubt_.last_was_newer());
}

TEST_F(ReceiveDoubtTest, EndsByItselfWhenAllOlderReceivesHaveCompleted) {
  doubt_.Raise(3);
  for (uint32_t index = 0; index < 3; ++index) Complete(index);
  EXPECT_TRUE(doubt_.open());
  Complete(3);
  EXPECT_FALSE(doubt_.open());
  EXPECT_EQ(doubt_.suspected(), 0u);
  doubt_.Raise(1);
  EXPECT_FALSE(doubt_.open()) << "no receive is posted that could be gone";
}

TEST_F(ReceiveDoubtTest, RaisedMeanwhileIsTheNextDoubt) {
  doubt_.Raise(1);
  Post(4);
  Complete(4);
  Post(5);
  doubt_.Raise(2);
  EXPECT_EQ(doubt_.suspected(), 2u);
  TakeOutMissing();
  doubt_.Reclaim();
  EXPECT_TRUE(doubt_.open());
  EXPECT_EQ(doubt_.number(), 2u);
  EXPECT_EQ(doubt_.suspected(), 2u);
  Post(6);
  Complete(6);
  EXPECT_EQ(Missing(), std::vector<uint32_t>{5}) << "not what was reclaimed";
}

TEST_F(ReceiveDoubtTest, CountsWhatIsWrittenOffAndNotWhatIsReclaimed) {
  for (const uint32_t expected : {0u, 4u}) {
    doubt_.Raise(1);
    Post(4);
    Complete(4);
    TakeOutMissing();
    if (expected == 0) {
      doubt_.Reclaim();
      for (uint32_t index = 0; index < 4; ++index) Post(index);
    } else {
      doubt_.WriteOff();
    }
    EXPECT_FALSE(doubt_.open());
    EXPECT_EQ(doubt_.written_off(), expected);
  }
}

TEST_F(ReceiveDoubtTest, SilenceEndsWithAnyCompletion) {
  for (int i = 0; i < 31; ++i) doubt_.Raise(1);
  EXPECT_FALSE(doubt_.is_silent());
  doubt_.Raise(1);
  EXPECT_TRUE(doubt_.is_silent());
  EXPECT_EQ(doubt_.suspected(), 32u);
  Complete(0);
  EXPECT_FALSE(doubt_.is_silent());
}

TEST_F(ReceiveDoubtTest, NothingIsInDoubtForAQueuePairThatTookNoReceive) {
  doubt_.Raise(0);
  EXPECT_FALSE(doubt_.open());
}

using ReceiveDoubtDeathTest = ReceiveDoubtTest;

TEST_F(ReceiveDoubtDeathTest, ReceivesThatMayBeTheDevicesAreNotReclaimed) {
  doubt_.Raise(1);
  EXPECT_DEATH(doubt_.Reclaim(), "4 receives may be the device's");
  EXPECT_DEATH(doubt_.WriteOff(), "4 receives may be the device's");
}

}  // namespace receive_doubt_test
}  // namespace verbena::internal
