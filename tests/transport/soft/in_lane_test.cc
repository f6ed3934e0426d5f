// A lane whose initiator is gone serves what it can, and is then finished: answers that nobody
// takes any more do not keep it. Nothing is executed that an initiator sends which breaks the
// protocol.

#include <memory>

#include "gtest/gtest.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/soft/completion_queue.h"
#include "verbena/transport/soft/lane.h"
#include "verbena/transport/soft/peer.h"
#include "verbena/transport/soft/responder.h"
#include "verbena/transport/soft/ring.h"
#include "verbena/transport/soft/shared_memory.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal::soft {
namespace in_lane_test {

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

// The data of a READ wait for room, which the initiator claims to have made out of bounds.
TEST_F(InLaneTest, NothingIsExecutedOnceTheLaneIsBroken) {
  const auto device = SoftDevice::Create({.engine_thread = false}).value();
  const CqHandle handle(*device, device->CreateCq(16, nullptr, nullptr).value());
  auto& cq = *static_cast<CompletionQueue*>(handle.get());
  while (lane_.HasRoomForAnswer(kMaxFragmentBytes)) {
    ASSERT_NE(lane_.ReserveAnswer(kShortAnswerBytes), nullptr);
    lane_.PublishAnswer({.opcode = Opcode::kRefused, .length = kShortAnswerBytes});
  }
  ASSERT_TRUE(lane_.HasRoomForAnswer(kShortAnswerBytes));
  lane_.pending_read().active = true;
  lane_.pending_read().remaining = 1 << 20;
  PublishRequest();
  lane_.header().answers_consumed.store(uint64_t{1} << 40);
  CompletionWriter writer(cq);
  EXPECT_FALSE(ServeRequests(lane_, cq, writer));
  EXPECT_TRUE(lane_.broken());
  EXPECT_EQ(lane_.requests().position(), 0u);
}

}  // namespace in_lane_test
}  // namespace verbena::internal::soft
