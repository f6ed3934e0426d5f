// Each lane with requests is served, although the process that used its slot before, or its own
// initiator, was killed while it announced some. No initiator copies through a lane before its
// target knows the lane.

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "gtest/gtest.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/soft/completion_queue.h"
#include "verbena/transport/soft/direct_copy.h"
#include "verbena/transport/soft/in_lanes.h"
#include "verbena/transport/soft/lane.h"
#include "verbena/transport/soft/memory_table.h"
#include "verbena/transport/soft/peer.h"
#include "verbena/transport/soft/ring.h"
#include "verbena/transport/soft/shared_memory.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal::soft {
namespace in_lanes_test {

// The half of a lane that its initiator has.
class Initiator {
 public:
  // Puts a request into the ring, and says nothing of it.
  void Publish() {
    ASSERT_NE(requests_.Reserve(0), nullptr);
    requests_.Publish({.opcode = Opcode::kSend, .flags = kFirst | kLast});
  }
  bool AllConsumed() const { return memory_->header().consumed.load() == requests_.position(); }
  const std::shared_ptr<LaneMemory>& memory() const { return memory_; }
  const std::shared_ptr<Peer>& peer() const { return peer_; }

 private:
  const std::unique_ptr<CqControl> controls_ = std::make_unique<CqControl>();
  const std::shared_ptr<Peer> peer_ =
      std::make_shared<Peer>(PeerParts{.controls = controls_.get()});
  const std::shared_ptr<LaneMemory> memory_ = std::make_shared<LaneMemory>(
      SharedRegion::Anonymous(BytesOf(LaneGeometry{})).value(), LaneGeometry{});
  RingWriter requests_{memory_->requests(), memory_->geometry().request_lines};
};

class InLanesTest : public testing::Test {
 protected:
  // The last one is cold.
  static constexpr size_t kLanes = 9;
  static constexpr uint32_t kCold = kLanes - 1;

  void AddLanes() {
    for (uint32_t i = 0; i < kLanes; ++i) {
      auto lane = std::make_unique<InLane>(initiators_[i].peer(), 0, i, initiators_[i].memory());
      last_ = lane.get();
      ASSERT_TRUE(lanes_.Add(std::move(lane)));
    }
    ASSERT_FALSE(last_->hot());
    ASSERT_EQ(last_->slot(), kCold);
  }
  // As an initiator that was killed before it came to the summary.
  void AnnounceHalf() { control_->activity[0].fetch_or(uint64_t{1} << kCold); }

  // Takes all requests. Returns the slots of the lanes that had some.
  std::vector<uint32_t> Serve() {
    std::vector<uint32_t> served;
    lanes_.ServeActive([&](InLane& lane) {
      MessageHeader request;
      while (lane.requests().Peek(request) == RingReader::State::kMessage) {
        lane.requests().Consume(request);
      }
      served.push_back(lane.slot());
      return true;
    });
    return served;
  }

  const std::unique_ptr<CqControl> control_ = std::make_unique<CqControl>();
  std::array<Initiator, kLanes> initiators_;
  InLanes lanes_{*control_};
  InLane* last_ = nullptr;
};

TEST_F(InLanesTest, ALaneIsServedWhoseSlotWasLeftHalfAnnounced) {
  AnnounceHalf();
  AddLanes();
  initiators_[kCold].Publish();
  control_->SetActive(kCold);
  EXPECT_EQ(Serve(), std::vector<uint32_t>{kCold});
}

TEST_F(InLanesTest, AnAnnouncementIsHeardAfterHalfAnother) {
  AddLanes();
  EXPECT_TRUE(Serve().empty());
  AnnounceHalf();
  initiators_[kCold].Publish();
  control_->SetActive(kCold);
  EXPECT_EQ(Serve(), std::vector<uint32_t>{kCold});
}

TEST_F(InLanesTest, InitiatorsLearnThatTheirLanesAreKnown) {
  EXPECT_EQ(initiators_[0].memory()->header().target_open.load(), 0u);
  AddLanes();
  for (Initiator& initiator : initiators_) {
    EXPECT_EQ(initiator.memory()->header().target_open.load(), 1u);
  }
}

TEST_F(InLanesTest, WhatALostInitiatorDidNotAnnounceIsServed) {
  AddLanes();
  EXPECT_TRUE(Serve().empty());
  initiators_[kCold].Publish();
  EXPECT_TRUE(Serve().empty());
  lanes_.Orphan(*last_);
  EXPECT_EQ(Serve(), std::vector<uint32_t>{kCold});
  EXPECT_TRUE(last_->finished());
}

TEST(UnpolledCqTest, WhatALostPeerPublishedIsServedAlthoughNobodyPollsAndItRangNobody) {
  Initiator initiator;
  const auto device = SoftDevice::Create({.engine_thread = false}).value();
  const CqHandle handle(*device, device->CreateCq(16, nullptr, nullptr).value());
  auto& cq = *static_cast<CompletionQueue*>(handle.get());
  {
    std::lock_guard<SpinLock> lock(cq.lock());
    ASSERT_TRUE(cq.AddInLane(std::make_unique<InLane>(initiator.peer(), 0, 1, initiator.memory())));
  }
  cq.Arm(/*solicited_only=*/false);
  initiator.Publish();
  EXPECT_FALSE(cq.Serve());
  {
    std::lock_guard<SpinLock> lock(cq.lock());
    cq.LosePeer(*initiator.peer());
  }
  EXPECT_TRUE(cq.Serve());
  EXPECT_TRUE(initiator.AllConsumed());
}

// An initiator whose lane is still on its way to the target. All memory is of this process.
TEST(NewLaneTest, NothingIsCopiedThroughItBeforeTheTargetHasIt) {
  constexpr uint32_t kTargetQpn = kMaxQueuePairs + 1;
  constexpr uint32_t kSourceQpn = kMaxQueuePairs + 2;
  constexpr uint32_t kPd = 1;
  const auto device = SoftDevice::Create({.engine_thread = false}).value();
  const CqHandle handle(*device, device->CreateCq(16, nullptr, nullptr).value());
  const auto controls = std::make_unique<CqControl>();
  const auto tables = std::make_unique<DeviceTables>();
  uint64_t there = 1;
  uint64_t here = 2;
  const uint32_t access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  const uint32_t key =
      MemoryTable(tables->memory)
          .Register(kPd, {.address = reinterpret_cast<uint64_t>(&there)}, sizeof(there), access)
          .value();
  QpEntry& qp = tables->QpAt(kTargetQpn);
  qp.pd = kPd;
  qp.access = access;
  qp.source = kSourceQpn;
  qp.qpn = kTargetQpn;
  const auto memory = std::make_shared<LaneMemory>(
      SharedRegion::Anonymous(BytesOf(LaneGeometry{})).value(), LaneGeometry{});
  OutLane lane(*static_cast<CompletionQueue*>(handle.get()),
               std::make_shared<Peer>(PeerParts{
                   .controls = controls.get(), .tables = tables.get(), .in_process = true}),
               /*remote_cq=*/0, /*id=*/1, memory);
  DirectCopy copy(lane);
  RemoteAccess wanted{.target_qpn = kTargetQpn,
                      .source_qpn = kSourceQpn,
                      .rkey = key,
                      .address = reinterpret_cast<uint64_t>(&there),
                      .bytes = sizeof(there),
                      .access = IBV_ACCESS_REMOTE_WRITE};
  EXPECT_FALSE(copy.Possible(wanted));
  EXPECT_FALSE(copy.Chunk(wanted, &here));
  EXPECT_EQ(there, 1u);
  memory->header().target_open = 1;
  EXPECT_TRUE(copy.Possible(wanted));
  EXPECT_TRUE(copy.Chunk(wanted, &here));
  EXPECT_EQ(there, 2u);
}

}  // namespace in_lanes_test
}  // namespace verbena::internal::soft
