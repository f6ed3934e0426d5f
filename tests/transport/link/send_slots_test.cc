// A send queue's slots: completions in order free what the WRs before them held, and enough WRs are
// signalled for every buffer to come back.

#include "verbena/transport/link/send_queue.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace verbena::internal {
namespace send_slots_test {

constexpr LinkKey kKey = {7, 3};

class SendSlotsTest : public testing::Test {
 protected:
  // Posts a WR that holds `buffer`.
  void Post(uint32_t buffer) {
    slots_.Hold(slots_.posted(), buffer);
    slots_.Advance(1);
  }
  // Returns the buffers that a completion of `position` gives back.
  std::vector<uint32_t> Complete(uint32_t position) {
    std::vector<uint32_t> freed;
    EXPECT_TRUE(slots_.Complete(static_cast<uint16_t>(position & WrId::kPositionMask),
                                [&freed](uint32_t buffer) { freed.push_back(buffer); }));
    return freed;
  }

  SendSlots slots_{kKey, 40};
};

TEST_F(SendSlotsTest, ACompletionGivesBackTheBuffersOfAllWrsUpToItsOwn) {
  Post(10);
  Post(SendBuffers::kNone);
  Post(12);
  Post(13);
  EXPECT_EQ(slots_.in_flight(), 4u);
  EXPECT_EQ(Complete(2), (std::vector<uint32_t>{10, 12}));
  EXPECT_EQ(slots_.in_flight(), 1u);
  EXPECT_EQ(Complete(3), std::vector<uint32_t>{13});
}

TEST_F(SendSlotsTest, ACompletionOfWhatIsNotInFlightIsRefused) {
  const auto give_back = [](uint32_t) { ADD_FAILURE() << "a buffer came back"; };
  EXPECT_FALSE(slots_.Complete(0, give_back));
  Post(10);
  EXPECT_FALSE(slots_.Complete(1, give_back));
  EXPECT_EQ(Complete(0), std::vector<uint32_t>{10});
  EXPECT_FALSE(slots_.Complete(0, give_back));
}

TEST_F(SendSlotsTest, PositionsGoOnWhenTheirNumberInTheWrIdWraps) {
  for (uint32_t i = 0; i < 3 * (WrId::kPositionMask + 1); ++i) {
    Post(i % 5);
    const WrId id = slots_.IdOf(i);
    ASSERT_EQ(id.slot, kKey.slot);
    ASSERT_EQ(id.generation, kKey.generation);
    ASSERT_EQ(Complete(id.position), std::vector<uint32_t>{i % 5});
  }
}

TEST_F(SendSlotsTest, EachSixteenthWrIsSignalledAndEachThatLeavesABufferUnsignalledBehindIt) {
  for (uint32_t i = 1; i < kSignalInterval; ++i) {
    EXPECT_FALSE(slots_.CountSend(/*holds=*/false, /*last=*/true, /*wanted=*/false));
  }
  EXPECT_TRUE(slots_.CountSend(/*holds=*/false, /*last=*/false, /*wanted=*/false));
  EXPECT_FALSE(slots_.CountSend(/*holds=*/true, /*last=*/false, /*wanted=*/false));
  // This one holds none, but ends a chain in which another does.
  EXPECT_TRUE(slots_.CountSend(/*holds=*/false, /*last=*/true, /*wanted=*/false));
  EXPECT_FALSE(slots_.CountSend(/*holds=*/false, /*last=*/true, /*wanted=*/false));
  EXPECT_TRUE(slots_.CountSend(/*holds=*/false, /*last=*/true, /*wanted=*/true));
}

TEST_F(SendSlotsTest, UnsignalledBindingsCountTowardsTheNextSignal) {
  EXPECT_FALSE(slots_.IsSignalDue(kSignalInterval - 1));
  slots_.CountUnsignalled(kSignalInterval - 2);
  EXPECT_TRUE(slots_.IsSignalDue(2));
  slots_.MarkSignalled();
  EXPECT_FALSE(slots_.IsSignalDue(2));
}

TEST_F(SendSlotsTest, TheLastHolderIsTheLatestWrThatHoldsABuffer) {
  Post(10);
  Post(11);
  Post(SendBuffers::kNone);
  EXPECT_EQ(slots_.LastHolder(), 1u);
}

TEST_F(SendSlotsTest, BuffersOfALostQueuePairComeBackOnce) {
  Post(10);
  Post(SendBuffers::kNone);
  Post(12);
  std::vector<uint32_t> freed;
  const auto give_back = [&freed](uint32_t buffer) { freed.push_back(buffer); };
  slots_.ReleaseAll(give_back);
  slots_.ReleaseAll(give_back);
  EXPECT_EQ(freed, (std::vector<uint32_t>{10, 12}));
}

}  // namespace send_slots_test
}  // namespace verbena::internal
