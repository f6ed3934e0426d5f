// Liveness counts what its checks see: a silent peer, one that takes nothing, and a link without
// use are each told apart, and none is blamed for a pause of this host.

#include "verbena/transport/link/link.h"

#include <chrono>
#include <cstdint>

#include "gtest/gtest.h"

namespace verbena::internal {
namespace liveness_test {

using std::chrono::seconds;

constexpr TimePoint kStart = TimePoint{} + seconds(1000);

class LivenessTest : public testing::Test {
 protected:
  LivenessTest() { liveness_.Begin(kStart); }

  // Posts a WR that holds a buffer, and returns its position.
  uint32_t Post() {
    slots_.Hold(slots_.posted(), 1);
    slots_.Advance(1);
    return slots_.posted() - 1;
  }
  void Complete(uint32_t position) {
    ASSERT_TRUE(slots_.Complete(static_cast<uint16_t>(position), [](uint32_t) {}));
  }
  bool CheckAcknowledged() {
    return liveness_.CheckAcknowledged(slots_, slots_.in_flight() > 0, /*is_full=*/false);
  }

  SendSlots slots_{LinkKey{}, 64};
  Liveness liveness_;
};

TEST_F(LivenessTest, SilenceBeginsAtTheCheckThatFoundASend) {
  EXPECT_FALSE(liveness_.Check(kStart + seconds(1)));
  EXPECT_EQ(liveness_.Silence(kStart + seconds(1)), seconds(1));
  liveness_.Hear();
  EXPECT_TRUE(liveness_.Check(kStart + seconds(2)));
  EXPECT_FALSE(liveness_.Check(kStart + seconds(3)));
  EXPECT_EQ(liveness_.Silence(kStart + seconds(3)), seconds(1));
}

TEST_F(LivenessTest, OneCheckAfterALongPauseOfThisHostBlamesNobody) {
  EXPECT_FALSE(liveness_.Check(kStart + std::chrono::hours(10)));
  EXPECT_FALSE(liveness_.CountSilent());
}

TEST_F(LivenessTest, TheLastSilentCheckIsOnceTooOften) {
  for (uint32_t i = 0; i < kMaxSilentChecks; ++i) ASSERT_FALSE(liveness_.CountSilent());
  EXPECT_TRUE(liveness_.CountSilent());
  liveness_.ForgetSilence();
  EXPECT_FALSE(liveness_.CountSilent());
}

TEST_F(LivenessTest, APeerThatTakesTheAwaitedSendStartsANewWait) {
  const uint32_t first = Post();
  for (uint32_t i = 0; i < kMaxUnacknowledgedChecks; ++i) ASSERT_TRUE(CheckAcknowledged());
  EXPECT_TRUE(liveness_.awaits_acknowledgement());
  Complete(first);
  const uint32_t second = Post();
  for (uint32_t i = 0; i < kMaxUnacknowledgedChecks; ++i) ASSERT_TRUE(CheckAcknowledged());
  EXPECT_FALSE(CheckAcknowledged());
  Complete(second);
  EXPECT_TRUE(CheckAcknowledged());
  EXPECT_FALSE(liveness_.awaits_acknowledgement());
}

TEST_F(LivenessTest, EarlierSendsThatAreTakenDoNotExcuseTheAwaitedOne) {
  const uint32_t first = Post();
  Post();
  ASSERT_TRUE(CheckAcknowledged());
  Complete(first);
  for (uint32_t i = 1; i < kMaxUnacknowledgedChecks; ++i) {
    Post();
    ASSERT_TRUE(CheckAcknowledged());
  }
  EXPECT_FALSE(CheckAcknowledged());
}

TEST_F(LivenessTest, IdleTimeRunsWhileNothingTravelsAndNobodyNeedsTheLink) {
  EXPECT_EQ(liveness_.IdleTime(kStart + seconds(1), 5, /*in_use=*/false), Duration::zero());
  EXPECT_EQ(liveness_.IdleTime(kStart + seconds(4), 5, /*in_use=*/false), seconds(3));
  EXPECT_EQ(liveness_.IdleTime(kStart + seconds(5), 5, /*in_use=*/true), Duration::zero());
  EXPECT_EQ(liveness_.IdleTime(kStart + seconds(6), 6, /*in_use=*/false), Duration::zero());
  liveness_.RestartIdleTime(kStart + seconds(7));
  EXPECT_EQ(liveness_.IdleTime(kStart + seconds(9), 6, /*in_use=*/false), seconds(2));
}

}  // namespace liveness_test
}  // namespace verbena::internal
