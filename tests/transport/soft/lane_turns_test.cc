// A poll serves a bounded part of what one peer lets wait, however large the peer's rings are, and
// the rest in later turns: that of lanes which are looked at rarely, too.

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/transport/soft/in_process_fixture.h"
#include "tests/transport/soft/qp_end.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/soft/ring.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal::soft {
namespace lane_turns_test {

constexpr uint32_t kRing = 4 << 20;
constexpr uint32_t kRead = 2 << 20;
// A turn takes and answers so many lines, and the message that goes beyond them.
constexpr uint64_t kMostOfATurn = (512 << 10) + kMaxFragmentBytes;

// Over TCP, stepped by hand.
class LaneTurnsTest : public InProcessTest {
 protected:
  // The peers' rings are large, and ours as they are by default.
  void SetUp() override {
    device_a_ = MakeDevice(kRing);
    device_b_ = MakeDevice(TcpWireOptions{}.least_ring_bytes);
    b_ = std::make_unique<QpEnd>(*device_b_, Options());
  }

  std::unique_ptr<SoftDevice> MakeDevice(uint32_t ring) {
    return SoftDevice::Create(
               {.engine_thread = false,
                .shared_memory = false,
                .clock = &clock_,
                .tcp = TcpWireOptions{.address = "127.0.0.1", .least_ring_bytes = ring}})
        .value();
  }
  static QpEndOptions Options() { return {.bytes = 2 * kRead}; }

  // A peer of `qp`, by a lane of its own.
  std::unique_ptr<QpEnd> PeerOf(ibv_qp* qp) {
    auto peer = std::make_unique<QpEnd>(*device_a_, Options());
    EXPECT_TRUE(peer->ToInit(peer->qp()).ok() && b_->ToInit(qp).ok());
    EXPECT_TRUE(peer->ToRtr(peer->qp(), b_->gid(), qp->qp_num, b_->lid()).ok());
    EXPECT_TRUE(b_->ToRtr(qp, peer->gid(), peer->qp()->qp_num, peer->lid()).ok());
    EXPECT_TRUE(peer->ToRts(peer->qp()).ok() && b_->ToRts(qp).ok());
    Settle();
    return peer;
  }
  int PostRead(QpEnd& peer) {
    return peer.PostOneSided(IBV_WR_RDMA_READ, 8, peer.ReceiveSge(0, kRead),
                             reinterpret_cast<uint64_t>(b_->send_buffer()), b_->mr()->rkey);
  }
  uint64_t Answered() {
    const CopiedBytes bytes = device_b_->copied_bytes();
    return bytes.sent_bytes + bytes.ring_bytes;
  }
};

TEST_F(LaneTurnsTest, PollReadsABoundedPartForOnePeer) {
  const std::unique_ptr<QpEnd> peer = PeerOf(b_->qp());
  ASSERT_EQ(PostRead(*peer), 0);
  ibv_wc wc;
  int turns = 0;
  for (uint64_t before = Answered(); Answered() < kRead; before = Answered()) {
    ASSERT_LT(++turns, 100000);
    ASSERT_EQ(ibv_poll_cq(b_->cq(), 1, &wc), 0);
    ASSERT_LE(Answered() - before, kMostOfATurn);
  }
}

// Eight lanes can fill each poll of a caller with a short array.
TEST_F(LaneTurnsTest, LanesBesideBusyOnesHaveTurns) {
  constexpr size_t kPeers = 12;
  constexpr uint32_t kSends = 64;
  b_ = std::make_unique<QpEnd>(
      *device_b_, QpEndOptions{.receive_wr = kPeers * kSends, .shared_receives = true});
  std::vector<QpHandle> qps;
  std::vector<std::unique_ptr<QpEnd>> peers;
  for (size_t i = 0; i < kPeers; ++i) {
    qps.push_back(b_->AddQp());
    peers.push_back(PeerOf(qps.back().get()));
  }
  for (size_t i = 0; i < kPeers * kSends; ++i) ASSERT_EQ(b_->PostReceive(i, {}), 0);
  for (const auto& peer : peers) {
    for (uint32_t i = 0; i < kSends; ++i) ASSERT_EQ(peer->PostSend(i, {}, 0), 0);
  }
  std::map<uint32_t, int> heard;
  for (size_t i = 0; i < 8 * kPeers; ++i) {
    ibv_wc wc;
    ASSERT_EQ(ibv_poll_cq(b_->cq(), 1, &wc), 1);
    ++heard[wc.qp_num];
  }
  EXPECT_EQ(heard.size(), kPeers);
}

TEST_F(LaneTurnsTest, LanesThatArePolledRarelyGoOnToo) {
  constexpr size_t kPeers = 12;
  std::vector<QpHandle> qps;
  std::vector<std::unique_ptr<QpEnd>> peers;
  for (size_t i = 0; i < kPeers; ++i) {
    qps.push_back(b_->AddQp());
    peers.push_back(PeerOf(qps.back().get()));
  }
  std::memset(b_->send_buffer(), 0x77, kRead);
  for (const auto& peer : peers) ASSERT_EQ(PostRead(*peer), 0);
  ibv_wc wc;
  for (int turns = 0; Answered() < kPeers * kRead; ++turns) {
    ASSERT_LT(turns, 100000);
    ASSERT_EQ(ibv_poll_cq(b_->cq(), 1, &wc), 0);
  }
  for (const auto& peer : peers) {
    int count = 0;
    for (int turns = 0; count == 0 && turns < 100000; ++turns) {
      // Polls send what did not fit the socket.
      ASSERT_EQ(ibv_poll_cq(b_->cq(), 1, &wc), 0);
      count = ibv_poll_cq(peer->cq(), 1, &wc);
    }
    ASSERT_EQ(count, 1);
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(std::memcmp(peer->receive_buffer(), b_->send_buffer(), kRead), 0);
  }
}

}  // namespace lane_turns_test
}  // namespace verbena::internal::soft
