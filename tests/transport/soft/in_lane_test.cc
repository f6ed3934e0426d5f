// A lane whose initiator is gone serves what it can, and is then finished: answers that nobody
// takes any more do not keep it.

#include <memory>

#include "gtest/gtest.h"
#include "verbena/transport/soft/lane.h"
#include "verbena/transport/soft/peer.h"
#include "verbena/transport/soft/ring.h"
#include "verbena/transport/soft/shared_region.h"

namespace verbena::internal::soft {
namespace {

class InLaneTest : public testing::Test {
 protected:
  void PublishRequest() {
    ASSERT_NE(requests_.Reserve(0), nullptr);
    requests_.Publish({.opcode = Opcode::kSend, .flags = kFirst | kLast});
  }

  const std::unique_ptr<CqControl> control_ = std::make_unique<CqControl>();
  const std::shared_ptr<LaneMemory> memory_ = std::make_shared<LaneMemory>(
      SharedRegion::Anonymous(BytesOf(LaneGeometry{})).value(), LaneGeometry{});
  RingWriter requests_{memory_->requests(), memory_->geometry().request_lines};
  InLane lane_{std::make_shared<Peer>(PeerParts{.controls = control_.get()}), 0, 1, memory_};
};

TEST_F(InLaneTest, OrphanIsFinishedOnceItsRequestsAreServed) {
  PublishRequest();
  EXPECT_FALSE(lane_.finished());
  lane_.Orphan();
  EXPECT_FALSE(lane_.finished());
  MessageHeader request;
  ASSERT_EQ(lane_.requests().Peek(request), RingReader::State::kMessage);
  lane_.requests().Consume(request);
  EXPECT_TRUE(lane_.finished());
}

TEST_F(InLaneTest, OrphanWhoseAnswersFindNoRoomIsFinished) {
  PublishRequest();
  while (lane_.HasRoomForAnswer(kShortAnswerBytes)) {
    ASSERT_NE(lane_.ReserveAnswer(kShortAnswerBytes), nullptr);
    lane_.PublishAnswer({.opcode = Opcode::kRefused, .length = kShortAnswerBytes});
  }
  EXPECT_FALSE(lane_.finished());
  lane_.Orphan();
  EXPECT_TRUE(lane_.finished());
}

}  // namespace
}  // namespace verbena::internal::soft
